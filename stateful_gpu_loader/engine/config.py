"""LoaderConfig: what a loader was told, as its public attributes keep it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.utils.data import BatchSampler, default_collate, default_convert

from stateful_gpu_loader.datasets import CallableSource
from stateful_gpu_loader.datasets.sharded import ShardedDataset
from stateful_gpu_loader.engine.world import size_and_rank
from stateful_gpu_loader.state.schema import as_int

FIXED = frozenset(
    {
        "batch_transform",
        "collate_fn",
        "cpu_share",
        "decoder",
        "device",
        "generator",
        "max_worker_restarts",
        "num_replicas",
        "on_bad_sample",
        "on_epoch_boundary",
        "rank",
        "seed",
        "shuffle",
        "transform",
        "worker_type",
    }
)
"""Attributes that decide what batches are made, or were checked; torch refuses others itself."""
OF_WORKERS = frozenset(
    ("num_workers", "prefetch_factor", "timeout", "worker_init_fn", "multiprocessing_context")
)
"""Attributes that workers have made use of when they are started."""


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """A loader's arguments, checked, and in the form that torch's DataLoader brings them to."""

    dataset: Any
    """Map-style, iterable, sharded or a function's."""
    batch_size: int | None
    """Samples of a batch; None where nothing is collated, or where a batch sampler decides."""
    shuffle: bool | None
    """Whether the loader's own order is shuffled."""
    sampler: Any
    """The user's, or one of ours that stands for the loader's own order."""
    batch_sampler: Any
    """The user's, or torch's own around ``sampler``; None without batches."""
    has_batch_sampler: bool
    """Whether the user gave one."""
    collate_fn: Callable[[Any], Any]
    """Makes the batch of a list of samples, or converts one sample."""
    drop_last: bool
    """Whether a last batch that is not full is left out."""
    num_workers: int
    """Threads or processes; 0 makes batches in the user's own thread."""
    prefetch_factor: int | None
    """Batches that each worker may be ahead of the user; None is 2."""
    persistent_workers: bool
    """Whether workers outlive a pass."""
    timeout: float
    """Seconds that a batch may take; 0 is no limit."""
    worker_init_fn: Callable[[int], None] | None
    """Called in each worker process."""
    multiprocessing_context: Any
    """By which worker processes are started; None leaves it to us."""
    worker_type: str
    """``"thread"``, ``"process"`` or ``"auto"``."""
    in_order: bool
    """Whether batches come in the order of their requests."""
    snapshot_every_n_steps: int | None
    """How often workers with states of their own tell them; 0 or None is never."""
    pin_memory: bool
    """Whether batches that stay on the CPU go into page-locked memory."""
    rank: int | None
    """Of this process; None with ``num_replicas`` None or ``"auto"``."""
    num_replicas: int | str | None
    """Ranks that share the order; ``"auto"`` asks torch.distributed, None is unsharded."""
    device: torch.device | str | int | None
    """Where batches are delivered."""
    decoder: str
    """A decoder's name, or ``"auto"``."""
    cpu_share: float
    """Of the images that a GPU could decode, the share that the CPUs decode."""
    transform: Any
    """Recipes, or any callable."""
    batch_transform: Any
    """What is done to finished batches."""
    on_bad_sample: str
    """``"raise"``, ``"replace"`` or ``"drop"``."""
    max_worker_restarts: int
    """How often lost workers are replaced without a batch delivered in between."""
    on_epoch_boundary: str
    """``"empty"`` or ``"next_epoch"``."""

    @property
    def in_flight(self) -> int:
        """Batches that the workers may be ahead of the user."""
        return self.num_workers * (self.prefetch_factor or 2)

    @property
    def keeps_order(self) -> bool:
        """Whether batches come in the order of their requests: a lane's cursors are of batches in
        their order, and so is a function's end."""
        return self.in_order or isinstance(self.dataset, (ShardedDataset, CallableSource))

    @property
    def calls(self) -> CallableSource | None:
        """The dataset, if its function is called for every sample or batch."""
        dataset = self.dataset
        return dataset if isinstance(dataset, CallableSource) and not dataset.is_iterated else None

    @property
    def own_sampler(self) -> Any:
        """The sampler that a loader without an order of its own iterates.

        torch's own BatchSampler is as good as the sampler inside it.
        """
        if self.yields_batches:
            return self.batch_sampler
        if self.batch_size is None and self.batch_sampler is not None:
            return self.batch_sampler.sampler
        return self.sampler

    @property
    def yields_batches(self) -> bool:
        """Whether :attr:`own_sampler` gives whole batches of indices."""
        given = self.batch_sampler
        return self.batch_size is None and given is not None and type(given) is not BatchSampler

    @property
    def samples_a_batch(self) -> int | None:
        """The batch size, that of torch's own BatchSampler if the user gave one."""
        size: int | None = self._batching.batch_size
        return size

    @property
    def drops_last(self) -> bool:
        """``drop_last``, that of torch's own BatchSampler if the user gave one."""
        return bool(self._batching.drop_last)

    @property
    def _batching(self) -> Any:
        given = self.batch_sampler
        return given if self.batch_size is None and type(given) is BatchSampler else self

    @property
    def collation(self) -> tuple[Callable[[Any], Any], bool]:
        """What makes a batch of samples, and whether there are several to make it of."""
        calls = self.calls
        if calls is not None and calls.batch and calls.image is not None:
            # The call made the batch, and its images are decoded one by one.
            is_plain = self.collate_fn is default_convert
            return default_collate if is_plain else self.collate_fn, True
        return self.collate_fn, self.batch_sampler is not None


ARGUMENTS = frozenset(each.name for each in fields(LoaderConfig)) - {"has_batch_sampler"}
"""Public attributes of a loader, of which its configuration is made."""


def key_ranks(divided: Any) -> tuple[int, int]:
    """Ranks draw different augmentations: into how many they are divided, and which this one is.

    A user's sampler or iterable dataset divides itself. Its ``num_replicas`` and ``rank`` tell,
    as DistributedSampler's do, because ranks that work on one batch together (tensor, pipeline
    parallel) are to see the same pixels; else each process of torch.distributed is a rank.
    """
    try:
        num_replicas = as_int("num_replicas", getattr(divided, "num_replicas", None))
        rank = as_int("rank", getattr(divided, "rank", None))
    except (TypeError, RuntimeError):
        # Nobody has told, or nobody can tell yet: a property that asks torch.distributed.
        return size_and_rank()
    return (num_replicas, rank) if 0 <= rank < num_replicas else size_and_rank()

"""LoaderConfig: the loader's arguments, as its public attributes keep them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch.utils.data import BatchSampler, default_collate, default_convert

from stateful_gpu_loader.datasets import CallableSource
from stateful_gpu_loader.datasets.sharded import ShardedDataset
from stateful_gpu_loader.engine.torch_names import size_and_rank
from stateful_gpu_loader.engine.workers.cluster import RemoteWorkers, remote_workers
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
        "threads_per_process",
        "transform",
        "worker_type",
    }
)
"""Attributes that cannot be changed once the loader is built.

They decide its batches, or were checked then. torch's DataLoader protects its own attributes.
"""
FOLLOWED = frozenset({"dataset", "batch_size", "sampler", "batch_sampler", "drop_last"})
"""Attributes that torch's DataLoader protects, and that only a program which unlocks it can set.

Torch takes the dataset and the sampler from them at ``iter()``; see :meth:`Engine.follow`.
"""
OF_WORKERS = frozenset(
    ("num_workers", "prefetch_factor", "timeout", "worker_init_fn", "multiprocessing_context")
)
"""Attributes that take effect when workers are started."""


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """A loader's arguments, checked and normalised as torch's DataLoader does."""

    dataset: Any
    """Map-style, iterable or sharded dataset, or a CallableSource."""
    batch_size: int | None
    """Number of samples of a batch; None if nothing is collated or a batch sampler decides."""
    shuffle: bool | None
    """Whether the loader's own order is shuffled."""
    sampler: Any
    """The user's sampler, or one of this package that stands for the loader's own order."""
    batch_sampler: Any
    """The user's batch sampler, or torch's own around ``sampler``; None without batches."""
    has_batch_sampler: bool
    """Whether the user gave a batch sampler."""
    collate_fn: Callable[[Any], Any]
    """Makes a batch from a list of samples, or converts a single sample."""
    drop_last: bool
    """Whether an incomplete last batch is left out."""
    num_workers: int
    """Number of worker threads or processes; with 0 batches are made in the user's own thread."""
    prefetch_factor: int | None
    """Number of batches that each worker may be ahead of the user; None means 2."""
    persistent_workers: bool
    """Whether workers are kept between passes."""
    timeout: float
    """Seconds that a batch may take; 0 means no limit."""
    worker_init_fn: Callable[[int], None] | None
    """Called in each worker process."""
    multiprocessing_context: Any
    """Context that worker processes are started with; None lets the loader choose."""
    threads_per_process: int
    """Number of workers that are threads of one process, where workers are processes."""
    worker_type: Any
    """``"thread"``, ``"process"``, ``"auto"``, ``"ray"``, or options of workers elsewhere."""
    in_order: bool
    """Whether batches come in the order of their requests."""
    snapshot_every_n_steps: int | None
    """Number of steps between two snapshots of workers that have state; 0 or None takes none."""
    pin_memory: bool
    """Whether batches that stay on the CPU go into page-locked memory."""
    rank: int | None
    """Rank of this process; None if ``num_replicas`` is None or ``"auto"``."""
    num_replicas: int | str | None
    """Number of ranks that share the order; ``"auto"`` asks torch.distributed, None is one rank."""
    device: torch.device | str | int | None
    """Device that batches are delivered on."""
    decoder: str
    """Name of a decoder, or ``"auto"``."""
    cpu_share: float
    """Share of the images that the GPU could decode which the CPUs decode instead, from 0 to 1."""
    transform: Any
    """Recipes, or any callable on a sample."""
    batch_transform: Any
    """Batch recipes or callables that are applied to finished batches."""
    on_bad_sample: str
    """``"raise"``, ``"replace"`` or ``"drop"``."""
    max_worker_restarts: int
    """Number of workers that one batch may lose."""
    on_epoch_boundary: str
    """``"empty"`` or ``"next_epoch"``."""

    @property
    def in_flight(self) -> int:
        """Number of batches that the workers may be ahead of the user."""
        limit = None if self.remote is None else self.remote.max_in_flight
        return self.num_workers * self.in_flight_a_worker if limit is None else limit

    @property
    def in_flight_a_worker(self) -> int:
        """Number of batches that one worker may have to make, or may be making."""
        threads = 1 if self.remote is None else self.remote.threads
        return (self.prefetch_factor or 2) + threads - 1

    @cached_property
    def remote(self) -> RemoteWorkers | None:
        """The workers on other machines; None if they are on this one."""
        return remote_workers(self.worker_type)

    @cached_property
    def keeps_order(self) -> bool:
        """Whether batches come in the order of their requests.

        The cursors of a lane, and the end of an epoch that a function tells, are only known in
        order.
        """
        return self.in_order or isinstance(self.dataset, (ShardedDataset, CallableSource))

    @cached_property
    def calls(self) -> CallableSource | None:
        """The dataset, if it is a function that is called for every sample or batch."""
        dataset = self.dataset
        return dataset if isinstance(dataset, CallableSource) and not dataset.is_iterated else None

    def is_sampled_by(self, index_sampler: Any) -> bool:
        """Whether torch's ``_index_sampler`` is the one that the loader was built with.

        A plain BatchSampler counts by what it holds, which programs replace as well.
        """
        given = self.sampler if self.batch_sampler is None else self.batch_sampler
        if index_sampler is not given or type(given) is not BatchSampler:
            return index_sampler is given
        if self.has_batch_sampler:
            return given.sampler is self.own_sampler
        held = (given.sampler, given.batch_size, given.drop_last)
        return held == (self.sampler, self.batch_size, self.drop_last)

    def sampled_by(self, index_sampler: Any) -> LoaderConfig:
        """Return the configuration of a loader that was built with this sampler."""
        if self.batch_sampler is None:
            return replace(self, sampler=index_sampler, shuffle=None)
        is_own = index_sampler is self.batch_sampler and not self.has_batch_sampler
        if is_own and index_sampler.sampler is self.sampler:
            size, drop_last = index_sampler.batch_size, index_sampler.drop_last
            return replace(self, batch_size=size, drop_last=drop_last)
        return replace(
            self,
            batch_sampler=index_sampler,
            has_batch_sampler=True,
            sampler=None,
            batch_size=None,
            drop_last=False,
            shuffle=None,
        )

    @cached_property
    def own_sampler(self) -> Any:
        """The sampler that is iterated when the loader has no order of its own.

        torch's own BatchSampler is looked through: the sampler inside it counts.
        """
        if self.yields_batches:
            return self.batch_sampler
        if self.batch_size is None and self.batch_sampler is not None:
            return self.batch_sampler.sampler
        return self.sampler

    @cached_property
    def yields_batches(self) -> bool:
        """Whether :attr:`own_sampler` yields whole batches of indices."""
        given = self.batch_sampler
        return self.batch_size is None and given is not None and type(given) is not BatchSampler

    @property
    def samples_a_batch(self) -> int | None:
        """The batch size, or that of torch's own BatchSampler if the user gave one."""
        size: int | None = self._batching.batch_size
        return size

    @property
    def drops_last(self) -> bool:
        """The value of ``drop_last``, or that of torch's own BatchSampler if the user gave one."""
        return bool(self._batching.drop_last)

    @property
    def _batching(self) -> Any:
        given = self.batch_sampler
        return given if self.batch_size is None and type(given) is BatchSampler else self

    @cached_property
    def collation(self) -> tuple[Callable[[Any], Any], bool]:
        """The function that makes a batch, and whether it gets a list of samples or only one."""
        calls = self.calls
        if calls is not None and calls.batch and calls.image is not None:
            # The call has made the batch already, but its images are decoded one by one.
            is_plain = self.collate_fn is default_convert
            return default_collate if is_plain else self.collate_fn, True
        return self.collate_fn, self.batch_sampler is not None


ARGUMENTS = frozenset(each.name for each in fields(LoaderConfig)) - {"has_batch_sampler"}
"""Names of the loader's public attributes that its configuration is made from."""


def key_ranks(divided: Any) -> tuple[int, int]:
    """Return the number of ranks and this rank, by which random augmentations are made to differ.

    A user's sampler or iterable dataset divides itself. If it has attributes ``num_replicas`` and
    ``rank``, as DistributedSampler has, they are used: ranks that work on one batch together
    (tensor or pipeline parallel) must see the same pixels. Otherwise each process of
    torch.distributed is a rank.
    """
    try:
        num_replicas = as_int("num_replicas", getattr(divided, "num_replicas", None))
        rank = as_int("rank", getattr(divided, "rank", None))
    except (TypeError, RuntimeError):
        # The attributes are missing, or they are properties that cannot ask torch.distributed yet.
        return size_and_rank()
    return (num_replicas, rank) if 0 <= rank < num_replicas else size_and_rank()

"""LoaderConfig: the loader's arguments, their checks, and when they may change."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch.utils.data import BatchSampler, default_collate, default_convert

from stateful_gpu_loader.datasets import CallableSource
from stateful_gpu_loader.datasets.sharded import ShardedDataset
from stateful_gpu_loader.decoders import DECODER_NAMES
from stateful_gpu_loader.engine.makers.bad_sample_policy import ON_BAD_SAMPLE
from stateful_gpu_loader.engine.workers.cluster import RemoteWorkers, remote_workers
from stateful_gpu_loader.state.schema import as_int

Check: TypeAlias = Callable[[str, Any], None]
"""Function of an argument's name and value that raises ValueError or TypeError."""


class Change(Enum):
    """Times at which the loader's attribute of an argument may change."""

    NEVER = "never"
    """The attribute decides the batches, or was checked at construction."""
    IF_UNLOCKED = "if unlocked"
    """torch's DataLoader protects it; :meth:`Engine.follow` is for programs that set it anyway."""
    WITH_WORKERS = "with workers"
    """The attribute takes effect when workers are started."""
    ANY_TIME = "any time"


def _check_path(name: str, value: Any) -> None:
    """Refuse a path as dataset, whose characters would be samples."""
    if isinstance(value, (str, os.PathLike)):
        raise TypeError(
            f"{name} = {value!r} is a path, not a dataset. Remedy: FolderSource({str(value)!r}) "
            "for a folder of images with one subfolder per class; docs/data.md lists the sources "
            "for other files"
        )


def _check_seed(name: str, value: Any) -> None:
    if value is not None and not -(2**63) <= as_int(name, value) < 2**64:
        raise ValueError(f"{name} = {value!r} must fit in 64 bits: -2**63 <= seed < 2**64")


def _check_share(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} = {value!r} must be a number from 0 to 1")
    if not 0 <= value <= 1:
        raise ValueError(f"{name} = {value!r} must be from 0 to 1")


def _check_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} = {value!r} must be True or False")


def _one_of(*choices: str, or_a: type | tuple[()] = ()) -> Check:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, or_a) and value not in choices:
            raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}")

    return check


def _int_from(lowest: int, in_words: str, *, or_none: bool = False) -> Check:
    def check(name: str, value: Any) -> None:
        if not (or_none and value is None) and not is_int_from(lowest, value):
            raise ValueError(f"{name} = {value!r} must be {in_words}")

    return check


def is_int_from(lowest: int, value: Any) -> bool:
    """Whether a value is an int of any type, and at least ``lowest``."""
    try:
        return as_int("", value) >= lowest
    except TypeError:
        return False


def _argument(change: Change = Change.ANY_TIME, check: Check | None = None) -> Any:
    return field(metadata={"change": change, "check": check})


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """A loader's arguments, as given or, later, as torch's DataLoader normalises them.

    Each argument is also a public attribute of the loader.
    """

    dataset: Any = _argument(Change.IF_UNLOCKED, _check_path)
    """Map-style, iterable or sharded dataset, or a CallableSource."""
    batch_size: int | None = _argument(Change.IF_UNLOCKED)
    """Number of samples in a batch; None without collation or with a batch sampler."""
    shuffle: bool | None = _argument(Change.NEVER)
    """Whether the loader's own order is shuffled."""
    sampler: Any = _argument(Change.IF_UNLOCKED)
    """The user's sampler, or a sampler of this package for the loader's own order."""
    batch_sampler: Any = _argument(Change.IF_UNLOCKED)
    """The user's batch sampler, or torch's own around ``sampler``; None without batches."""
    has_batch_sampler: bool
    """Whether the user gave a batch sampler."""
    collate_fn: Callable[[Any], Any] = _argument(Change.NEVER)
    """Makes a batch from a list of samples, or converts a single sample."""
    drop_last: bool = _argument(Change.IF_UNLOCKED)
    """Whether an incomplete last batch is dropped."""
    num_workers: int = _argument(Change.WITH_WORKERS)
    """Number of worker threads or processes; 0 makes batches in the user's thread."""
    prefetch_factor: int | None = _argument(
        Change.WITH_WORKERS, _int_from(1, "a positive int or None", or_none=True)
    )
    """Number of batches that each worker may be ahead of the user; None means 2."""
    persistent_workers: bool = _argument()
    """Whether workers are kept between passes."""
    timeout: float = _argument(Change.WITH_WORKERS)
    """Seconds that a batch may take; 0 means no limit."""
    worker_init_fn: Callable[[int], None] | None = _argument(Change.WITH_WORKERS)
    """Function called in each worker process."""
    multiprocessing_context: Any = _argument(Change.WITH_WORKERS)
    """Start method of worker processes; None lets the loader choose."""
    threads_per_process: int | None = _argument(
        Change.NEVER, _int_from(1, "a positive int or None", or_none=True)
    )
    """Number of worker threads in one process; None lets the loader choose."""
    worker_type: Any = _argument(
        Change.NEVER, _one_of("auto", "thread", "process", "ray", or_a=RemoteWorkers)
    )
    """``"thread"``, ``"process"``, ``"auto"``, ``"ray"``, or options of workers elsewhere."""
    in_order: bool = _argument()
    """Whether batches come in the order of their requests."""
    snapshot_every_n_steps: int | None = _argument(
        check=_int_from(0, "an int from 0, or None", or_none=True)
    )
    """Number of steps between two snapshots of workers with state; 0 or None takes none."""
    pin_memory: bool = _argument()
    """Whether batches that stay on the CPU go into page-locked memory."""
    pin_memory_device: str = _argument()
    """Accepted for compatibility; it has no effect."""
    generator: torch.Generator | None = _argument(Change.NEVER)
    """The caller's generator, which draws the seed if none is given."""
    seed: int | None = _argument(Change.NEVER, _check_seed)
    """The seed as given; the engine holds the settled seed."""
    rank: int | None = _argument(Change.NEVER)
    """Rank of this process; None if ``num_replicas`` is None or ``"auto"``."""
    num_replicas: int | str | None = _argument(Change.NEVER)
    """Number of ranks that share the order; ``"auto"`` reads torch.distributed, None is one
    rank."""
    device: torch.device | str | int | None = _argument(Change.NEVER)
    """Device that batches are delivered on."""
    decoder: str = _argument(Change.NEVER, _one_of(*DECODER_NAMES))
    cpu_share: float = _argument(Change.NEVER, _check_share)
    """Share of the GPU's images that the CPUs decode instead, from 0 to 1."""
    scaled_decoding: bool = _argument(Change.NEVER, _check_bool)
    """Whether CPUs decode JPEGs at a smaller scale if the recipes shrink them."""
    transform: Any = _argument(Change.NEVER)
    """Recipes, or any callable on a sample."""
    batch_transform: Any = _argument(Change.NEVER)
    """Batch recipes or callables for finished batches."""
    on_bad_sample: str = _argument(Change.NEVER, _one_of(*ON_BAD_SAMPLE))
    max_worker_restarts: int = _argument(Change.NEVER, _int_from(0, "an int from 0"))
    """Number of times that one batch may lose its workers."""
    on_epoch_boundary: str = _argument(Change.NEVER, _one_of("empty", "next_epoch"))
    strict: bool = _argument()
    """Whether ``load_state_dict`` refuses a state that cannot be verified."""

    @property
    def in_flight(self) -> int:
        """Number of batches that the workers may be ahead of the user."""
        limit = None if self.remote is None else self.remote.max_in_flight
        return self.num_workers * self.in_flight_a_worker if limit is None else limit

    @property
    def in_flight_a_worker(self) -> int:
        """Number of batches that one worker may have queued or in progress."""
        threads = 1 if self.remote is None else self.remote.threads
        return (self.prefetch_factor or 2) + threads - 1

    @cached_property
    def remote(self) -> RemoteWorkers | None:
        """Options of the workers on other machines; None if all workers are on this machine."""
        return remote_workers(self.worker_type)

    @cached_property
    def keeps_order(self) -> bool:
        """Whether batches come in the order of their requests.

        Only this order reveals a lane's cursors, and the end of a function's epoch.
        """
        return self.in_order or isinstance(self.dataset, (ShardedDataset, CallableSource))

    @cached_property
    def calls(self) -> CallableSource | None:
        """The dataset, if it is a CallableSource."""
        dataset = self.dataset
        return dataset if isinstance(dataset, CallableSource) and not dataset.is_iterated else None

    def is_sampled_by(self, index_sampler: Any) -> bool:
        """Whether torch's ``_index_sampler`` is the sampler that the loader was built with.

        A plain BatchSampler is compared by its contents.
        """
        given = self.sampler if self.batch_sampler is None else self.batch_sampler
        if index_sampler is not given or type(given) is not BatchSampler:
            return index_sampler is given
        if self.has_batch_sampler:
            return given.sampler is self.own_sampler
        held = (given.sampler, given.batch_size, given.drop_last)
        return held == (self.sampler, self.batch_size, self.drop_last)

    def sampled_by(self, index_sampler: Any) -> LoaderConfig:
        """Return the configuration of a loader built with this sampler."""
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
        """The sampler that is iterated if the loader has no order of its own.

        For torch's own BatchSampler it is the sampler inside.
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
        """The batch size, or that of the user's plain torch BatchSampler."""
        size: int | None = self._batching.batch_size
        return size

    @property
    def drops_last(self) -> bool:
        """The value of ``drop_last``, or that of the user's plain torch BatchSampler."""
        return bool(self._batching.drop_last)

    @property
    def _batching(self) -> Any:
        given = self.batch_sampler
        return given if self.batch_size is None and type(given) is BatchSampler else self

    @cached_property
    def collation(self) -> tuple[Callable[[Any], Any], bool]:
        """The collate function, and whether it gets a list of samples."""
        calls = self.calls
        if calls is not None and calls.batch and calls.image is not None:
            # The call made the batch, but its images are decoded one by one.
            is_plain = self.collate_fn is default_convert
            return default_collate if is_plain else self.collate_fn, True
        return self.collate_fn, self.batch_sampler is not None


ARGUMENTS: Mapping[str, Change] = {
    each.name: each.metadata["change"] for each in fields(LoaderConfig) if each.metadata
}
"""When each argument's attribute may change, by the argument's name."""
NEEDS_NEW_WORKERS = frozenset(name for name in ARGUMENTS if ARGUMENTS[name] is Change.WITH_WORKERS)

"""What a loader's public attributes say, the way the engine wants to know it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import BatchSampler, default_collate, default_convert

from stateful_gpu_loader.datasets import CallableSource
from stateful_gpu_loader.datasets.sharded import ShardedDataset
from stateful_gpu_loader.engine.choice import Workers
from stateful_gpu_loader.engine.schedules.sampler_feed import SamplerUse
from stateful_gpu_loader.engine.schedules.sampler_snapshot import SamplerMemory
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


def workers_of(loader: Any) -> Workers:
    """Who does it."""
    return Workers(
        num_workers=loader.num_workers,
        worker_type=loader.worker_type,
        prefetch_factor=loader.prefetch_factor,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        persistent_workers=loader.persistent_workers,
        # A lane's cursors are of batches in their order, and so is a function's end.
        in_order=loader.in_order or isinstance(loader.dataset, (ShardedDataset, CallableSource)),
    )


def called(loader: Any) -> CallableSource | None:
    """The loader's dataset, if its function is called for every sample or batch."""
    dataset = loader.dataset
    return dataset if isinstance(dataset, CallableSource) and not dataset.is_iterated else None


def own_sampler_of(loader: Any) -> tuple[Any, bool]:
    """The sampler that a loader without an order of its own iterates, and whether it gives batches.

    torch's own BatchSampler is as good as the sampler inside it.
    """
    if loader.batch_size is not None or loader.batch_sampler is None:
        return loader.sampler, False
    if type(loader.batch_sampler) is BatchSampler:
        return loader.batch_sampler.sampler, False
    return loader.batch_sampler, True


def batching_of(loader: Any) -> Any:
    """The loader, or torch's own BatchSampler: whose ``batch_size`` and ``drop_last`` count."""
    given = loader.batch_sampler
    return given if loader.batch_size is None and type(given) is BatchSampler else loader


def collation_of(loader: Any) -> tuple[Callable[[Any], Any], bool]:
    """What makes a batch of samples, and whether there are several to make it of."""
    calls = called(loader)
    if calls is not None and calls.batch and calls.image is not None:
        # The call made the batch, and its images are decoded one by one.
        collate_fn = loader.collate_fn
        return default_collate if collate_fn is default_convert else collate_fn, True
    return loader.collate_fn, loader.batch_sampler is not None


def sampler_use(loader: Any, memory: SamplerMemory) -> SamplerUse:
    sampler, yields_batches = own_sampler_of(loader)
    owner = batching_of(loader)
    num_replicas, rank = key_ranks(sampler)
    return SamplerUse(
        sampler=sampler,
        yields_batches=yields_batches,
        batch_size=owner.batch_size or 1,
        drop_last=owner.drop_last,
        memory=memory,
        rank=rank,
        num_replicas=num_replicas,
    )


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

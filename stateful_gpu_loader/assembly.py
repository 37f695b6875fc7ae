"""The pieces of a pass, put together from a loader's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed
from torch.utils.data import BatchSampler, DistributedSampler

from stateful_gpu_loader.decoders import Decoder
from stateful_gpu_loader.engine.choice import Work, Workers
from stateful_gpu_loader.engine.executors.policy import BadSamplePolicy
from stateful_gpu_loader.engine.streams.map_stream import Feed, MapStream
from stateful_gpu_loader.engine.streams.positions import Division, Requests
from stateful_gpu_loader.engine.streams.sampler_feed import SamplerFeed, SamplerUse
from stateful_gpu_loader.engine.streams.sampler_memory import SamplerMemory
from stateful_gpu_loader.engine.streams.stream import Stream
from stateful_gpu_loader.engine.streams.turns import TurnStream
from stateful_gpu_loader.generator_text import generator_from_text
from stateful_gpu_loader.passes import Address, Pass
from stateful_gpu_loader.samplers import EpochOrder, Listed, PositionOrder
from stateful_gpu_loader.sources.source import Source
from stateful_gpu_loader.state import Stateful
from stateful_gpu_loader.torchdata_states import shuffled_indices


def work_of(
    loader: Any,
    *,
    order: PositionOrder | None,
    source: Source | None,
    transform: Any,
    decoder: Decoder | None,
    known_bad: Mapping[int, str],
) -> Work:
    """What a loader's workers do."""
    return Work(
        dataset=loader.dataset,
        transform=transform,
        collate_fn=loader.collate_fn,
        batch_size=loader.batch_size,
        batched=loader.batch_sampler is not None,
        drop_last=loader.drop_last,
        source=source,
        decoder=decoder,
        bad_samples=BadSamplePolicy(
            mode=loader.on_bad_sample,
            order=order,
            known=known_bad,
            reads_again=isinstance(loader.dataset, Stateful),
        ),
    )


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
        in_order=loader.in_order,
    )


def own_sampler_of(loader: Any) -> tuple[Any, bool]:
    """The sampler that a loader without an order of its own iterates, and whether it gives batches.

    torch's own BatchSampler is as good as the sampler inside it.
    """
    if loader.batch_size is not None or loader.batch_sampler is None:
        return loader.sampler, False
    if type(loader.batch_sampler) is BatchSampler:
        return loader.batch_sampler.sampler, False
    return loader.batch_sampler, True


def sampler_use_of(loader: Any, memory: SamplerMemory) -> SamplerUse:
    """How it does so."""
    sampler, yields_batches = own_sampler_of(loader)
    owner = loader
    if loader.batch_size is None and not yields_batches and loader.batch_sampler is not None:
        owner = loader.batch_sampler
    num_replicas, rank = _key_ranks(sampler)
    return SamplerUse(
        sampler=sampler,
        yields_batches=yields_batches,
        batch_size=owner.batch_size or 1,
        drop_last=owner.drop_last,
        memory=memory,
        rank=rank,
        num_replicas=num_replicas,
    )


def stream_of(
    loader: Any,
    current: Pass,
    *,
    seed: int,
    order: PositionOrder | None,
    division: Division | None,
    sampler: SamplerUse | None,
    has_worker_states: bool,
    live: Callable[[], bytes] | None,
) -> Stream:
    """A pass, from the place where it starts.

    Args:
        order, division: of a loader with an order of its own.
        sampler: of one that iterates a user's sampler; None of both is an iterable dataset.
        has_worker_states: whether the workers' objects have state.
        live: freezes that state where it is in the user's own thread.
    """
    place = current.start
    interval = loader.snapshot_every_n_steps or 0
    keeps_workers = loader.persistent_workers or loader.num_workers == 0
    feed: Feed
    if order is not None and division is not None:
        feed = Requests(place, seed=seed, indices=_indices(order, place, seed), division=division)
    elif sampler is not None:
        feed = SamplerFeed(sampler, place, seed=seed, resumed=current.resumed)
    else:
        num_replicas, rank = _key_ranks(None)
        return TurnStream(
            place,
            resumed=current.resumed,
            seed=seed,
            num_workers=loader.num_workers,
            rank=rank,
            num_replicas=num_replicas,
            interval=interval,
            in_order=loader.in_order,
            live=live,
            keeps_workers=keeps_workers,
            length=lambda: loader._IterableDataset_len_called,
        )
    return MapStream(
        place,
        resumed=current.resumed,
        feed=feed,
        seed=seed,
        num_workers=loader.num_workers,
        in_order=loader.in_order,
        interval=interval,
        worker_states=has_worker_states,
        live=live if has_worker_states else None,
        keeps_workers=keeps_workers,
    )


def _indices(order: PositionOrder, place: Address, seed: int) -> EpochOrder:
    permutation = None if place.user is None else place.user.permutation
    if permutation is not None:
        return Listed(shuffled_indices(generator_from_text(permutation), order.num_positions))
    return order.of_epoch(seed, place.epoch)


def _key_ranks(sampler: Any) -> tuple[int, int]:
    """Ranks draw different augmentations (a user's sampler or dataset divides itself)."""
    if isinstance(sampler, DistributedSampler):
        return int(sampler.num_replicas), int(sampler.rank)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size(), torch.distributed.get_rank()
    return 1, 0

"""Checks of the loader's arguments, and the sampler that stands in for a missing one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch.utils.data import IterableDataset, MapDataPipe, Sampler, SequentialSampler

from stateful_gpu_loader.samplers import (
    DistributedShuffledSampler,
    PositionOrder,
    SequentialOrder,
    ShuffledSampler,
)
from stateful_gpu_loader.state import ACCEPTABLE, MAX_EPOCH, Stateful


def order_of(sampler: Any) -> PositionOrder | None:
    """The position order behind a sampler, or None for a sampler that must be iterated."""
    if isinstance(sampler, (ShuffledSampler, DistributedShuffledSampler)):
        return sampler.order
    if type(sampler) is SequentialSampler:
        return SequentialOrder(sampler.data_source)
    return None


def is_plain_map(dataset: Any) -> bool:
    return not isinstance(dataset, (IterableDataset, MapDataPipe, Stateful))


def default_sampler(
    dataset: Any,
    shuffle: bool,
    drop_last: bool,
    seed: int | None,
    num_replicas: int | str | None,
    rank: int | None,
) -> Sampler[int]:
    if num_replicas is not None:
        replicas = 1 if isinstance(num_replicas, str) else num_replicas
        return DistributedShuffledSampler(
            dataset, replicas, rank or 0, shuffle=shuffle, seed=seed, drop_last=drop_last
        )
    if shuffle:
        return ShuffledSampler(dataset, seed=seed)
    return SequentialSampler(dataset)


def check_seed(seed: int | None) -> None:
    if seed is None:
        return
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"{seed = } must be an int or None, not {type(seed).__name__}")
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"{seed = } must fit in 64 bits: -2**63 <= seed < 2**64")


def check_ranks(rank: int | None, num_replicas: int | str | None) -> None:
    if num_replicas == "auto":
        if rank is not None:
            raise ValueError(f"num_replicas='auto' reads the rank too: leave out {rank = }")
        return
    if num_replicas is None:
        if rank is not None:
            raise ValueError(f"{rank = } needs num_replicas, the number of ranks")
        return
    if isinstance(num_replicas, bool) or not isinstance(num_replicas, int) or num_replicas < 1:
        raise ValueError(f"{num_replicas = } must be a positive int, 'auto' or None")
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < num_replicas:
        raise ValueError(f"{rank = } must be an int with 0 <= rank < {num_replicas = }")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}")


def check_shuffle(shuffle: Any) -> None:
    if shuffle not in (None, True, False):
        raise TypeError(f"{shuffle = } must be True, False or None")


def check_inherited(transform: Any, num_replicas: int | str | None) -> None:
    for name, value in (("transform", transform), ("num_replicas", num_replicas)):
        if value is not None:
            raise ValueError(
                f"{name}={value!r} needs a map-style dataset without state of its own, in the "
                "loader's own order. Remedy: do it in the dataset, or leave out sampler and "
                "batch_sampler"
            )


def check_accept(accept: Collection[str]) -> None:
    unknown = {accept} if isinstance(accept, str) else set(accept) - ACCEPTABLE
    if unknown:
        raise ValueError(f"{accept = } must be a collection of names among {sorted(ACCEPTABLE)}")


def check_epoch(epoch: Any) -> None:
    if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch <= MAX_EPOCH:
        raise ValueError(f"{epoch = } must be an int from 0 to {MAX_EPOCH}")

"""The default sampler of a loader, and the order of a given sampler."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from torch.utils.data import IterableDataset, Sampler, SequentialSampler

from stateful_gpu_loader.datasets.mixture import MixedDataset
from stateful_gpu_loader.samplers.balanced import BalancedSampler
from stateful_gpu_loader.samplers.distributed import DistributedShuffledSampler
from stateful_gpu_loader.samplers.mixture import MixtureSampler
from stateful_gpu_loader.samplers.orders import PositionOrder, SequentialOrder
from stateful_gpu_loader.samplers.repeated import RepeatedSampler
from stateful_gpu_loader.samplers.resumable import OrderSampler
from stateful_gpu_loader.samplers.sharded import ShardSampler
from stateful_gpu_loader.samplers.shuffled import ShuffledSampler
from stateful_gpu_loader.samplers.subset import SubsetSampler
from stateful_gpu_loader.samplers.weighted import WeightedSampler


class InOrderSampler(OrderSampler, SequentialSampler):
    """Yields the dataset's own order.

    Trainers call its ``set_epoch``: augmentations depend on the epoch, even though the order does
    not.

    >>> list(InOrderSampler(range(3)))
    [0, 1, 2]
    """

    def __init__(self, data_source: Sized) -> None:
        super().__init__(data_source)
        self.seed = None
        self.epoch = 0
        self.order: PositionOrder = SequentialOrder(data_source)


OWN_SAMPLERS = (
    ShuffledSampler,
    DistributedShuffledSampler,
    WeightedSampler,
    BalancedSampler,
    SubsetSampler,
    RepeatedSampler,
    MixtureSampler,
    ShardSampler,
    InOrderSampler,
)
"""Samplers whose orders the loader computes by position."""


def default_sampler(
    dataset: Any,
    *,
    shuffle: bool,
    drop_last: bool,
    seed: int | None,
    num_replicas: int | str | None,
    rank: int | None,
) -> Sampler[int]:
    """Return the sampler for a loader that was given none."""
    if isinstance(dataset, MixedDataset):
        return MixtureSampler(dataset, shuffle=shuffle, seed=seed)
    if num_replicas is not None:
        replicas = 1 if isinstance(num_replicas, str) else num_replicas
        return DistributedShuffledSampler(
            dataset, replicas, rank or 0, shuffle=shuffle, seed=seed, drop_last=drop_last
        )
    return ShuffledSampler(dataset, seed=seed) if shuffle else InOrderSampler(dataset)


def is_map(dataset: Any) -> bool:
    """Whether a dataset is map-style."""
    return not isinstance(dataset, IterableDataset)


def order_of(sampler: Any) -> PositionOrder | None:
    """Return the order of a sampler that is addressed by position, or None for any other.

    A subclass counts as any other sampler, since it may yield other indices.
    """
    if type(sampler) in OWN_SAMPLERS:
        own: PositionOrder = sampler.order
        return own
    if type(sampler) is SequentialSampler:
        return SequentialOrder(sampler.data_source)
    return None

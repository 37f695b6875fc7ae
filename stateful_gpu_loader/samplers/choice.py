"""A loader's order: the default, a given sampler's, or the one that a fingerprint describes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sized
from typing import Any

from torch.utils.data import IterableDataset, Sampler, SequentialSampler

from stateful_gpu_loader.datasets.mixture import MixedDataset
from stateful_gpu_loader.samplers.balanced import BalancedSampler
from stateful_gpu_loader.samplers.blocks import BlockOrder, Blocks
from stateful_gpu_loader.samplers.mixture import MixtureSampler
from stateful_gpu_loader.samplers.orders import (
    CallOrder,
    PositionOrder,
    SequentialOrder,
    ShuffledOrder,
)
from stateful_gpu_loader.samplers.repeated import RepeatedOrder, RepeatedSampler
from stateful_gpu_loader.samplers.resumable import OrderSampler
from stateful_gpu_loader.samplers.sharded import ShardSampler
from stateful_gpu_loader.samplers.shuffled import (
    DistributedShuffledSampler,
    ReplacementOrder,
    RoundsOrder,
    ShuffledSampler,
)
from stateful_gpu_loader.samplers.subset import SubsetOrder, SubsetSampler
from stateful_gpu_loader.samplers.weighted import WeightedSampler


class InOrderSampler(OrderSampler, SequentialSampler):
    """Yields the dataset's own order.

    Trainers call its ``set_epoch``, because augmentations depend on the epoch.

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
    """Return the order of a sampler that is addressed by position, or None.

    A subclass is unknown, because it may yield other indices.
    """
    if type(sampler) in OWN_SAMPLERS:
        own: PositionOrder = sampler.order
        return own
    if type(sampler) is SequentialSampler:
        return SequentialOrder(sampler.data_source)
    return None


_LARGEST = 10**18

_Build = Callable[[int, "re.Match[str]"], PositionOrder]

_DESCRIBED: tuple[tuple[str, _Build], ...] = (
    (r"sequential", lambda n, found: SequentialOrder(range(n))),
    (r"feistel-\d+", lambda n, found: ShuffledOrder(range(n))),
    (r"called", lambda n, found: CallOrder(n)),
    (r"rounds-1 over .*, \d+ of (\d+)", lambda n, found: RoundsOrder(_range(found[1]), n)),
    (
        r"uniform-1 with replacement, of (\d+)",
        lambda n, found: ReplacementOrder(_range(found[1]), n),
    ),
    (
        r"repeated-1 over (.*), (\d+) times (\d+), (adjacent|anywhere)",
        lambda n, found: RepeatedOrder(
            _range(found[3]),
            int(found[2]),
            num_samples=n,
            shuffle=found[1] != "sequential",
            adjacent=found[4] == "adjacent",
        ),
    ),
    (
        r"blocks-1 over .*, (\d+) each, window (\d+)",
        lambda n, found: BlockOrder(range(n), Blocks(int(found[1]), window=int(found[2]))),
    ),
    (
        r"subset-1 over (.*), range\((-?\d+), (-?\d+)(?:, (-?\d+))?\)",
        lambda n, found: SubsetOrder(
            range(int(found[2]), int(found[3]), int(found[4] or 1)),
            shuffle=found[1] != "sequential",
        ),
    ),
)

_IN_WORDS = (
    (r"sequential", "the dataset's own"),
    (r"feistel-\d+", "shuffled"),
    (r"called", "calls of your function, counted up"),
    (r"rounds-\d+ .*", "shuffled again in each round over the dataset"),
    (r"uniform-\d+ .*", "drawn with replacement"),
    (r"repeated-\d+ over sequential.*", "each sample several times"),
    (r"repeated-\d+ .*", "shuffled, each sample several times"),
    (r"blocks-\d+ .*", "shuffled in blocks"),
    (r"subset-\d+ over sequential.*", "some of the samples, in a fixed order"),
    (r"subset-\d+ .*", "some of the samples, shuffled"),
    (r"alias-\d+ .*", "drawn by weights, with replacement"),
    (r"race-\d+ .*", "drawn by weights, without replacement"),
    (r"balanced-\d+ .*", "every class equally often"),
    (r"mixture-\d+.*", "a mixture of datasets"),
    (r"shards-\d+.*", "a shard of the dataset in each epoch"),
    (r"lanes-\d+, \d+ lanes, windows .*", "shards, shuffled"),
    (r"lanes-\d+.*", "shards, one after another"),
    (r"sampler .*", "your sampler's"),
    (r"iterable", "as the iterable dataset yields"),
)


def order_in_words(algorithm: str) -> str:
    """Describe the order in a fingerprint's text in words, followed by the text.

    >>> order_in_words("feistel-1"), order_in_words("another-1")
    ('shuffled (feistel-1)', 'another-1')
    """
    words = next((words for name, words in _IN_WORDS if re.fullmatch(name, algorithm)), None)
    return algorithm if words is None else f"{words} ({algorithm})"


def order_described(algorithm: str, num_positions: int) -> PositionOrder | None:
    """Return the order that a fingerprint describes, or None if its text is not sufficient.

    A fingerprint holds only a digest of weights, classes, lists of indices, blocks of different
    lengths and the parts of a mixture.

    Args:
        algorithm: :attr:`PositionOrder.algorithm`.
        num_positions: number of samples in an epoch, all ranks together.

    >>> import numpy as np
    >>> order = order_described("repeated-1 over sequential, 2 times 5, adjacent", 10)
    >>> order.of_epoch(0, 0)(np.arange(4)).tolist()
    [0, 0, 1, 1]
    >>> order_described("alias-1 over 40:b7d9, 50 draws", 50) is None
    True
    """
    if not 0 <= num_positions < _LARGEST:
        return None
    for pattern, build in _DESCRIBED:
        found = re.fullmatch(pattern, algorithm)
        if found is not None:
            try:
                order = build(num_positions, found)
                is_same = (order.algorithm, order.num_positions) == (algorithm, num_positions)
            except (ValueError, OverflowError):  # numbers that no sampler takes
                return None
            return order if is_same else None
    return None


def _range(length: str) -> range:
    return range(int(length))

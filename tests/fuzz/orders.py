"""The orders of map-style datasets: the loader's own, this package's, torch's, the user's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from stateful_gpu_loader import ShuffledSampler, WeightedSampler
from stateful_gpu_loader.samplers import BalancedSampler, Blocks, RepeatedSampler, SubsetSampler
from tests.user_objects import (
    CountingSampler,
    LazySampler,
    OwnGeneratorSampler,
    SamplerWithStatefulIterator,
    ShufflingInPlace,
    StatefulBatchSampler,
    StatefulSampler,
)


def seven() -> torch.Generator:
    return torch.Generator().manual_seed(7)


class Lazy(LazySampler):
    """Draws its indices, and their number, only when asked."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Any:
        return (index % self.length for index in super().__iter__())


Sampler = Callable[[int], Any]
OWN: dict[str, Sampler] = {
    "shuffled": lambda n: None,
    "sequential": lambda n: None,
    "replacement": lambda n: ShuffledSampler(range(n), replacement=True, num_samples=n + 3),
    "blocks": lambda n: ShuffledSampler(range(n), locality=Blocks(3, window=2)),
    "weighted": lambda n: WeightedSampler([1.0 + i % 3 for i in range(n)], n + 2),
    "balanced": lambda n: BalancedSampler([i % 2 for i in range(n)]),
    "subset": lambda n: SubsetSampler(range(0, n, 2)),
    "repeated": lambda n: RepeatedSampler(range(n), 2),
}
"""Orders known by position: they resume in constant time, and are divided among ranks."""
SAMPLERS: dict[str, Sampler] = {
    "list": lambda n: list(range(n))[::-1],
    "torch's random": lambda n: RandomSampler(range(n)),
    "torch's random, generator": lambda n: RandomSampler(range(n), generator=seven()),
    "torch's subset": lambda n: SubsetRandomSampler(range(0, n, 2)),
    "torch's weighted": lambda n: WeightedRandomSampler([1.0] * n, n + 2, generator=seven()),
    "lazy": Lazy,
    "counting": CountingSampler,
    "own generator": lambda n: OwnGeneratorSampler(n, random.Random(5)),
    "in place": ShufflingInPlace,
    "stateful": StatefulSampler,
    "stateful iterator": SamplerWithStatefulIterator,
}
BATCH_SAMPLERS: dict[str, Sampler] = {
    "stateful batches": StatefulBatchSampler,
    "torch's batches": lambda n: BatchSampler(RandomSampler(range(n), generator=seven()), 3, False),
    "listed batches": lambda n: [[0], list(range(n)), list(range(0, n, 2))],
}
ORDERS = {**OWN, **SAMPLERS, **BATCH_SAMPLERS}

PERMUTATIONS = {"shuffled", "sequential", "blocks", "list", "torch's random", "in place"}
PERMUTATIONS |= {"torch's random, generator", "counting", "own generator"}
PERMUTATIONS |= {"stateful iterator", "torch's batches", "stateful batches"}
"""Orders with every index once an epoch (the stateful sampler: unless 7 divides the size)."""
BY_THEMSELVES = {"list", "torch's random, generator", "torch's weighted", "counting"}
BY_THEMSELVES |= {"own generator", "stateful", "stateful iterator"}
BY_THEMSELVES |= {"stateful batches", "torch's batches", "listed batches"}
"""Orders that draw from no global generator: iterated alone they give the same indices."""
STATEFUL_ORDERS = {"stateful", "stateful iterator", "stateful batches"}

"""Which ranks draw the same augmentations under a sampler or an iterable that divides itself.

Ranks of one tensor- or pipeline-parallel group work on one batch: they need the same pixels (B3).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset, Sampler

from stateful_gpu_loader import StatefulGPULoader
from tests.conformance import copy_of, same
from tests.map_datasets import Noisy
from tests.rank_processes import on_ranks

N = 12


class Divided(Sampler[int]):
    """Every so-manieth index; it says so by the names that DistributedSampler uses."""

    def __init__(self, num_replicas: int, rank: int) -> None:
        self.num_replicas, self.rank = num_replicas, rank

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.rank, N, self.num_replicas))

    def __len__(self) -> int:
        return len(range(self.rank, N, self.num_replicas))


class DividedBatches(Divided):
    def __iter__(self) -> Iterator[Any]:
        indices = list(super().__iter__())
        return (indices[place : place + 2] for place in range(0, len(indices), 2))


class DividedItems(Noisy, IterableDataset[Any]):
    def __init__(self, num_replicas: int, rank: int) -> None:
        super().__init__(N)
        self.num_replicas, self.rank = num_replicas, rank

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(self.rank, N, self.num_replicas))


def loaders_of(num_replicas: int, rank: int) -> list[StatefulGPULoader[Any]]:
    return [
        StatefulGPULoader(Noisy(N), batch_size=2, seed=5, sampler=Divided(num_replicas, rank)),
        StatefulGPULoader(Noisy(N), seed=5, batch_sampler=DividedBatches(num_replicas, rank)),
        StatefulGPULoader(DividedItems(num_replicas, rank), batch_size=2, seed=5),
    ]


def delivered(num_replicas: int, rank: int) -> list[list[Any]]:
    return [[copy_of(batch) for batch in loader] for loader in loaders_of(num_replicas, rank)]


def serve_group(rank: int, group_size: int, num_replicas: int) -> list[list[Any]]:
    return delivered(num_replicas, rank // group_size)


def test_ranks_of_one_group_see_the_same_pixels() -> None:
    """B3: four processes, in two groups of two; each as one process of that rank alone would."""
    served = on_ranks(serve_group, 4, 2, 2)
    for rank in range(4):
        assert same(served[rank], delivered(2, rank // 2)), rank
    for one, other in zip(served[0], served[2], strict=True):
        assert not same([batch["torch"] for batch in one], [batch["torch"] for batch in other])


def serve_unnamed(rank: int) -> list[Any]:
    loader = StatefulGPULoader(Noisy(N), batch_size=2, seed=5, sampler=range(N))
    return [copy_of(batch) for batch in loader]


def test_a_sampler_that_names_no_ranks_is_told_apart_by_process() -> None:
    """A5: the same index on two ranks draws differently."""
    one, other = on_ranks(serve_unnamed, 2)
    assert [batch["index"].tolist() for batch in one] == [
        batch["index"].tolist() for batch in other
    ]
    assert not any(
        same(ours["torch"], theirs["torch"]) for ours, theirs in zip(one, other, strict=True)
    )


class Whole(Divided):
    """All indices, whatever the attributes say."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(N))

    def __len__(self) -> int:
        return N


@pytest.mark.parametrize("ranks", [(1, 3), (2.5, 0), (None, None), (True, False), ("2", "0")])
def test_names_that_are_no_ranks_count_as_none(ranks: tuple[Any, Any]) -> None:
    """A1: an attribute of that name may mean something else."""
    loader = StatefulGPULoader(Noisy(N), batch_size=2, seed=5, sampler=Whole(*ranks))
    assert same([copy_of(batch) for batch in loader], delivered(1, 0)[0])


class Joining(Whole):
    """Its rank is that of a process group which does not exist yet."""

    @property
    def num_replicas(self) -> int:
        raise RuntimeError("the process group is not initialized")

    @num_replicas.setter
    def num_replicas(self, value: int) -> None: ...


def test_a_rank_that_cannot_be_told_yet_counts_as_none() -> None:
    """A1: reading it must not fail a loader that works."""
    loader = StatefulGPULoader(Noisy(N), batch_size=2, seed=5, sampler=Joining(1, 0))
    assert same([copy_of(batch) for batch in loader], delivered(1, 0)[0])

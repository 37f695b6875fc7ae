"""Subsets: given indices in keyed order or their own, without writing a range out."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import SubsetRandomSampler

from stateful_gpu_loader.randomness.permutation import Permutation
from stateful_gpu_loader.samplers import SubsetSampler

GIVEN = [4, 8, 15, 16, 23, 42, 8]


def test_it_is_a_permutation_of_the_given_indices() -> None:
    sampler = SubsetSampler(GIVEN, seed=3)
    assert isinstance(sampler, SubsetRandomSampler)
    assert len(sampler) == 7
    for epoch in range(3):
        order = Permutation(7, seed=3, epoch=epoch)(np.arange(7))
        assert list(sampler) == [GIVEN[place] for place in order]


@pytest.mark.parametrize(
    "indices",
    [
        GIVEN,
        tuple(GIVEN),
        np.array(GIVEN),
        np.array(GIVEN, dtype=np.uint8),
        np.array(GIVEN, dtype=">i4"),
        np.repeat(GIVEN, 2)[::2],
        torch.tensor(GIVEN),
    ],
)
def test_indices_are_of_any_kind_and_the_same_order(indices: Any) -> None:
    sampler, expected = SubsetSampler(indices, seed=3), SubsetSampler(GIVEN, seed=3)
    assert sampler.order.algorithm == expected.order.algorithm
    drawn = list(sampler)
    assert drawn == list(expected)
    assert {type(index) for index in drawn} == {int}


def test_without_shuffling_they_keep_their_order() -> None:
    sampler = SubsetSampler(GIVEN, shuffle=False)
    assert list(sampler) == list(sampler) == GIVEN
    assert not sampler.order.is_shuffled
    assert list(SubsetSampler(range(20, 3, -4), shuffle=False)) == [20, 16, 12, 8, 4]


def test_a_range_is_the_order_of_the_list_that_it_stands_for() -> None:
    for indices in (range(5, 50, 3), range(50, 5, -7), range(3), range(0)):
        assert list(SubsetSampler(indices, seed=2)) == list(SubsetSampler([*indices], seed=2))


def test_an_array_on_disk_is_not_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "indices.npy", np.arange(10**6)[::-1])
    indices = np.load(tmp_path / "indices.npy", mmap_mode="r")
    tracemalloc.start()
    try:
        order = SubsetSampler(indices, shuffle=False).order.of_epoch(0, 0)
        drawn = order(np.array([0, 10**6 - 1])).tolist()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert drawn == [10**6 - 1, 0]
    assert peak < 2**20


def test_an_empty_subset_is_a_subset() -> None:
    for nothing in ([], range(0), np.array([], dtype=np.int64)):
        assert list(SubsetSampler(nothing)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([3, -1], "-1"),
        (range(3, -5, -2), "-3"),
        (range(-2, 3), "-2"),
        ([True, False], "dtype bool.*flatnonzero"),
        ([0.5], "dtype float64"),
        ([[1]], r"shape \(1, 1\)"),
        (np.array([2**63], dtype=np.uint64), "9223372036854775808"),
    ],
)
def test_impossible_indices_are_refused(indices: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"{message}"):
        SubsetSampler(indices)


def test_golden_subset() -> None:
    assert list(SubsetSampler(GIVEN, seed=42)) == GOLDEN


GOLDEN = [8, 15, 42, 23, 4, 8, 16]

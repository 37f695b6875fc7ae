"""Balanced classes: exact in every prefix, and fair to each sample."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stateful_gpu_loader.samplers import BalancedSampler
from tests.samplers.statistics import assert_uniform


def order_of(targets: Any, num_samples: int, *, seed: int = 1, epoch: int = 0) -> Any:
    sampler = BalancedSampler(targets, num_samples, seed=seed)
    return sampler.order.of_epoch(seed, epoch)(np.arange(num_samples))


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    num_samples=st.integers(1, 200),
    epoch=st.integers(0, 3),
)
def test_every_prefix_is_balanced_to_within_one(
    sizes: list[int], num_samples: int, epoch: int
) -> None:
    targets = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    drawn = order_of(targets, num_samples, epoch=epoch)
    seen = np.zeros(len(sizes))
    for target in targets[drawn]:
        seen[target] += 1
        assert seen.max() - seen.min() <= 1


@settings(deadline=None, max_examples=40)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_a_class_is_used_up_before_any_of_it_comes_again(sizes: list[int]) -> None:
    targets = np.repeat(np.arange(len(sizes)), sizes)
    drawn = order_of(targets, 25 * len(sizes))
    for label, size in enumerate(sizes):
        members = [index for index in drawn.tolist() if targets[index] == label]
        assert len(members) == 25
        for start in range(0, 25, size):
            part = members[start : start + size]
            assert len(set(part)) == len(part)
        assert set(members) <= set(np.flatnonzero(targets == label).tolist())


def test_the_order_of_classes_in_a_block_is_uniform_and_its_own() -> None:
    targets = np.arange(3)
    blocks = targets[order_of(targets, 3 * 3000)].reshape(-1, 3)
    places = {order: i for i, order in enumerate(permutations(range(3)))}
    seen = np.array([places[tuple(block)] for block in blocks.tolist()])
    assert_uniform(np.bincount(seen, minlength=6))
    assert_uniform(np.bincount(seen[:-1] * 6 + seen[1:], minlength=36))


def test_rounds_and_classes_are_shuffled_independently() -> None:
    drawn = order_of(np.repeat([0, 1], 3), 2 * 3 * 3000)
    of_class = [drawn[drawn // 3 == label] % 3 for label in (0, 1)]
    starts = [members[::3] for members in of_class]
    assert_uniform(np.bincount(starts[0] * 3 + starts[1], minlength=9))
    assert_uniform(np.bincount(starts[0][:-1] * 3 + starts[0][1:], minlength=9))


@pytest.mark.fuzz
def test_a_large_class_is_seen_whole_over_epochs() -> None:
    """Each epoch shows another random part of it."""
    targets = np.repeat([0, 1], [60, 3])
    counts = np.zeros(60)
    for epoch in range(300):
        drawn = order_of(targets, 20, epoch=epoch)
        counts[drawn[drawn < 60]] += 1
    assert_uniform(counts)


def test_targets_are_of_any_kind_and_an_epoch_as_long_as_they_are() -> None:
    names = ["cat", "dog", "cat", "cat", "eel"]
    numbers = [0, 1, 0, 0, 2]
    expected = list(BalancedSampler(numbers, seed=3))
    assert len(BalancedSampler(numbers)) == len(expected) == 5
    for targets in (names, np.array(numbers), torch.tensor(numbers), tuple(names)):
        assert list(BalancedSampler(targets, seed=3)) == expected  # type: ignore[arg-type]


def test_the_bound_is_that_of_the_classes_not_of_the_samples() -> None:
    drawn = order_of(np.repeat(np.arange(1000), 3), 5500)
    counts = Counter((drawn // 3).tolist())
    assert set(counts.values()) == {5, 6}


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([], r"shape \(0,\)"),
        ([[0, 1]], r"shape \(1, 2\)"),
        ([0.5, 1.0], "dtype float64"),
        (np.arange((1 << 16) + 1), "65537 .*65536"),
    ],
)
def test_impossible_targets_are_refused(targets: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"{message}.*Remedy"):
        BalancedSampler(targets)


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"num_samples = 0 .*Remedy"):
        BalancedSampler([0, 1], 0)
    with pytest.raises(TypeError, match=r"num_samples=1\.5"):
        BalancedSampler([0, 1], 1.5)  # type: ignore[arg-type]


def test_golden_balanced_order() -> None:
    assert order_of([0, 0, 0, 0, 1, 2, 2], 14, seed=42, epoch=3).tolist() == GOLDEN


GOLDEN = [4, 6, 3, 4, 0, 5, 2, 4, 5, 1, 6, 4, 4, 6]

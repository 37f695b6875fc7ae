"""ShuffledSampler's arguments of torch's RandomSampler: num_samples, replacement, generator."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from torch.utils.data import RandomSampler

from stateful_gpu_loader.samplers import ShuffledSampler
from tests.map_datasets import Indices
from tests.samplers.statistics import assert_same_distribution, assert_uniform


def order_of(n: int, epoch: int = 0, **arguments: Any) -> Any:
    order = ShuffledSampler(Indices(n), seed=5, **arguments).order.of_epoch(5, epoch)
    return order(np.arange(order.n))


@pytest.mark.parametrize("num_samples", [1, 9, 10, 11, 20, 37])
def test_after_the_dataset_ends_it_is_repeated_in_another_order(num_samples: int) -> None:
    """RandomSampler does the same: it continues with another permutation."""
    drawn = order_of(10, num_samples=num_samples).tolist()
    assert len(drawn) == num_samples == len(ShuffledSampler(Indices(10), num_samples=num_samples))
    rounds = [drawn[start : start + 10] for start in range(0, num_samples, 10)]
    assert all(len(set(part)) == len(part) for part in rounds)
    assert len(set(map(tuple, rounds))) == len(rounds)
    theirs = Counter(RandomSampler(Indices(10), num_samples=num_samples))
    assert sorted(Counter(drawn).values()) == sorted(theirs.values())


def test_every_order_of_a_round_is_equally_frequent() -> None:
    drawn = order_of(3, num_samples=3 * 3000).reshape(-1, 3)
    places = {order: i for i, order in enumerate(permutations(range(3)))}
    seen = np.array([places[tuple(part)] for part in drawn.tolist()])
    assert_uniform(np.bincount(seen, minlength=6))
    assert_uniform(np.bincount(seen[:-1] * 6 + seen[1:], minlength=36))


@pytest.mark.fuzz
def test_a_part_of_the_dataset_is_another_part_in_each_epoch() -> None:
    counts = sum(
        np.bincount(order_of(20, epoch, num_samples=7), minlength=20) for epoch in range(400)
    )
    assert_uniform(counts)


def test_draws_with_replacement_are_uniform_and_independent_as_torchs() -> None:
    drawn = order_of(9, replacement=True, num_samples=20_000)
    assert_uniform(np.bincount(drawn, minlength=9))
    assert_uniform(np.bincount(drawn[:-1] * 9 + drawn[1:], minlength=81))
    later = order_of(9, 1, replacement=True, num_samples=20_000)
    assert_uniform(np.bincount(drawn * 9 + later, minlength=81))
    repeats = [len(set(order_of(9, epoch, replacement=True))) for epoch in range(1500)]
    theirs = [len(set(RandomSampler(Indices(9), replacement=True))) for _ in range(1500)]
    assert_same_distribution(np.bincount(repeats, minlength=10), np.bincount(theirs, minlength=10))


def test_without_num_samples_an_epoch_is_as_long_as_the_dataset_is_now() -> None:
    dataset = Indices(10)
    for arguments in ({}, {"replacement": True}):
        dataset.length = 10
        sampler = ShuffledSampler(dataset, seed=1, **arguments)
        assert (len(sampler), sampler.order.num_positions) == (10, 10)
        dataset.length = 15
        assert (len(sampler), sampler.order.num_positions) == (15, 15)


def test_it_is_torchs_random_sampler_with_its_arguments() -> None:
    sampler = ShuffledSampler(Indices(10), True, 7, None, seed=1)
    assert isinstance(sampler, RandomSampler)
    assert (sampler.replacement, sampler.num_samples, len(list(sampler))) == (True, 7, 7)
    for bad in ({"num_samples": 0}, {"num_samples": -2}):
        with pytest.raises(ValueError, match="num_samples"):
            ShuffledSampler(Indices(10), **bad)
    with pytest.raises(TypeError, match="num_samples"):
        ShuffledSampler(Indices(10), num_samples=2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="replacement"):
        ShuffledSampler(Indices(10), replacement=1)  # type: ignore[arg-type]


def test_golden_orders() -> None:
    assert order_of(5, 3, num_samples=12).tolist() == GOLDEN_ROUNDS
    assert order_of(10**12, 3, replacement=True, num_samples=3).tolist() == GOLDEN_DRAWS


GOLDEN_ROUNDS = [4, 1, 0, 2, 3, 1, 3, 2, 0, 4, 4, 1]
GOLDEN_DRAWS = [479208422834, 739573501031, 439012587948]

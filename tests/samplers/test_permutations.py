"""Many permutations at once: each is what order.Permutation would be, and apart from the others."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest

from stateful_gpu_loader.randomness.permutation import Permutation
from stateful_gpu_loader.randomness.philox import Stream
from stateful_gpu_loader.samplers.permutations import permuted
from tests.samplers.statistics import assert_uniform


def whole(lengths: list[int], *, seed: int, epoch: int = 0) -> list[list[int]]:
    """Permutation i of range(lengths[i]), for all i in one call."""
    values = np.concatenate([np.arange(n) for n in lengths])
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    drawn = permuted(values, np.repeat(lengths, lengths), seed=seed, epoch=epoch, numbers=numbers)
    return [part.tolist() for part in np.split(drawn, np.cumsum(lengths)[:-1])]


@pytest.mark.parametrize("n", [*range(1, 60), 100, 1000, 10**6, 2**53 + 1, 2**63 - 1])
def test_it_is_the_permutation_of_the_order_module(n: int) -> None:
    values = np.array(sorted({0, 1 % n, n // 2, n - 1}))
    drawn = permuted(values, n, seed=-5, epoch=7, numbers=n, stream=Stream.ORDER)
    assert drawn.tolist() == Permutation(n, seed=-5, epoch=7)(values).tolist()


def test_each_number_has_a_permutation_of_its_own_and_its_own_length() -> None:
    lengths = [5, 1, 300, 5, 17, 5000, 2, 300]
    drawn = whole(lengths, seed=3)
    for n, values in zip(lengths, drawn, strict=True):
        assert sorted(values) == list(range(n))
    assert drawn[2] != drawn[7]
    assert whole(lengths, seed=4)[2] != drawn[2]
    assert whole(lengths, seed=3, epoch=1)[2] != drawn[2]


def test_a_value_does_not_depend_on_what_is_asked_for_beside_it() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.integers(50, size=400)
    lengths = 1 + numbers * 7 % 40
    values = rng.integers(lengths)
    together = permuted(values, lengths, seed=1, epoch=2, numbers=numbers)
    for i in range(0, 400, 7):
        one = slice(i, i + 1)
        alone = permuted(values[one], lengths[one], seed=1, epoch=2, numbers=numbers[one])
        assert alone == together[one]


@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_order_is_equally_frequent_over_numbers(n: int) -> None:
    num_orders = math.factorial(n)
    drawn = whole([n] * 60 * num_orders, seed=11)
    places = {order: i for i, order in enumerate(permutations(range(n)))}
    assert_uniform(np.bincount([places[tuple(order)] for order in drawn], minlength=num_orders))


def test_neighbouring_numbers_are_independent() -> None:
    drawn = np.array(whole([6] * 4001, seed=12))
    assert_uniform(np.bincount(drawn[:-1, 0] * 6 + drawn[1:, 0], minlength=36))


def test_nothing_is_asked_for() -> None:
    empty = np.empty(0, dtype=np.int64)
    assert permuted(empty, empty, seed=0, epoch=0, numbers=empty).shape == (0,)


@pytest.mark.parametrize("value", [-1, 4, 2**63 - 1])
def test_a_value_outside_its_range_is_refused(value: int) -> None:
    values, lengths = np.array([8, value]), np.array([9, 4])
    with pytest.raises(IndexError, match=rf"value {value} is outside range\(4\).*Remedy"):
        permuted(values, lengths, seed=0, epoch=0, numbers=[0, 1])


def test_golden_permutations() -> None:
    """B8"""
    assert whole([3, 3, 5, 9], seed=42) == GOLDEN


GOLDEN = [[2, 0, 1], [0, 1, 2], [0, 3, 1, 2, 4], [6, 5, 0, 8, 2, 3, 7, 1, 4]]

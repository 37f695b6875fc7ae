"""Keyed integers and permutations of parts, at any position."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from stateful_gpu_loader.randomness.permutation import (
    Permutation,
    distinct_of,
    permutations_of_seeds,
    permuted,
)
from stateful_gpu_loader.randomness.philox import Stream, below, words, words_of_64
from tests.samplers.statistics import assert_uniform


@pytest.mark.parametrize("end", [1, 2, 3, 10, 2**32 - 1, 2**32, 2**32 + 1, 10**18, 2**63])
def test_below_is_the_upper_half_of_the_product(end: int) -> None:
    drawn = np.random.default_rng(0).integers(2**64, size=500, dtype=np.uint64)
    drawn[:4] = 0, 2**64 - 1, 2**63, 2**32 - 1
    found = below(drawn, end)
    assert found.dtype == np.int64
    assert found.tolist() == [word * end >> 64 for word in drawn.tolist()]


def test_words_of_64_bits_join_two_words_of_32() -> None:
    positions = np.array([3, 10**12])
    halves = words(5, 6, positions, Stream.WEIGHTED, 4).tolist()
    joined = words_of_64(5, 6, positions, Stream.WEIGHTED, 2).tolist()
    assert joined == [[row[0] << 32 | row[1], row[2] << 32 | row[3]] for row in halves]


def whole(lengths: list[int], *, seed: int, epoch: int = 0) -> list[list[int]]:
    """Return permutation i of range(lengths[i]), for all i in one call."""
    values = np.concatenate([np.arange(n) for n in lengths])
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    drawn = permuted(values, np.repeat(lengths, lengths), seed=seed, epoch=epoch, numbers=numbers)
    return [part.tolist() for part in np.split(drawn, np.cumsum(lengths)[:-1])]


def test_it_is_the_permutation_of_the_order_module() -> None:
    for n in (*range(1, 60), 100, 1000, 10**6, 2**53 + 1, 2**63 - 1):
        values = np.array(sorted({0, 1 % n, n // 2, n - 1}))
        drawn = permuted(values, n, seed=-5, epoch=7, numbers=n, stream=Stream.ORDER)
        assert drawn.tolist() == Permutation(n, seed=-5, epoch=7)(values).tolist(), n


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


def test_every_order_is_equally_frequent_over_numbers() -> None:
    drawn = whole([4] * 60 * 24, seed=11)
    places = {order: i for i, order in enumerate(permutations(range(4)))}
    assert_uniform(np.bincount([places[tuple(order)] for order in drawn], minlength=24))


def test_neighbouring_numbers_are_independent() -> None:
    drawn = np.array(whole([6] * 4001, seed=12))
    assert_uniform(np.bincount(drawn[:-1, 0] * 6 + drawn[1:, 0], minlength=36))


def test_nothing_is_asked_for() -> None:
    empty = np.empty(0, dtype=np.int64)
    assert permuted(empty, empty, seed=0, epoch=0, numbers=empty).shape == (0,)


@pytest.mark.parametrize("value", [-1, 4, 2**63 - 1])
def test_a_value_outside_its_range_is_refused(value: int) -> None:
    values, lengths = np.array([8, value]), np.array([9, 4])
    with pytest.raises(IndexError, match=rf"{value} .*range\(4\)"):
        permuted(values, lengths, seed=0, epoch=0, numbers=[0, 1])


def test_golden_permutations() -> None:
    assert whole([3, 3, 5, 9], seed=42) == GOLDEN


GOLDEN = [[2, 0, 1], [0, 1, 2], [0, 3, 1, 2, 4], [6, 5, 0, 8, 2, 3, 7, 1, 4]]


@pytest.mark.parametrize("n", [1, 2, 3, 10, 5000])
def test_permutations_of_many_seeds_are_those_of_each(n: int) -> None:
    seeds = [0, 1, 2**63, 2**64 - 1, 42]
    found = permutations_of_seeds(n, seeds)
    assert found.dtype == np.int64
    for row, seed in zip(found, seeds, strict=True):
        assert np.array_equal(row, Permutation(n, seed=seed, epoch=0)(np.arange(n)))


@pytest.mark.parametrize("values", [[], [3], [1, 1, 4, 4, 9], [5, 2, 5, 1]])
def test_distinct_values_are_found_in_order_or_not(values: list[int]) -> None:
    distinct, which = distinct_of(np.array(values, dtype=np.int64))
    assert distinct.tolist() == sorted(set(values))
    assert distinct[which].tolist() == values

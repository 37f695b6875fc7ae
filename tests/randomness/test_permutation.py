"""The permutation: a bijection, uniform, neighbours independent, and never changed."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations, permutations

import numpy as np
import pytest
from scipy import stats

from stateful_gpu_loader.randomness.permutation import (
    ALGORITHM,
    VERSION,
    Permutation,
    permutations_of_seeds,
)
from stateful_gpu_loader.randomness.philox import Stream, words

LEAST_PROBABILITY = 1e-4
HUGE = [10**9, 10**12 + 39, 2**53 + 1, 2**62, 2**63 - 1]


def order(n, seed, epoch=0):
    return Permutation(n, seed=seed, epoch=epoch)(np.arange(n))


@lru_cache
def orders(n, num_seeds):
    """Return int64 [num_seeds, n]."""
    return permutations_of_seeds(n, list(range(num_seeds)))


def assert_plausible(probabilities):
    """Check that none of several tests is too improbable for uniform orders (Bonferroni)."""
    assert min(probabilities) * len(probabilities) > LEAST_PROBABILITY


def probability_of_bins(values, n, num_bins):
    """Return the probability of a histogram this uneven, for values uniform in range(n)."""
    edges = np.arange(n) * num_bins // n
    expected = np.bincount(edges) / n * len(values)
    return stats.chisquare(np.bincount(edges[values], minlength=num_bins), expected).pvalue


def assert_poisson(count, mean):
    assert abs(count - mean) < 5 * math.sqrt(mean)


def test_every_index_comes_exactly_once():
    """For every small length, and around squares and powers of 2, where the network changes."""
    around = [side**2 + off for side in (31, 32, 255, 256) for off in (-1, 0, 1)]
    around += [2**k + off for k in range(9, 18) for off in (-1, 0, 1)]
    for n in (*range(1, 301), 997, 7919, *around, 10**6):
        assert (np.bincount(order(n, seed=n, epoch=n % 2), minlength=n) == 1).all(), n


@pytest.mark.parametrize("n", [1, 2, 5, 9, 1000, 10**6, *HUGE])
def test_inverse_gives_the_position_back(n):
    """A map of range(n) into itself that has an inverse is a bijection."""
    permutation = Permutation(n, seed=5, epoch=6)
    elements = np.random.default_rng(0).integers(n, size=2000)
    elements[:3] = 0, n - 1, n // 2
    for first, second in (
        (permutation, permutation.inverse),
        (permutation.inverse, permutation),
    ):
        images = first(elements)
        assert images.dtype == np.int64
        assert images.min() >= 0
        assert images.max() < n
        assert (second(images) == elements).all()


def test_an_index_does_not_depend_on_the_block_it_is_asked_in():
    """Resuming at any position gives the uninterrupted run's indices."""
    permutation = Permutation(1001, seed=1, epoch=2)
    whole = permutation(np.arange(1001))
    for start in range(0, 1001, 7):
        assert (permutation(np.arange(start, 1001)) == whole[start:]).all()
    assert (permutation(np.arange(1000).reshape(10, 100)) == whole[:1000].reshape(10, 100)).all()
    assert permutation(np.array(17)).shape == ()
    assert permutation(np.array(17)) == whole[17]
    assert permutation(np.arange(0)).shape == (0,)


def test_positions_may_have_any_integer_type():
    permutation = Permutation(100, seed=1, epoch=2)
    for dtype in (np.uint8, np.int32, np.uint64):
        assert (permutation(np.arange(100, dtype=dtype)) == order(100, 1, 2)).all()


@pytest.mark.fuzz
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_every_order_of_a_tiny_dataset_is_equally_frequent(n):
    drawn = orders(n, num_seeds=30 * math.factorial(n))
    counts = dict.fromkeys(permutations(range(n)), 0)
    for row in drawn.tolist():
        counts[tuple(row)] += 1
    assert stats.chisquare(list(counts.values())).pvalue > LEAST_PROBABILITY


@pytest.mark.fuzz
@pytest.mark.parametrize("n", [3, 7, 10, 16, 25, 30])
def test_each_position_holds_every_index_equally_often(n):
    drawn = orders(n, num_seeds=1000)
    counts = [np.bincount(drawn[:, position], minlength=n) for position in range(n)]
    assert_plausible([stats.chisquare(count).pvalue for count in counts])


@pytest.mark.fuzz
@pytest.mark.parametrize("n", [100, 289, 1000])
def test_each_position_of_a_larger_dataset_holds_every_region_equally_often(n):
    drawn = orders(n, num_seeds=1500)
    assert_plausible([probability_of_bins(drawn[:, position], n, 20) for position in range(n)])


@pytest.mark.fuzz
@pytest.mark.parametrize("n", [4, 6, 9, 12])
def test_each_pair_of_positions_holds_every_pair_of_indices_equally_often(n):
    drawn = orders(n, num_seeds=2000)
    different = ~np.eye(n, dtype=bool)
    probabilities = []
    for i, j in combinations(range(n), 2):
        counts = np.bincount(drawn[:, i] * n + drawn[:, j], minlength=n * n).reshape(n, n)
        probabilities.append(stats.chisquare(counts[different]).pvalue)
    assert_plausible(probabilities)


@pytest.mark.parametrize("n", [900, 10_000])
def test_no_distance_between_positions_returns_as_a_distance_between_indices(n):
    """In a lattice-like order they would. At each distance, differences are about Poisson(1).

    P(Poisson(1) > 14) is 3e-13, and n * 3 * sqrt(n) differences are counted.
    """
    for seed in range(3):
        drawn = order(n, seed)
        for distance in range(1, 3 * math.isqrt(n)):
            differences = (drawn[distance:] - drawn[:-distance]) % n
            assert np.bincount(differences).max() <= 14


@pytest.mark.fuzz
def test_half_of_all_orders_are_odd():
    """With both sides of the network odd, no order of 9, 25, 49 or 81 elements is odd."""
    num_seeds, probabilities = 120, []
    for n in range(2, 101):
        drawn = orders(n, num_seeds).astype(np.int8)
        earlier, later = np.triu_indices(n, 1)
        inversions = (drawn[:, earlier] > drawn[:, later]).sum(axis=1)
        num_odd = int((inversions % 2).sum())
        probabilities.append(stats.binomtest(num_odd, num_seeds).pvalue)
    assert_plausible(probabilities)


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("one", "other"),
    [((0, 0), (1, 0)), ((0, 0), (0, 1)), ((0, 1), (1, 0)), ((0, 0), (2**32, 0))],
    ids=["next seed", "next epoch", "next seed against next epoch", "upper half of the seed"],
)
def test_neighbouring_keys_share_nothing(one, other):
    """Two independent orders of n agree at about Poisson(1) positions, whatever n."""
    n, num_seeds = 1000, 300
    agreements = correlation = 0.0
    for seed in range(num_seeds):
        first = order(n, seed + one[0], one[1])
        second = order(n, seed + other[0], other[1])
        agreements += (first == second).sum()
        correlation += np.corrcoef(first, second)[0, 1]
    assert_poisson(agreements, num_seeds)
    assert abs(correlation / num_seeds) < 5 / math.sqrt(n * num_seeds)


def test_orders_of_neighbouring_lengths_share_nothing():
    agreements = sum((order(1000, seed) == order(1001, seed)[:1000]).sum() for seed in range(300))
    assert_poisson(agreements, 300)


@pytest.mark.parametrize("n", HUGE)
def test_indices_of_a_huge_dataset_are_uniform(n):
    """In their leading and trailing digits, for neighbouring positions."""
    for start in (0, n // 2, n - 10_000):
        indices = Permutation(n, seed=9, epoch=1)(np.arange(start, start + 10_000))
        assert len(np.unique(indices)) == 10_000
        leading = np.bincount(indices // -(-n // 64), minlength=64)
        trailing = np.bincount(indices % 61, minlength=61)
        steps = np.bincount(np.diff(indices) % n // -(-n // 64), minlength=64)
        assert_plausible([stats.chisquare(count).pvalue for count in (leading, trailing, steps)])


def test_seeds_are_64_bits():
    assert (order(100, -1) == order(100, 2**64 - 1)).all()
    assert (order(100, -(2**63)) == order(100, 2**63)).all()
    assert (order(100, 2**63) != order(100, 0)).any()


@pytest.mark.parametrize(
    ("n", "seed", "epoch", "indices"),
    [
        (1, 42, 0, [0]),
        (2, 42, 0, [0, 1]),
        (5, 42, 0, [1, 0, 4, 3, 2]),
        (9, 42, 0, [4, 8, 2, 3, 0, 6, 5, 7]),
        (10, 42, 0, [4, 0, 8, 6, 3, 5, 2, 7]),
        (100, 42, 0, [87, 28, 32, 65, 96, 21, 37, 99]),
        (1000, 42, 0, [16, 472, 98, 10, 95, 495, 498, 826]),
        (1_281_167, 42, 0, [539683, 300479, 233412, 115430, 256376, 51852]),
        (1_281_167, 42, 1, [853895, 923708, 1243010]),
        (1_281_167, 2**64 - 1, 2**32 - 1, [314000, 263631, 321197]),
        (10**9, 42, 0, [489494834, 219265479, 363880738, 627565491]),
        (10**12 + 39, 42, 0, [413665904894, 188667492682, 740781634045]),
        (2**63 - 1, 42, 0, [6641715534849115857, 1924470991628886770]),
    ],
)
def test_golden_order(n, seed, epoch, indices):
    """A change of these must raise VERSION; states of the old version are refused."""
    assert (ALGORITHM, VERSION) == ("feistel", 1)
    drawn = Permutation(n, seed=seed, epoch=epoch)(np.arange(len(indices)))
    assert drawn.tolist() == indices


@pytest.mark.parametrize("n", [2, 9, 100, 5000, *HUGE])
def test_arithmetic_in_64_bits_equals_that_of_unbounded_integers(n):
    num_rows = max(2, (math.isqrt(n) + 1) // 2 * 2)
    num_columns = -(-n // num_rows)
    num_rounds = 8
    while min(num_rows, max(2, num_columns)) ** (num_rounds // 2) < 2**24:
        num_rounds += 2
    halves = words(7, 11, [n], Stream.ORDER, 2 * num_rounds)[0].tolist()
    keys = [high << 32 | low for high, low in zip(halves[::2], halves[1::2], strict=True)]

    def hashed(side, key, end):
        mixed = (side + key) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ mixed >> 32) * 0x94D049BB133111EB % 2**64
        return (mixed >> 32) * end >> 32

    def encrypted(value):
        row, column = divmod(value, num_columns)
        for row_key, column_key in zip(keys[::2], keys[1::2], strict=True):
            row = (row + hashed(column, row_key, num_rows)) % num_rows
            column = (column + hashed(row, column_key, num_columns)) % num_columns
        value = row * num_columns + column
        return value if value < n else encrypted(value)

    positions = sorted({0, 1, n // 3, n // 2, n - 2, n - 1})
    drawn = Permutation(n, seed=7, epoch=11)(np.array(positions))
    assert drawn.tolist() == [encrypted(position) for position in positions]


def test_repr_names_the_key():
    assert repr(Permutation(7, seed=-1, epoch=3)) == "Permutation(7, seed=-1, epoch=3)"


@pytest.mark.parametrize("n", [0, -1, 2**63])
def test_impossible_length_is_refused(n):
    with pytest.raises(ValueError, match=rf"n = {n} .*Remedy"):
        Permutation(n, seed=0, epoch=0)


@pytest.mark.parametrize("key", [{"seed": 2**64, "epoch": 0}, {"seed": 0, "epoch": -1}])
def test_impossible_key_is_refused(key):
    with pytest.raises(ValueError, match="Remedy"):
        Permutation(10, **key)


@pytest.mark.parametrize("element", [-1, 10, 2**63 - 1])
def test_element_outside_the_range_is_refused(element):
    permutation = Permutation(10, seed=0, epoch=0)
    with pytest.raises(IndexError, match=rf"position .*range\(10\).*{element}"):
        permutation(np.array([0, element]))
    with pytest.raises(IndexError, match=rf"index .*range\(10\).*{element}"):
        permutation.inverse(np.array([0, element]))


def test_fractional_positions_are_refused():
    with pytest.raises(TypeError, match=r"float64.*Remedy"):
        Permutation(10, seed=0, epoch=0)(np.array([0.0]))

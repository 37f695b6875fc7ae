"""Weighted draws with and without replacement: torch's distributions, by position."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.utils.data import WeightedRandomSampler

from stateful_gpu_loader.randomness.philox import Stream, words_of_64
from stateful_gpu_loader.samplers import WeightedSampler
from stateful_gpu_loader.samplers.weighted import AliasOrder, AliasTable, RaceOrder, exponentials
from tests.samplers.statistics import (
    LEAST_PROBABILITY,
    assert_proportional,
    assert_same_distribution,
)


def probabilities(table: AliasTable) -> list[Fraction]:
    """Return exactly the probabilities that a table draws with, for uniform words."""
    n = len(table.aliases)
    mass = [Fraction(0)] * n
    for column, (threshold, alias) in enumerate(
        zip(table.thresholds.tolist(), table.aliases.tolist(), strict=True)
    ):
        kept = Fraction(threshold, 2**64)
        mass[column] += kept
        mass[alias] += 1 - kept
    return [each / n for each in mass]


def assert_as_weighted(weights: npt.NDArray[np.float64]) -> None:
    exact = [Fraction(weight) for weight in weights.tolist()]
    n, total = len(exact), sum(exact)
    for found, weight in zip(probabilities(AliasTable.of(weights)), exact, strict=True):
        wanted = weight / total
        assert abs(found - wanted) <= wanted * n * Fraction(1, 2**45) + Fraction(1, 2**64)
        if weight == 0:
            assert found == 0


positive = st.floats(min_value=1e-300, max_value=1e300)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(st.just(0.0), st.floats(0, 1), positive), min_size=1, max_size=40))
def test_probabilities_are_the_weights(weights: list[float]) -> None:
    if any(weights):
        assert_as_weighted(np.array(weights))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 10, 49, 1000, 1023])
def test_equal_weights_are_equal_probabilities(n: int) -> None:
    """Their mean is often off by rounding, and all of them may lie below it."""
    for weight in (1.0, 0.1, 1 / 3, 5e-324, 1.7e308):
        assert_as_weighted(np.full(n, weight))


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(2))
def test_probabilities_of_thousands_of_uneven_weights_are_the_weights(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.pareto(0.7, size=4000) * (rng.random(4000) < 0.8)
    weights[:100] = 0
    assert_as_weighted(rng.permutation(weights))
    assert_as_weighted(np.sort(weights))
    assert_as_weighted(np.sort(weights)[::-1].copy())


def test_the_table_is_built_at_the_first_draw_and_not_pickled() -> None:
    """Nothing is drawn before the first sample, and workers get only what they need."""
    order = AliasOrder(np.random.default_rng(0).random(10_000), 50)
    unused = pickle.dumps(order)
    positions = np.arange(50)
    drawn = order.of_epoch(3, 1)(positions)
    assert order.table is order.table
    assert len(pickle.dumps(order)) == len(unused) < 82_000
    again = pickle.loads(pickle.dumps(order))
    assert (again.of_epoch(3, 1)(positions) == drawn).all()
    assert again.algorithm == order.algorithm


UNEVEN = np.array([5, 0, 1, 0.25, 3, 0, 0.75, 2])


def drawn_of(weights: Any, num_samples: int, epoch: int = 0, **arguments: Any) -> Any:
    sampler = WeightedSampler(weights, num_samples, seed=7, **arguments)
    return sampler.order.of_epoch(7, epoch)(np.arange(num_samples))


def test_draws_with_replacement_are_in_proportion_and_as_torchs() -> None:
    ours = np.bincount(drawn_of(UNEVEN, 50_000), minlength=8)
    assert_proportional(ours, UNEVEN)
    generator = torch.Generator().manual_seed(1)
    theirs = np.array([*WeightedRandomSampler(UNEVEN, 50_000, generator=generator)])
    assert_same_distribution(ours, np.bincount(theirs, minlength=8))


@pytest.mark.fuzz
def test_draws_of_many_epochs_are_in_proportion() -> None:
    weights = np.random.default_rng(0).pareto(1, size=300)
    counts = sum(np.bincount(drawn_of(weights, 500, epoch), minlength=300) for epoch in range(100))
    assert_proportional(counts, weights)


def test_draws_of_neighbouring_positions_and_epochs_are_independent() -> None:
    pairs = np.outer(UNEVEN, UNEVEN).ravel()
    here, there = drawn_of(UNEVEN, 30_000), drawn_of(UNEVEN, 30_000, epoch=1)
    assert_proportional(np.bincount(here[:-1] * 8 + here[1:], minlength=64), pairs)
    assert_proportional(np.bincount(here * 8 + there, minlength=64), pairs)


@pytest.mark.parametrize("rare", [1e-4, 1e-3])
def test_rare_indices_are_drawn_as_rarely_as_their_weight_says(rare: float) -> None:
    counts = np.bincount(drawn_of([1.0, 0.0, rare], 500_000), minlength=3)
    assert_proportional(counts, [1.0, 0.0, rare])


def test_weights_of_any_size_are_weights() -> None:
    assert set(drawn_of([1e-300, 1e300, 0, 5e-324], 2000)) == {1}
    assert drawn_of([1e-300, 1e300, 0, 5e-324], 3, replacement=False).tolist() == [1, 0, 3]
    assert set(drawn_of([1.7e308] * 3, 100)) == {0, 1, 2}


@pytest.mark.fuzz
def test_draws_without_replacement_have_torchs_distribution() -> None:
    """The next is drawn in proportion to its weight among the rest: all pairs of the first two."""
    weights, epochs = np.array([4, 1, 0, 2, 3.0]), 3000
    drawn = np.array([drawn_of(weights, 4, epoch, replacement=False) for epoch in range(epochs)])
    pairs = np.bincount(drawn[:, 0] * 5 + drawn[:, 1], minlength=25)
    share = weights / weights.sum()
    expected = share[:, None] * share / (1 - share[:, None])
    np.fill_diagonal(expected, 0)
    assert_proportional(pairs, expected.ravel())
    generator = torch.Generator().manual_seed(1)
    rows = torch.from_numpy(weights).expand(epochs, 5)
    theirs = torch.multinomial(rows, 4, replacement=False, generator=generator).numpy()
    assert_same_distribution(pairs, np.bincount(theirs[:, 0] * 5 + theirs[:, 1], minlength=25))


@pytest.mark.fuzz
def test_sets_drawn_without_replacement_are_as_torchs() -> None:
    """Half of 100 uneven weights: how often each is drawn, and their total weight."""
    weights, epochs = np.random.default_rng(3).pareto(1, size=100), 800
    ours = np.array([drawn_of(weights, 50, epoch, replacement=False) for epoch in range(epochs)])
    generator = torch.Generator().manual_seed(4)
    rows = torch.from_numpy(weights).expand(epochs, 100)
    theirs = torch.multinomial(rows, 50, replacement=False, generator=generator).numpy()
    assert all(len(set(drawn)) == 50 for drawn in ours.tolist())
    totals = [np.sort(weights[drawn].sum(axis=1)) for drawn in (ours, theirs)]
    assert stats.ks_2samp(*totals).pvalue > LEAST_PROBABILITY
    for half in (slice(0, 10), slice(40, 50)):
        counts = [np.bincount(drawn[:, half].ravel(), minlength=100) for drawn in (ours, theirs)]
        assert_same_distribution(*counts)


def test_without_replacement_every_positive_weight_is_drawn_once() -> None:
    assert sorted(drawn_of(UNEVEN, 6, replacement=False)) == [0, 2, 3, 4, 6, 7]


def test_the_order_of_an_epoch_is_sorted_once() -> None:
    order = RaceOrder(UNEVEN, 4)
    assert order.of_epoch(1, 2) is order.of_epoch(1, 2)
    assert order.of_epoch(2, 2) is not order.of_epoch(1, 2)


def test_exponentials_are_logarithms_to_the_last_bits_but_one() -> None:
    words = words_of_64(1, 0, np.arange(20_000), Stream.WEIGHTED, 1)[:, 0]
    words[:6] = 0, 1, 2**63 - 1, 2**63, 2**63 + 2**30, 2**64 - 1
    parts = np.clip(words / 2**64, 2.0**-65, 1 - 2.0**-53)
    exact = np.array([-math.log1p(-part) for part in parts.tolist()])
    found = exponentials(words)
    assert np.abs(found / exact - 1).max() < 1e-15
    assert stats.kstest(found, "expon").pvalue > LEAST_PROBABILITY


@pytest.mark.parametrize("convert", [list, torch.tensor, np.array, np.float32])
@pytest.mark.parametrize("replacement", [True, False])
def test_weights_are_a_list_an_array_or_a_tensor_and_are_copied(
    convert: Any, replacement: bool
) -> None:
    weights = convert(UNEVEN)
    sampler = WeightedSampler(weights, 5, replacement, seed=7)
    assert isinstance(sampler, WeightedRandomSampler)
    assert len(sampler) == sampler.num_samples == 5
    expected = drawn_of(UNEVEN, 5, replacement=replacement).tolist()
    weights[0] = 0
    sampler.weights[2] = 0
    assert list(sampler) == expected


@pytest.mark.parametrize(
    ("weights", "arguments", "message"),
    [
        ([1, -1, -2], {}, r"\b2 .*weights\[1\] = -1\.0"),
        ([1, math.nan], {}, r"weights\[1\] = nan"),
        ([math.inf, 1], {}, r"weights\[0\] = inf"),
        ([0, 0], {}, "2 weights"),
        ([], {}, "0 weights"),
        ([1, 0, 2], {"replacement": False, "num_samples": 3}, "num_samples = 3 .*2"),
        ([[1, 2]], {}, r"shape \(1, 2\)"),
        ([1, 2], {"num_samples": 0}, "num_samples"),
        ([1, 2], {"replacement": 1}, "replacement"),
    ],
)
def test_impossible_arguments_are_refused(
    weights: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        WeightedSampler(weights, **{"num_samples": 1, **arguments})


def test_a_fraction_of_a_sample_is_refused() -> None:
    with pytest.raises(TypeError, match=r"num_samples=1\.5"):
        WeightedSampler([1, 2], 1.5)  # type: ignore[arg-type]


def test_golden_weighted_draws() -> None:
    assert drawn_of(UNEVEN, 12).tolist() == GOLDEN
    assert drawn_of(UNEVEN, 6, replacement=False).tolist() == GOLDEN_ONCE


GOLDEN = [0, 4, 7, 7, 4, 7, 4, 7, 0, 0, 2, 0]
GOLDEN_ONCE = [7, 0, 6, 4, 2, 3]

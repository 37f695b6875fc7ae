"""The alias table: probabilities as exact as float64 allows, and zero where they are zero (B10)."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateful_gpu_loader.samplers.alias import AliasOrder, AliasTable


def probabilities(table: AliasTable) -> list[Fraction]:
    """Exactly what a table draws, for uniform words."""
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
@pytest.mark.parametrize("seed", range(5))
def test_probabilities_of_thousands_of_uneven_weights_are_the_weights(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.pareto(0.7, size=4000) * (rng.random(4000) < 0.8)
    weights[:100] = 0
    assert_as_weighted(rng.permutation(weights))
    assert_as_weighted(np.sort(weights))
    assert_as_weighted(np.sort(weights)[::-1].copy())


def test_the_table_is_built_at_the_first_draw_and_not_pickled() -> None:
    """Law 7, and the workers get what they need alone."""
    order = AliasOrder(np.random.default_rng(0).random(10_000), 50)
    unused = pickle.dumps(order)
    positions = np.arange(50)
    drawn = order.of_epoch(3, 1)(positions)
    assert order.table is order.table
    assert len(pickle.dumps(order)) == len(unused) < 82_000
    again = pickle.loads(pickle.dumps(order))
    assert (again.of_epoch(3, 1)(positions) == drawn).all()
    assert again.algorithm == order.algorithm

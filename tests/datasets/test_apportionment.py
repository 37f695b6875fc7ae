"""Exact counts of a mixture's prefixes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stateful_gpu_loader.datasets.mixture import Apportionment, as_integers

WEIGHTS = st.lists(
    st.floats(min_value=1e-6, max_value=1e6, allow_nan=False), min_size=1, max_size=12
)
SMALL = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def row_of(weights: list[int], length: int) -> list[int]:
    """Return the row by its definition: samples sorted by (2j + 1) / weight, ties by dataset."""
    due = sorted(
        (Fraction(2 * sample + 1, weight), d)
        for d, weight in enumerate(weights)
        for sample in range(length)
    )
    return [d for _, d in due[:length]]


@given(WEIGHTS, st.integers(0, 10**15))
def test_every_prefix_is_in_proportion_within_the_stated_bound(
    weights: list[float], n: int
) -> None:
    """For any real weights, without rounding.

    A longer prefix takes more of each: otherwise a block of positions would owe a dataset a
    negative number of samples.
    """
    row = Apportionment(as_integers(weights))
    counts, following = row.counts(n), row.counts(n + 7)
    exact = [Fraction(weight) for weight in weights]
    assert sum(counts) == n
    for count, weight in zip(counts, exact, strict=True):
        share = weight / sum(exact)
        assert abs(count - share * n) <= (1 + share * len(weights)) / 2
    steps = [after - before for before, after in zip(counts, following, strict=True)]
    assert min(steps) >= 0
    assert [row.between(counts, following).count(d) for d in range(len(weights))] == steps


@given(SMALL)
@example([40] + [1] * 12)
@example([1] * 12 + [40])
def test_the_row_is_the_one_defined(weights: list[int]) -> None:
    wanted = row_of(weights, 60)
    row = Apportionment(weights)
    prefixes = [row.counts(n) for n in range(61)]
    assert prefixes == [[wanted[:n].count(d) for d in range(len(weights))] for n in range(61)]
    assert row.between(prefixes[0], prefixes[60]) == wanted
    assert row.between(prefixes[13], prefixes[41]) == wanted[13:41]


MANY: dict[str, list[Any]] = {
    "all alike": [1] * 100,
    "few kinds": [1 + number % 5 for number in range(100)],
    "falling": [1 / (number + 1) for number in range(100)],
    "lengths": [(number * 7919) % 10_007 + 1 for number in range(100)],
    "one of nearly all": [1] * 99 + [10**8],
    "beyond float64": [Fraction(1, number + 3) for number in range(100)],
}


@pytest.mark.parametrize("kind", MANY)
def test_many_prefixes_are_counted_as_one_by_one(kind: str) -> None:
    """Also if samples of different weights are due at times that float64 cannot distinguish."""
    row = Apportionment(as_integers(MANY[kind]))
    generator = np.random.default_rng(1)
    prefixes = [*range(300), *generator.integers(10**12, size=100).tolist(), 1 << 52, 1 << 61]
    for n, counts in zip(prefixes, row.counts_of(prefixes[:-2]).tolist(), strict=False):
        assert counts == row.counts(n), n
    assert row.counts_of(prefixes[-2:]).tolist() == [row.counts(n) for n in prefixes[-2:]]


def test_many_prefixes_cost_no_exact_count_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank of thousands needs two prefixes for each of its samples."""
    row = Apportionment(as_integers([1 / (number + 1) for number in range(1000)]))
    exactly: list[int] = []
    count = row.counts
    monkeypatch.setattr(row, "counts", lambda n: exactly.append(n) or count(n))
    row.counts_of([10**11 + 4096 * number for number in range(256)])
    assert len(exactly) < 16


@settings(max_examples=40)
@given(SMALL, st.lists(st.integers(1, 8), min_size=5, max_size=5))
def test_an_epoch_by_name_ends_where_datasets_are_exhausted(
    weights: list[int], lengths: list[int]
) -> None:
    lengths = lengths[: len(weights)]
    row, wanted = Apportionment(weights), row_of(weights, 400)
    first = row.first_exhausted(lengths)
    over = wanted[: first + 1]
    assert all(wanted[:first].count(d) <= length for d, length in enumerate(lengths))
    assert any(over.count(d) > length for d, length in enumerate(lengths))
    last = row.all_exhausted(lengths)
    assert all(wanted[:last].count(d) >= length for d, length in enumerate(lengths))
    assert any(wanted[: last - 1].count(d) < length for d, length in enumerate(lengths))


def test_whole_shares_are_met_exactly() -> None:
    """Weights by lengths make an epoch one pass over every dataset."""
    lengths = [17, 4, 1001, 1]
    row = Apportionment(lengths)
    assert row.counts(5 * sum(lengths)) == [5 * length for length in lengths]
    assert row.first_exhausted(lengths) == row.all_exhausted(lengths) == sum(lengths)


@pytest.mark.parametrize(
    ("weights", "wanted"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([10, 30], [1, 3]),
        ([0.5, 0.25, 0], [2, 1, 0]),
        ([Fraction(1, 3), Fraction(1, 6)], [2, 1]),
        (np.array([0.5, 1.5], dtype=np.float32), [1, 3]),
        (torch.tensor([4, 2]), [2, 1]),
        ([1e-300, 1e300], None),
    ],
)
def test_weights_of_any_kind_keep_their_exact_proportions(
    weights: Any, wanted: list[int] | None
) -> None:
    integers = as_integers(weights)
    exact = [w if isinstance(w, Fraction) else Fraction(float(w)) for w in weights]
    total = sum(exact)
    assert [Fraction(number, sum(integers)) for number in integers] == [w / total for w in exact]
    assert wanted in (None, integers)


def test_what_are_no_weights_is_refused_by_name() -> None:
    for weights, text in (
        ([1, -0.5], "weight 1 is -0.5"),
        ([float("nan")], "weight 0 is nan"),
        ([1, 2, float("inf")], "weight 2 is inf"),
        ([0, 0.0], "none of 2 weights is positive"),
        ([], "none of 0 weights is positive"),
    ):
        with pytest.raises(ValueError, match=text):
            as_integers(weights)

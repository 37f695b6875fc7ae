"""Statistical checks, which a correct sampler fails once in 10,000 runs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import stats

LEAST_PROBABILITY = 1e-4
_LEAST_EXPECTED = 8


def assert_proportional(counts: npt.ArrayLike, weights: npt.ArrayLike) -> None:
    """Check counts of independent draws in proportion to weights (chi-square).

    Rare values are counted together. Values without weight must not have been drawn.
    """
    seen, expected = np.asarray(counts, dtype=float), np.asarray(weights, dtype=float)
    assert not seen[expected == 0].any(), "drawn, without any weight"
    expected = expected / expected.sum() * seen.sum()
    rare = expected < _LEAST_EXPECTED
    if rare.any():
        seen = np.append(seen[~rare], seen[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    filled = expected > 0
    assert stats.chisquare(seen[filled], expected[filled]).pvalue > LEAST_PROBABILITY


def assert_uniform(counts: npt.ArrayLike) -> None:
    """Check counts of equally probable outcomes."""
    assert_proportional(np.ravel(counts), np.ones(np.size(counts)))


def assert_same_distribution(one: npt.ArrayLike, other: npt.ArrayLike) -> None:
    """Check two histograms over the same bins for one distribution (chi-square)."""
    table = np.stack([np.asarray(one), np.asarray(other)])
    rare = table.sum(axis=0) < 2 * _LEAST_EXPECTED
    table = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
    table = table[:, table.sum(axis=0) > 0]
    assert stats.chi2_contingency(table).pvalue > LEAST_PROBABILITY

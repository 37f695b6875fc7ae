"""Medians, quartiles, ratios and their intervals, from the raw values of the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 10_000
_INTERVAL = (2.5, 97.5)


@dataclass(frozen=True)
class Summary:
    """Middle half of some values, in their unit."""

    median: float
    lower_quartile: float
    upper_quartile: float


def summarise(values: Sequence[float]) -> Summary:
    """Return median and quartiles.

    >>> summarise([1.0, 2.0, 3.0, 4.0, 100.0])
    Summary(median=3.0, lower_quartile=2.0, upper_quartile=4.0)
    """
    lower, median, upper = np.percentile(values, (25, 50, 75)).tolist()
    return Summary(median, lower, upper)


@dataclass(frozen=True)
class Ratio:
    median: float
    """Median over the rounds of the ratio within a round, so that slow drifts cancel."""
    low: float
    """Lower end of its 95% interval."""
    high: float
    """Upper end of its 95% interval."""

    def __str__(self) -> str:
        """Format with three significant digits.

        >>> print(Ratio(0.98765, 0.9, 1.25), Ratio(2.5, 2.25, 3.0))
        0.988 [0.900, 1.250] 2.50 [2.25, 3.00]
        """
        digits = 3 if self.median < 1.5 else 2
        return f"{self.median:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def ratio(values: Sequence[float], reference: Sequence[float]) -> Ratio:
    """Compare two contestants that ran in the same rounds.

    The interval is the percentile bootstrap of the median (Efron, 1979); rounds are drawn with
    replacement.

    Raises:
        ValueError: the numbers of rounds differ.

    >>> ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    Ratio(median=2.0, low=2.0, high=2.0)
    """
    if len(values) != len(reference):
        raise ValueError(
            f"{len(values)} values cannot be paired with {len(reference)}. "
            "Remedy: compare contestants of the same rounds"
        )
    ratios = np.asarray(values, dtype=np.float64) / np.asarray(reference, dtype=np.float64)
    rows = np.random.default_rng(0).integers(len(ratios), size=(_RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[rows], axis=1), _INTERVAL).tolist()
    return Ratio(float(np.median(ratios)), low, high)

"""How many of the first n samples of a mixture belong to each of its datasets, exactly."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction
from numbers import Rational
from typing import Any

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.records import IndexArray

_CORRECTIONS = 3
"""Of the time by which samples are due. Those that lack or exceed then are due at about it."""
_FEW = 64
"""Up to so many datasets the exact way is the faster one."""
_LARGEST = 1 << 52
"""Prefixes beyond this one are counted exactly, and those of weights beyond float64."""


def as_integers(weights: Sequence[Any]) -> list[int]:
    """Weights as the least integers of the same proportions, without rounding.

    Args:
        weights: ints, floats, Fractions, numbers of NumPy or torch; zeros are allowed.

    Raises:
        ValueError: a weight is negative or not finite, or none is positive.

    >>> as_integers([0.5, 0.25, 0.0])
    [2, 1, 0]
    """
    exact: list[Fraction] = []
    for number, weight in enumerate(weights):
        if not isinstance(weight, Rational):
            weight = float(weight)
        if not math.isfinite(weight) or weight < 0:
            raise ValueError(
                f"weight {number} is {weight}. Remedy: pass finite weights, none below zero"
            )
        exact.append(Fraction(weight))
    if not any(exact):
        raise ValueError(
            f"none of {len(exact)} weights is positive. Remedy: give one dataset a weight above 0"
        )
    common = math.lcm(*(weight.denominator for weight in exact))
    integers = [int(weight * common) for weight in exact]
    divisor = math.gcd(*integers)
    return [integer // divisor for integer in integers]


class Apportionment:
    """An endless sequence of datasets, every prefix of which is in proportion to their weights.

    Webster's method of apportionment (Balinski and Young, "Fair Representation", 1982): sample j
    of a dataset of weight w is due at (2j + 1) / w; the row is all samples by that time, ties by
    the datasets' order. What comes first never depends on how far one looks, and a prefix is
    counted in a time that does not grow with its length.

    *Bound.* Let p be the proportions of D datasets, and c the counts in the first n. For the T at
    which the time is 2T / (sum of weights), each c is within 1/2 of p * T; so n, the sum of
    all c, is within D/2 of T, and each c within (1 + p * D) / 2 of p * n.

    Args:
        weights: positive ints, exact.

    >>> row = Apportionment([2, 1])
    >>> [row.counts(n) for n in range(4)]
    [[0, 0], [1, 0], [1, 1], [2, 1]]
    >>> row.between(row.counts(3 * 10**17), row.counts(3 * 10**17 + 6))
    [0, 1, 0, 0, 1, 0]
    """

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = list(weights)
        self._total = sum(self._weights)
        # Two different due times are at least 1 / (w * v) apart: in this unit whole numbers tell.
        self._unit = max(self._weights) ** 2
        self._are_floats = len(self._weights) > _FEW and all(
            weight.bit_length() < 1000 and int(float(weight)) == weight for weight in self._weights
        )
        """Whether all weights are numbers of float64, as those are that were given as floats."""
        if self._are_floats:
            self._divisors = np.array(self._weights, dtype=np.float64)
            self._shares = np.array([weight / self._total for weight in self._weights])

    def counts(self, n: int) -> list[int]:
        """Samples of each dataset among the first n."""
        total = self._total
        counts = [(2 * n * weight + total) // (2 * total) for weight in self._weights]
        excess = sum(counts) - n
        if excess < 0:
            due = [(self._due(d, count), d) for d, count in enumerate(counts)]
            heapq.heapify(due)
            for _ in range(-excess):
                d = due[0][1]
                counts[d] += 1
                heapq.heapreplace(due, (self._due(d, counts[d]), d))
        elif excess > 0:
            latest = [(-self._due(d, count - 1), -d) for d, count in enumerate(counts)]
            heapq.heapify(latest)
            for _ in range(excess):
                d = -latest[0][1]
                counts[d] -= 1
                heapq.heapreplace(latest, (-self._due(d, counts[d] - 1), -d))
        return counts

    def counts_of(self, prefixes: Sequence[int]) -> IndexArray:
        """Return :meth:`counts` of many prefixes at once, in a small part of the time.

        Due times are compared in float64. Each is rounded once, so the later of two is never the
        lesser number; where equal numbers leave a doubt, the exact ones are compared.

        Args:
            prefixes: numbers of samples, at least one.

        Returns:
            int64 [number of prefixes, number of datasets].

        >>> Apportionment([2, 1]).counts_of([2, 3]).tolist()
        [[1, 1], [2, 1]]
        """
        if not self._are_floats or max(prefixes) > _LARGEST:
            return np.array([self.counts(n) for n in prefixes], dtype=np.int64)
        wanted = np.array(prefixes, dtype=np.int64)
        times = wanted.astype(np.float64)
        for _ in range(_CORRECTIONS):
            counts: IndexArray = np.floor(times[:, None] * self._shares + 0.5).astype(np.int64)
            excesses = counts.sum(axis=1) - wanted
            times -= excesses
        for row, excess in enumerate(excesses.tolist()):
            if excess < 0:
                counts[row, _least(self._times(counts[row]), -excess)] += 1
            elif excess > 0:
                latest = _least(-self._times(counts[row] - 1)[::-1], excess)
                counts[row, len(self._weights) - 1 - latest] -= 1
        last, following = self._times(counts - 1), self._times(counts)
        in_doubt = last.max(axis=1) >= following.min(axis=1)
        for row in np.flatnonzero(in_doubt).tolist():
            if last[row].max() > following[row].min():
                counts[row] = self.counts(prefixes[row])
            else:
                self._settle(counts[row], last[row], following[row])
        return counts

    def between(self, counts: Sequence[int], following: Sequence[int]) -> list[int]:
        """The datasets in their row, from the prefix of one count to that of a later one."""
        due = [
            (self._due(d, sample), d)
            for d, (first, end) in enumerate(zip(counts, following, strict=True))
            if first < end
            for sample in range(first, end)
        ]
        return [d for _, d in sorted(due)]

    def first_exhausted(self, lengths: Sequence[int]) -> int:
        """The longest prefix that takes no more of any dataset than it has."""
        _, d = min((self._due(d, length), d) for d, length in enumerate(lengths))
        return self._before(d, lengths[d])

    def all_exhausted(self, lengths: Sequence[int]) -> int:
        """The shortest prefix that takes every dataset whole."""
        _, d = max((self._due(d, length - 1), d) for d, length in enumerate(lengths))
        return self._before(d, lengths[d] - 1) + 1

    def _due(self, dataset: int, sample: int) -> int:
        return (2 * sample + 1) * self._unit // self._weights[dataset]

    def _times(self, samples: IndexArray) -> npt.NDArray[np.float64]:
        """Return when samples are due, one of each dataset; [..., number of datasets]."""
        times: npt.NDArray[np.float64] = (2 * samples + 1) / self._divisors
        return times

    def _settle(
        self,
        counts: IndexArray,
        last: npt.NDArray[np.float64],
        following: npt.NDArray[np.float64],
    ) -> None:
        """Put the right ones into a count among those samples whose times are equal in float64.

        Args:
            counts: int64 [number of datasets], which is changed.
            last, following: when the last sample in the count is due, and the one behind it.
        """
        taken, left = np.flatnonzero(last == last.max()), np.flatnonzero(following == last.max())
        counts[taken] -= 1
        equal = np.sort(np.concatenate([taken, left]))
        # Datasets of one weight are due at the same time exactly; of others this must be seen.
        _, firsts = np.unique(self._divisors[equal], return_index=True)
        if len({self._due(d, int(counts[d])) for d in equal[firsts].tolist()}) > 1:
            exact = sorted((self._due(d, int(counts[d])), d) for d in equal.tolist())
            equal = np.array([d for _, d in exact], dtype=np.int64)
        counts[equal[: len(taken)]] += 1

    def _before(self, dataset: int, sample: int) -> int:
        """Where in the row a sample of a dataset comes."""
        numerator, weight = 2 * sample + 1, self._weights[dataset]
        return sum(
            # Of a dataset before this one, what is due at the same time comes first, too.
            (numerator * other + weight - (0 if d < dataset else 1)) // (2 * weight)
            for d, other in enumerate(self._weights)
        )


def _least(times: npt.NDArray[np.float64], number: int) -> IndexArray:
    """Return where the least of the times are, so many of them; of equal ones the first.

    >>> _least(np.array([3.0, 1.0, 2.0, 2.0]), 2)
    array([1, 2])
    """
    number = min(number, len(times))
    bound = np.partition(times, number - 1)[number - 1]
    below = np.flatnonzero(times < bound)
    equal = np.flatnonzero(times == bound)[: number - len(below)]
    return np.concatenate([below, equal])

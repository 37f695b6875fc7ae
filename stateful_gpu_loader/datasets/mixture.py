"""MixedDataset: several map-style datasets, and in which proportions they are drawn."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from numbers import Rational
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import ConcatDataset, IterableDataset

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.state.descriptions import NOTHING_KNOWN, describe, describe_dataset
from stateful_gpu_loader.state.schema import as_int

EPOCHS = ("first_exhausted", "all_exhausted")
"""Names of an epoch's length, those of ``datasets.interleave_datasets``."""
LONGEST_BLOCK = 1 << 17
"""Samples: what one draw of keys serves."""


class MixedDataset(ConcatDataset[Any]):
    """Map-style datasets that are drawn in proportion to weights.

    As a dataset it is the concatenation of its parts: ``mixed[i]`` and ``len(mixed)`` are those
    of torch's ConcatDataset, and a mixture of sources is a source. The order comes from
    :class:`~stateful_gpu_loader.samplers.mixture.MixtureSampler`, which a loader uses for such a
    dataset by default: it goes through each part in the part's own order, over and over, each
    epoch from where the one before stopped. So a part larger than its share of an epoch is seen
    whole over several, and a smaller one repeats. A part may be a mixture itself.

    Args:
        datasets: the parts.
        weights: how often each is drawn, in any unit, without rounding; a part of weight 0 is
            never drawn. None: by lengths, so that every sample comes equally often.
        num_samples: an epoch's length; or ``"first_exhausted"``, the longest first epoch that
            repeats nothing; or ``"all_exhausted"``, the shortest one in which everything comes.
        block_length: positions that are shuffled among the parts at a time. A shorter block keeps
            proportions closer, see MixtureSampler; 1 keeps them closest, without chance.

    Raises:
        ValueError: there are no datasets; weights are not as many as datasets, negative, not
            finite or all zero; a dataset with a weight is empty; num_samples or block_length is
            out of range.
        TypeError: a dataset is iterable, or has no length.

    >>> web, books = range(100), range(1000, 1010)
    >>> mixed = MixedDataset([web, books], [0.75, 0.25])
    >>> len(mixed), mixed[100], mixed.num_samples
    (110, 1000, 42)
    >>> MixedDataset([web, books], [0.75, 0.25], num_samples="all_exhausted").num_samples
    133
    """

    num_samples: int
    """Samples of an epoch."""
    part_weights: list[int]
    """The weights as the least integers of the same proportions, one for each dataset."""

    def __init__(
        self,
        datasets: Iterable[Any],
        weights: Sequence[Any] | None = None,
        *,
        num_samples: int | str = "first_exhausted",
        block_length: int = 256,
    ) -> None:
        parts = list(datasets)
        _check_parts(parts)
        super().__init__(parts)
        lengths = [pass_length(part) for part in parts]
        given = lengths if weights is None else list(weights)
        if len(given) != len(parts):
            raise ValueError(
                f"{len(given)} weights for {len(parts)} datasets. Remedy: one for each"
            )
        self.part_weights = as_integers(given)
        self.drawn_parts = [d for d, weight in enumerate(self.part_weights) if weight]
        """Numbers of the datasets that have a weight."""
        for d in self.drawn_parts:
            if not lengths[d]:
                raise ValueError(
                    f"dataset {d} of {len(parts)} ({type(parts[d]).__name__}) is empty and has "
                    f"weight {given[d]}. Remedy: leave it out, or give it weight 0"
                )
        self.apportionment = Apportionment([self.part_weights[d] for d in self.drawn_parts])
        """Of the datasets that have a weight."""
        self.num_samples = _num_samples(
            num_samples, self.apportionment, [lengths[d] for d in self.drawn_parts]
        )
        self.block_length = _checked("block_length", block_length, LONGEST_BLOCK)

    def fingerprint(self) -> str:
        """Of each part what is known of its content, or else its class, and its length."""
        texts = (describe_dataset(part).text for part in self.datasets)
        return " + ".join(
            f"({describe(part) if text == NOTHING_KNOWN else text}, {len(part)})"  # type: ignore[arg-type]
            for part, text in zip(self.datasets, texts, strict=True)
        )


def pass_length(part: Any) -> int:
    """Samples of one pass over a part: an epoch of a mixture, or the whole of another dataset."""
    return part.num_samples if isinstance(part, MixedDataset) else len(part)


def _check_parts(parts: list[Any]) -> None:
    if not parts:
        raise ValueError("there are no datasets to mix. Remedy: pass one at least")
    for number, part in enumerate(parts):
        if isinstance(part, IterableDataset) or not hasattr(part, "__len__"):
            kind = "iterable" if isinstance(part, IterableDataset) else "without a length"
            raise TypeError(
                f"dataset {number} of {len(parts)} ({type(part).__name__}) is {kind}. Remedy: mix "
                "map-style datasets, which are read by index"
            )


def _num_samples(given: int | str, apportionment: Apportionment, lengths: list[int]) -> int:
    if not isinstance(given, str):
        return _checked("num_samples", given, 1 << 62)
    if given not in EPOCHS:
        raise ValueError(
            f"num_samples={given!r} names no epoch. Remedy: a number, or one of "
            f"{', '.join(map(repr, EPOCHS))}"
        )
    if given == "all_exhausted":
        return apportionment.all_exhausted(lengths)
    return apportionment.first_exhausted(lengths)


def _checked(name: str, value: int, largest: int) -> int:
    number = as_int(name, value)
    if not 1 <= number <= largest:
        raise ValueError(f"{name} = {number} is outside 1 <= {name} <= {largest}")
    return number


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

"""MixedDataset: several map-style datasets, drawn in given proportions."""

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
"""Names for an epoch's length, as in ``datasets.interleave_datasets``."""
LONGEST_BLOCK = 1 << 17
"""Largest block in samples: one draw of keys covers it."""


class MixedDataset(ConcatDataset[Any]):
    """Map-style datasets, drawn in proportion to weights.

    As a dataset it is the concatenation of its parts: ``mixed[i]`` and ``len(mixed)`` are those of
    torch's ConcatDataset, and a mixture of sources is a source. The order comes from
    :class:`~stateful_gpu_loader.samplers.mixture.MixtureSampler`, a loader's default sampler for
    this dataset. It repeats each part in the part's own order, and each epoch continues where the
    previous one stopped. So a part larger than its share of an epoch takes several epochs. A part
    may be a mixture itself.

    Args:
        datasets: the parts.
        weights: how often each part is drawn, in any unit, without rounding; weight 0 means never.
            None uses the lengths, so that all samples are drawn equally often.
        num_samples: length of an epoch; or ``"first_exhausted"``, the longest first epoch without
            repeats; or ``"all_exhausted"``, the shortest epoch with every sample.
        block_length: number of positions in which the parts are shuffled together. A shorter block
            keeps the proportions closer (see MixtureSampler); 1 keeps them closest.

    Raises:
        ValueError: no datasets; different numbers of weights and datasets; weights that are
            negative, not finite or all zero; an empty dataset with a weight; num_samples or
            block_length out of range.
        TypeError: a dataset is iterable, or has no length.

    >>> web, books = range(100), range(1000, 1010)
    >>> mixed = MixedDataset([web, books], [0.75, 0.25])
    >>> len(mixed), mixed[100], mixed.num_samples
    (110, 1000, 42)
    >>> MixedDataset([web, books], [0.75, 0.25], num_samples="all_exhausted").num_samples
    133
    """

    num_samples: int
    """Number of samples in an epoch."""
    part_weights: list[int]
    """The weights as the smallest integers in the same proportions, one for each dataset."""

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
        """Numbers of the datasets with a positive weight."""
        for d in self.drawn_parts:
            if not lengths[d]:
                raise ValueError(
                    f"dataset {d} of {len(parts)} ({type(parts[d]).__name__}) is empty and has "
                    f"weight {given[d]}. Remedy: leave it out, or give it weight 0"
                )
        self.apportionment = Apportionment([self.part_weights[d] for d in self.drawn_parts])
        """Apportionment of the datasets with a positive weight."""
        self.num_samples = _num_samples(
            num_samples, self.apportionment, [lengths[d] for d in self.drawn_parts]
        )
        self.block_length = _checked("block_length", block_length, LONGEST_BLOCK)

    def fingerprint(self) -> str:
        """Return each part's content id, or else its class, with its length."""
        texts = (describe_dataset(part).text for part in self.datasets)
        return " + ".join(
            f"({describe(part) if text == NOTHING_KNOWN else text}, {len(part)})"  # type: ignore[arg-type]
            for part, text in zip(self.datasets, texts, strict=True)
        )


def pass_length(part: Any) -> int:
    """Return the samples of one pass over a part: a mixture's epoch, or a whole other dataset."""
    return part.num_samples if isinstance(part, MixedDataset) else len(part)


def _check_parts(parts: list[Any]) -> None:
    if not parts:
        raise ValueError("there are no datasets to mix. Remedy: pass at least one")
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
"""Number of corrections of the time bound, after which it is nearly exact."""
_FEW = 64
"""Number of datasets up to which the exact computation is faster."""
_LARGEST = 1 << 52
"""Longest prefix that is counted in float64; longer ones are counted exactly."""


def as_integers(weights: Sequence[Any]) -> list[int]:
    """Return the smallest integers in the same proportions as the weights, without rounding.

    Args:
        weights: ints, floats, Fractions, or numbers from NumPy or torch; zeros are allowed.

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

    Webster's method of apportionment (Balinski and Young, "Fair Representation", 1982). Sample j of
    a dataset with weight w is due at time (2j + 1) / w. The sequence has all samples in order of
    their times, ties in the order of the datasets. The time to count a prefix does not grow with
    its length.

    *Bound.* Let p be the proportions of D datasets, and c the counts in the first n samples. Let T
    be the number for which the time is 2T / (sum of weights). Each c is within 1/2 of p * T. So n,
    the sum of all c, is within D/2 of T, and each c is within (1 + p * D) / 2 of p * n.

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
        # Different due times differ by at least 1 / (w * v), so integers in this unit suffice.
        self._unit = max(self._weights) ** 2
        self._are_floats = len(self._weights) > _FEW and all(
            weight.bit_length() < 1000 and int(float(weight)) == weight for weight in self._weights
        )
        """Whether float64 represents all weights exactly, as it does if they were floats."""
        if self._are_floats:
            self._divisors = np.array(self._weights, dtype=np.float64)
            self._shares = np.array([weight / self._total for weight in self._weights])

    def counts(self, n: int) -> list[int]:
        """Return the samples of each dataset among the first n."""
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
        """Return :meth:`counts` of many prefixes at once, much faster.

        Due times are compared in float64. Each is rounded once, so their order never reverses.
        Equal numbers are compared exactly.

        Args:
            prefixes: lengths of prefixes, at least one.

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
        """Return the datasets in sequence from one prefix to a longer one, given their counts."""
        due = [
            (self._due(d, sample), d)
            for d, (first, end) in enumerate(zip(counts, following, strict=True))
            if first < end
            for sample in range(first, end)
        ]
        return [d for _, d in sorted(due)]

    def first_exhausted(self, lengths: Sequence[int]) -> int:
        """Return the longest prefix with at most ``lengths[d]`` samples of each dataset d."""
        _, d = min((self._due(d, length), d) for d, length in enumerate(lengths))
        return self._before(d, lengths[d])

    def all_exhausted(self, lengths: Sequence[int]) -> int:
        """Return the shortest prefix with at least ``lengths[d]`` samples of each dataset d."""
        _, d = max((self._due(d, length - 1), d) for d, length in enumerate(lengths))
        return self._before(d, lengths[d] - 1) + 1

    def _due(self, dataset: int, sample: int) -> int:
        return (2 * sample + 1) * self._unit // self._weights[dataset]

    def _times(self, samples: IndexArray) -> npt.NDArray[np.float64]:
        """Return the due times of one sample of each dataset; [..., number of datasets]."""
        times: npt.NDArray[np.float64] = (2 * samples + 1) / self._divisors
        return times

    def _settle(
        self,
        counts: IndexArray,
        last: npt.NDArray[np.float64],
        following: npt.NDArray[np.float64],
    ) -> None:
        """Choose the right samples among those with equal due times in float64.

        Args:
            counts: int64 [number of datasets]; changed in place.
            last, following: due times of the last sample in the count, and of the next sample.
        """
        taken, left = np.flatnonzero(last == last.max()), np.flatnonzero(following == last.max())
        counts[taken] -= 1
        equal = np.sort(np.concatenate([taken, left]))
        # Equal weights have exactly equal times.
        _, firsts = np.unique(self._divisors[equal], return_index=True)
        if len({self._due(d, int(counts[d])) for d in equal[firsts].tolist()}) > 1:
            exact = sorted((self._due(d, int(counts[d])), d) for d in equal.tolist())
            equal = np.array([d for _, d in exact], dtype=np.int64)
        counts[equal[: len(taken)]] += 1

    def _before(self, dataset: int, sample: int) -> int:
        numerator, weight = 2 * sample + 1, self._weights[dataset]
        return sum(
            # At equal times the samples of earlier datasets come first.
            (numerator * other + weight - (0 if d < dataset else 1)) // (2 * weight)
            for d, other in enumerate(self._weights)
        )


def _least(times: npt.NDArray[np.float64], number: int) -> IndexArray:
    """Return the positions of the ``number`` smallest times; of equal times the first ones.

    >>> _least(np.array([3.0, 1.0, 2.0, 2.0]), 2)
    array([1, 2])
    """
    number = min(number, len(times))
    bound = np.partition(times, number - 1)[number - 1]
    below = np.flatnonzero(times < bound)
    equal = np.flatnonzero(times == bound)[: number - len(below)]
    return np.concatenate([below, equal])

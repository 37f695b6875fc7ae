"""WeightedSampler: draws in proportion to weights, like WeightedRandomSampler, by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import WeightedRandomSampler

from stateful_gpu_loader.randomness.philox import Stream, below, words_of_64
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.samplers.orders import (
    EpochOrder,
    LastEpoch,
    Listed,
    PositionOrder,
    digest_of,
)
from stateful_gpu_loader.samplers.resumable import OrderSampler, settled
from stateful_gpu_loader.state.schema import as_int

FloatArray = npt.NDArray[np.float64]
_JUST_BELOW_ONE = 1 - 2.0**-53
_LN_2 = 0.6931471805599453
_NUM_TERMS = 18


@dataclass(frozen=True, eq=False)
class AliasTable:
    """Draws from ``range(n)`` in proportion to weights: a uniform column, then one of two indices.

    The method is that of Walker, "An efficient method for generating discrete random variables with
    general distributions", ACM TOMS 3(3), 1977. The columns are filled by the sweep of
    Hübschle-Schneider and Sanders, "Parallel weighted random sampling", ESA 2019, with searches in
    two prefix sums. Column i holds index i up to its threshold, and above it an index of at least
    the mean weight, so a weight of 0 is never drawn.

    Because the prefix sums are rounded, a probability has a relative error of up to about
    n * 2**-45 (3e-8 for a million weights) and an absolute error of 2**-64. Only sums, products and
    quotients are used, which are rounded equally on all machines.
    """

    thresholds: npt.NDArray[np.uint64]
    """Words below this value give a column's own index; uint64 [n]."""
    aliases: IndexArray
    """Index that a column gives for all other words, int64 [n]."""

    @classmethod
    def of(cls, weights: FloatArray) -> AliasTable:
        """Build the table in O(n log n).

        Args:
            weights: float64 [n], finite, none negative, at least one positive.

        >>> table = AliasTable.of(np.array([1.0, 3.0]))
        >>> (table.thresholds / 2.0**64).round(6).tolist(), table.aliases.tolist()
        ([0.5, 1.0], [1, 1])
        """
        n = len(weights)
        own = weights / weights.max()
        # A sum of numbers up to 1 is not rounded above their count.
        own *= n / np.cumsum(own)[-1]
        heavy, light = np.flatnonzero(own >= 1), np.flatnonzero(own < 1)
        excess = np.cumsum(own[heavy] - 1)
        deficit = np.cumsum(1 - own[light])
        aliases = np.arange(n, dtype=np.int64)

        # A light column is filled from the first heavy index with a rest.
        before = np.concatenate([np.zeros(min(1, len(light))), deficit[:-1]])
        filler = np.searchsorted(excess, before, side="left")
        aliases[light] = heavy[np.minimum(filler, len(heavy) - 1)]

        # An overdrawn heavy index is filled from the next heavy one.
        last = np.searchsorted(deficit, excess[:-1], side="right")
        overdrawn = np.flatnonzero(last < len(light))
        own[heavy] = 1
        own[heavy[overdrawn]] = 1 - (deficit[last[overdrawn]] - excess[overdrawn])
        aliases[heavy[overdrawn]] = heavy[overdrawn + 1]
        scaled = np.ldexp(np.clip(own, 0, _JUST_BELOW_ONE), 64)
        return cls(scaled.astype(np.uint64), aliases)

    def draw(self, words: npt.NDArray[np.uint64]) -> IndexArray:
        """Convert random words to indices.

        Args:
            words: uint64 [m, 2].

        Returns:
            int64 [m], each in ``range(n)``.
        """
        columns = below(words[:, 0], len(self.aliases))
        keeps = words[:, 1] < self.thresholds[columns]
        return np.where(keeps, columns, self.aliases[columns])


@dataclass(frozen=True)
class _WeightedDraws:
    """One epoch's draws, as an EpochOrder."""

    n: int
    table: AliasTable
    seed: int
    epoch: int

    def __call__(self, positions: IndexArray) -> IndexArray:
        words = words_of_64(self.seed, self.epoch, positions.reshape(-1), Stream.WEIGHTED, 2)
        return self.table.draw(words).reshape(positions.shape)


class AliasOrder:
    """Weighted draws of all epochs, with replacement.

    Args:
        weights: float64 [n], finite, none negative, at least one positive.
        num_samples: number of draws in an epoch.
    """

    is_shuffled = True

    def __init__(self, weights: FloatArray, num_samples: int) -> None:
        self._weights = weights
        self.num_positions = num_samples
        self.algorithm = f"alias-1 over {digest_of(weights)}, {num_samples} draws"

    @cached_property
    def table(self) -> AliasTable:
        """The alias table, built at the first draw and not pickled."""
        return AliasTable.of(self._weights)

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        return _WeightedDraws(self.num_positions, self.table, seed, epoch)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "table"}


def exponentials(words: npt.NDArray[np.uint64]) -> FloatArray:
    """Return exponential variates, each from one word: -log(1 - word / 2**64).

    Only sums, products and quotients are used, which are rounded equally on all machines, unlike
    NumPy's log. The relative error is about 1e-15.

    Args:
        words: uint64 of any shape.

    Returns:
        float64 of the same shape, above 0 and below 37.

    >>> exponentials(np.array([2**63], dtype=np.uint64)).round(6).tolist()
    [0.693147]
    """
    part = np.clip(words * 2.0**-64, 2.0**-65, 1 - 2.0**-53)
    # 1 - part = fraction * 2**exponent, and -log(fraction) = 2 * atanh((1 - fraction) / (1 +
    # fraction)). With exponent 0, 1 - fraction is the part itself, unrounded.
    fraction, exponent = np.frexp(1 - part)
    halvings = np.maximum(-exponent, 0)
    missing = np.where(halvings > 0, 1 - fraction, part)
    ratio = missing / (2 - missing)
    square = ratio * ratio
    series = np.zeros_like(ratio)
    for term in range(_NUM_TERMS, -1, -1):
        series = series * square + 1 / (2 * term + 1)
    variates: FloatArray = halvings * _LN_2 + 2 * ratio * series
    return variates


class RaceOrder(LastEpoch):
    """Weighted draws of all epochs, without replacement.

    Each index gets an exponential variate divided by its weight, and the indices are sorted by it.
    So each draw is in proportion to the remaining weights (Efraimidis and Spirakis, "Weighted
    random sampling with a reservoir", Information Processing Letters 97, 2006), as with
    torch.multinomial. Sorting takes O(n log n) time and O(n) memory once an epoch.

    Args:
        weights: float64 [n], finite, none negative.
        num_samples: number of draws in an epoch, at most the number of positive weights.
    """

    is_shuffled = True

    def __init__(self, weights: FloatArray, num_samples: int) -> None:
        self._weights = weights
        self._num_samples = num_samples
        self.algorithm = f"race-1 over {digest_of(weights)}, {num_samples} draws"

    @property
    def num_positions(self) -> int:
        return self._num_samples

    def begin(self, seed: int, epoch: int) -> EpochOrder:
        runners: IndexArray = np.flatnonzero(self._weights)
        # Words 0 and 1 of a position are used by draws with replacement.
        words = words_of_64(seed, epoch, runners, Stream.WEIGHTED, 3)[:, 2]
        with np.errstate(over="ignore"):
            arrivals = exponentials(words) / self._weights[runners]
        first = np.argsort(arrivals, kind="stable")[: self._num_samples]
        return Listed(runners[first].astype(np.int64, copy=False))


class WeightedSampler(OrderSampler, WeightedRandomSampler):
    """Draws indices in proportion to weights; its state is a position.

    The arguments are those of ``torch.utils.data.WeightedRandomSampler``. With replacement, each
    position is a draw from an alias table, in constant time, for any number of weights (torch
    allows at most 2**24). Without replacement, an epoch's order is sorted once, in O(n log n).

    Args:
        weights: [n], one for each index of the dataset; they need not sum to 1. They are copied, so
            later changes of :attr:`weights` have no effect.
        num_samples: number of draws in an epoch, all ranks together.
        replacement: whether an index can be drawn more than once an epoch.
        generator: used in place of a seed; a copy draws the seed, so it does not advance.
        seed: seed of the draws; None takes the loader's seed, or 0.

    Raises:
        ValueError: the weights are negative, infinite, NaN, all 0 or not one-dimensional;
            ``num_samples`` is not positive or, without replacement, exceeds the number of
            positive weights; or both seed and generator are given.

    >>> list(WeightedSampler([0.1, 0.0, 0.9], 8, seed=1))
    [2, 2, 2, 2, 2, 2, 2, 0]
    >>> sorted(WeightedSampler([0.1, 0.0, 0.9], 2, replacement=False, seed=1))
    [0, 2]
    """

    def __init__(
        self,
        weights: Sequence[float] | torch.Tensor,
        num_samples: int,
        replacement: bool = True,
        generator: torch.Generator | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        count = as_int("num_samples", num_samples)
        given = weights.detach().cpu().numpy() if isinstance(weights, torch.Tensor) else weights
        own = np.array(given, dtype=np.float64)
        super().__init__(torch.from_numpy(own.copy()), count, replacement, generator)  # type: ignore[arg-type]
        _check_weights(own, count, replacement=replacement)
        self.seed = settled(seed, generator)
        self.epoch = 0
        self.order: PositionOrder = AliasOrder(own, count) if replacement else RaceOrder(own, count)


def _check_weights(weights: FloatArray, num_samples: int, *, replacement: bool) -> None:
    """Check that indices can be drawn with these weights.

    Raises:
        ValueError: a weight is invalid, none is positive, or too few are.
    """
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise ValueError(
            f"{len(bad)} weights are negative, infinite or NaN, the first weights[{bad[0]}] = "
            f"{weights[bad[0]]}. Remedy: pass finite weights of 0 or more"
        )
    num_positive = int(np.count_nonzero(weights))
    if not num_positive:
        raise ValueError(
            f"none of {len(weights)} weights is positive. Remedy: pass one for each index of the "
            "dataset, some above 0"
        )
    if not replacement and num_samples > num_positive:
        raise ValueError(
            f"{num_samples = } without replacement, but only {num_positive} weights are positive. "
            "Remedy: draw fewer, or with replacement"
        )

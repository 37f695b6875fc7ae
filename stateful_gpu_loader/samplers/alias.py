"""Alias tables: weighted draws with replacement in constant time each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.randomness.philox import Stream
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.samplers.digest import digest_of
from stateful_gpu_loader.samplers.draws import below, words_of_64
from stateful_gpu_loader.samplers.orders import EpochOrder

FloatArray = npt.NDArray[np.float64]
_JUST_BELOW_ONE = 1 - 2.0**-53


@dataclass(frozen=True, eq=False)
class AliasTable:
    """Draws from ``range(n)`` in proportion to weights: a uniform column, then one of two indices.

    Walker, "An efficient method for generating discrete random variables with general
    distributions", ACM TOMS 3(3), 1977; the columns are filled by the sweep of Hübschle-Schneider
    and Sanders, "Parallel weighted random sampling", ESA 2019, whose cursors are searches in two
    prefix sums here. Column i holds index i up to its threshold, and beyond it an index of
    at least the mean weight, so that a weight of 0 is never drawn.

    No probability is off by more than about n * 2**-45 of itself (3e-8 for a million weights) and
    2**-64: the prefix sums are rounded. They are made by sums, products and quotients alone, which
    are rounded the same everywhere.
    """

    thresholds: npt.NDArray[np.uint64]
    """uint64 [n], of 2**64: up to where a column holds its own index."""
    aliases: IndexArray
    """int64 [n]: the index that a column holds beyond it."""

    @classmethod
    def of(cls, weights: FloatArray) -> AliasTable:
        """Build the table in O(n log n).

        Args:
            weights: float64 [n], finite, none negative, one positive.

        >>> table = AliasTable.of(np.array([1.0, 3.0]))
        >>> (table.thresholds / 2**64).round(6).tolist(), table.aliases.tolist()
        ([0.5, 1.0], [1, 1])
        """
        n = len(weights)
        own = weights / weights.max()
        # Sums of numbers up to 1 do not round above their count: the largest stays 1 or more.
        own *= n / np.cumsum(own)[-1]
        heavy, light = np.flatnonzero(own >= 1), np.flatnonzero(own < 1)
        excess = np.cumsum(own[heavy] - 1)
        deficit = np.cumsum(1 - own[light])
        aliases = np.arange(n, dtype=np.int64)

        # A light column takes what it lacks from the first heavy index that has anything left.
        before = np.concatenate([np.zeros(min(1, len(light))), deficit[:-1]])
        filler = np.searchsorted(excess, before, side="left")
        aliases[light] = heavy[np.minimum(filler, len(heavy) - 1)]

        # A heavy index that a light column overdraws lacks that much, and takes it from the next.
        last = np.searchsorted(deficit, excess[:-1], side="right")
        overdrawn = np.flatnonzero(last < len(light))
        own[heavy] = 1
        own[heavy[overdrawn]] = 1 - (deficit[last[overdrawn]] - excess[overdrawn])
        aliases[heavy[overdrawn]] = heavy[overdrawn + 1]
        scaled = np.ldexp(np.clip(own, 0, _JUST_BELOW_ONE), 64)
        return cls(scaled.astype(np.uint64), aliases)

    def draw(self, words: npt.NDArray[np.uint64]) -> IndexArray:
        """Turn random words into indices.

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
    """One epoch's draws, an EpochOrder."""

    n: int
    table: AliasTable
    seed: int
    epoch: int

    def __call__(self, positions: IndexArray) -> IndexArray:
        words = words_of_64(self.seed, self.epoch, positions.reshape(-1), Stream.WEIGHTED, 2)
        return self.table.draw(words).reshape(positions.shape)


class AliasOrder:
    """The weighted draws of all epochs, with replacement.

    Args:
        weights: float64 [n], finite, none negative, one positive.
        num_samples: draws in an epoch.
    """

    is_shuffled = True

    def __init__(self, weights: FloatArray, num_samples: int) -> None:
        self._weights = weights
        self.num_positions = num_samples
        self.algorithm = f"alias-1 over {digest_of(weights)}, {num_samples} draws"

    @cached_property
    def table(self) -> AliasTable:
        """Built at the first draw, and not pickled."""
        return AliasTable.of(self._weights)

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        return _WeightedDraws(self.num_positions, self.table, seed, epoch)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "table"}

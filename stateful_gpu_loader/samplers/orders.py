"""Orders that are addressed by position: what a loader asks for indices.

A new kind of order is one :class:`PositionOrder`: the loader, its ranks and its resumption work
with any.
"""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from stateful_gpu_loader.randomness import permutation
from stateful_gpu_loader.randomness.permutation import Permutation
from stateful_gpu_loader.records import IndexArray


class EpochOrder(Protocol):
    """One epoch's global order: from positions to the dataset's indices."""

    @property
    def n(self) -> int:
        """Samples in the epoch, all ranks together; fixed while the epoch lasts."""
        ...

    def __call__(self, positions: IndexArray) -> IndexArray:
        """int64 [...] positions in ``range(n)`` to int64 [...] indices."""
        ...


def key_offset_of(indices: EpochOrder) -> int:
    """What an epoch's positions are apart from those of other orders that share its seed.

    Shards that have an order each (``key_offset``) draw different augmentations by it; orders
    that ranks share have no need.
    """
    return int(getattr(indices, "key_offset", 0))


@runtime_checkable
class PositionOrder(Protocol):
    """The orders of all epochs."""

    algorithm: str
    """Name and version, and all that decides the order beside seed and length: compared as part of
    the fingerprint."""
    is_shuffled: bool
    """Whether chance is in it."""

    @property
    def num_positions(self) -> int:
        """Samples in an epoch that begins now, all ranks together."""
        ...

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        """The order of one epoch."""
        ...


@dataclass(frozen=True)
class Identity:
    """The dataset's own order, as an EpochOrder.

    >>> import numpy as np
    >>> Identity(5)(np.array([3, 4])).tolist()
    [3, 4]
    """

    n: int

    def __call__(self, positions: IndexArray) -> IndexArray:
        return positions


@dataclass(frozen=True, eq=False)
class Listed:
    """An order that is written down, as an EpochOrder.

    >>> import numpy as np
    >>> Listed(np.array([2, 0, 1]))(np.array([1, 2])).tolist()
    [0, 1]
    """

    indices: IndexArray

    @property
    def n(self) -> int:
        return len(self.indices)

    def __call__(self, positions: IndexArray) -> IndexArray:
        return self.indices[positions]


ENDLESS = 2**62
"""Positions of an epoch that ends somewhere, nobody knows where."""


class CallOrder:
    """The positions themselves, of what is made position by position and has no index.

    Args:
        length: of every epoch; None where it ends by itself.
    """

    algorithm = "called"
    is_shuffled = False

    def __init__(self, length: int | None) -> None:
        self.num_positions = ENDLESS if length is None else length

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        return Identity(self.num_positions)


class SequentialOrder:
    """The dataset's own order in every epoch."""

    algorithm = "sequential"
    is_shuffled = False

    def __init__(self, data_source: Sized) -> None:
        self._data_source = data_source

    @property
    def num_positions(self) -> int:
        return len(self._data_source)

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        return Identity(self.num_positions)


class ShuffledOrder(SequentialOrder):
    """A keyed permutation of the dataset in each epoch, in constant memory."""

    algorithm = f"{permutation.ALGORITHM}-{permutation.VERSION}"
    is_shuffled = True

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        # range(0) has one order, and Permutation none.
        n = self.num_positions
        return Permutation(n, seed=seed, epoch=epoch) if n else Identity(0)

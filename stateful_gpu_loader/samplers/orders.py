"""Orders that are addressed by position: what a loader asks for indices.

A new kind of order is one :class:`PositionOrder`: the loader, its ranks and its resumption work
with any.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sized
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

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
    """What is added to an epoch's positions before they become the keys of augmentations.

    Shards that have an order each share a seed; their ``key_offset`` keeps their augmentations
    apart. It is 0 for an order that the ranks share.
    """
    return int(getattr(indices, "key_offset", 0))


@runtime_checkable
class PositionOrder(Protocol):
    """The orders of all epochs."""

    algorithm: str
    """Name and version, and all that decides the order beside seed and length: compared as part of
    the fingerprint."""
    is_shuffled: bool
    """Whether the order is random."""

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
    """An order that is given as a list of indices, as an EpochOrder.

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
"""Positions of an epoch whose end is not known in advance."""


class CallOrder:
    """The positions themselves, for samples that are made one after the other and have no index.

    Args:
        length: of every epoch; None where its end is not known in advance.
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


class LastEpoch(ABC):
    """The base of position orders that build a table at the start of an epoch.

    The table is made when an epoch is asked for and kept until another one is; it is never
    pickled, so that a worker process gets the order without it. Several threads may ask at once:
    at worst each makes the same table.
    """

    _last: tuple[tuple[int, int, int], EpochOrder] | None = None

    @property
    @abstractmethod
    def num_positions(self) -> int:
        """Samples in an epoch that begins now, all ranks together."""

    @abstractmethod
    def begin(self, seed: int, epoch: int) -> EpochOrder:
        """Make the order of one epoch."""

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        """The order of one epoch, made anew only for another seed, epoch or length."""
        key = seed, epoch, self.num_positions
        last = self._last
        if last is None or last[0] != key:
            last = key, self.begin(seed, epoch)
            self._last = last
        return last[1]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_last"}


def digest_of(array: npt.NDArray[np.generic]) -> str:
    """BLAKE2b of the array's length and of its elements as little-endian bytes.

    Args:
        array: [n] of any number type; the same numbers of another type are another array.

    Returns:
        the length and 16 hexadecimal digits.

    >>> digest_of(np.array([3, 1, 2]))
    '3:c22d70e57dc8bf9f'
    """
    little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    text = blake2b(little.data, digest_size=8, person=little.dtype.str.encode()).hexdigest()
    return f"{len(array)}:{text}"

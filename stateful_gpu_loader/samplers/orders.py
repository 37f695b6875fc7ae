"""Orders addressed by position: the interface between samplers and the loader.

The loader uses only :class:`PositionOrder`.
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

_SEARCHED_AT_ONCE = 1 << 18
"""Number of positions that a full search examines at a time."""


class EpochOrder(Protocol):
    """One epoch's global order: maps positions to the dataset's indices."""

    @property
    def n(self) -> int:
        """Number of samples in the epoch, all ranks together; constant during the epoch."""
        ...

    def __call__(self, positions: IndexArray) -> IndexArray:
        """Map positions in ``range(n)`` to indices; both int64 [...]."""
        ...


def positions_of(order: EpochOrder, index: int) -> IndexArray:
    """Return every position of an index of the dataset, ascending.

    If the order is a Permutation or has a method ``positions_of(index)``, it is used. Otherwise, as
    for draws with replacement, all positions are searched.

    Args:
        order: one epoch's order.
        index: 0 0 or more; an absent index has no positions.

    Returns:
        int64 [number of occurrences].

    >>> positions_of(Permutation(10**18, seed=42, epoch=0), 332982990687425833)
    array([100000000000000000])
    """
    if isinstance(order, Permutation):
        return order.inverse(np.arange(index, min(index + 1, order.n), dtype=np.int64))
    if has_inverse(order):
        own: IndexArray = order.positions_of(index)  # type: ignore[attr-defined]
        return own
    found = [np.empty(0, dtype=np.int64)]
    for start in range(0, order.n, _SEARCHED_AT_ONCE):
        positions = np.arange(start, min(start + _SEARCHED_AT_ONCE, order.n), dtype=np.int64)
        found.append(positions[order(positions) == index])
    return np.concatenate(found)


def has_inverse(order: EpochOrder) -> bool:
    """Whether :func:`positions_of` works without a search over all positions."""
    return isinstance(order, Permutation) or hasattr(order, "positions_of")


def key_offset_of(indices: EpochOrder) -> int:
    """Return the offset between an epoch's positions and the positions in augmentation keys.

    Shards with separate orders share a seed; their ``key_offset`` makes their augmentations differ.
    It is 0 for an order that the ranks share.
    """
    return int(getattr(indices, "key_offset", 0))


@runtime_checkable
class PositionOrder(Protocol):
    """Orders of all epochs, addressed by position."""

    algorithm: str
    """Name, version, and everything else that determines the order, except seed and length.

    The fingerprint includes it.
    """
    is_shuffled: bool

    @property
    def num_positions(self) -> int:
        """Number of samples in an epoch that begins now, all ranks together."""
        ...

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        """Return the order of one epoch."""
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

    def positions_of(self, index: int) -> IndexArray:
        return np.arange(index, min(index + 1, self.n), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Listed:
    """An order given as a list of indices, as an EpochOrder.

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
"""Number of positions of an epoch whose end is unknown."""


class CallOrder:
    """Yields the positions themselves, for samples without an index.

    Args:
        length: number of samples in every epoch; None if unknown.
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
    """A random permutation of the dataset in each epoch, in constant memory."""

    algorithm = f"{permutation.ALGORITHM}-{permutation.VERSION}"
    is_shuffled = True

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        # Permutation does not accept n = 0.
        n = self.num_positions
        return Permutation(n, seed=seed, epoch=epoch) if n else Identity(0)


class LastEpoch(ABC):
    """Base of position orders that compute a table at the start of an epoch.

    The table is computed when an epoch is first requested, and kept until another epoch is. It is
    not pickled. Several threads may compute the same table at once.
    """

    _last: tuple[tuple[int, int, int], EpochOrder] | None = None

    @property
    @abstractmethod
    def num_positions(self) -> int:
        """Number of samples in an epoch that begins now, all ranks together."""

    @abstractmethod
    def begin(self, seed: int, epoch: int) -> EpochOrder:
        """Compute the order of one epoch."""

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        """Return the order of one epoch, computed again only if seed, epoch or length change."""
        key = seed, epoch, self.num_positions
        last = self._last
        if last is None or last[0] != key:
            last = key, self.begin(seed, epoch)
            self._last = last
        return last[1]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_last"}


def digest_of(array: npt.NDArray[np.generic]) -> str:
    """Return the BLAKE2b digest of an array's length and its elements as little-endian bytes.

    Args:
        array: [n] of any number type, on which the digest depends.

    Returns:
        The length and 16 hexadecimal digits.

    >>> digest_of(np.array([3, 1, 2]))
    '3:c22d70e57dc8bf9f'
    """
    little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    text = blake2b(little.data, digest_size=8, person=little.dtype.str.encode()).hexdigest()
    return f"{len(array)}:{text}"

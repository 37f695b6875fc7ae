"""Blocks: the storage layout of a dataset (shards, row groups), and a shuffled order for it."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import KW_ONLY, dataclass
from typing import Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.randomness.permutation import (
    Permutation,
    distinct_of,
    permuted,
    unpermuted,
)
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.samplers.orders import (
    EpochOrder,
    Identity,
    LastEpoch,
    ShuffledOrder,
    digest_of,
)
from stateful_gpu_loader.state.schema import as_int

DEFAULT_WINDOW = 16
"""Default number of blocks mixed at a time."""
_LARGEST = 1 << 62


@runtime_checkable
class HasBlocks(Protocol):
    """A dataset that reports the blocks in which it is stored."""

    def block_lengths(self) -> IndexArray:
        """Return the number of samples in each block, in index order, int64 [n]."""
        ...


@dataclass(frozen=True, eq=False)
class Blocks:
    """Storage layout of a dataset, for a shuffled order that reads it nearly sequentially.

    Args:
        lengths: number of samples in every block as one int (the last block may be shorter), or
            int64 [number of blocks] with the number in each block, none negative (for block
            boundaries: ``np.diff(boundaries)``).
        window: number of blocks open and mixed at a time, 1 or more. The order is as random as with
            a shuffle buffer of all their samples.

    Raises:
        ValueError: a length or the window is out of range, or the lengths are not a list of ints.
        TypeError: the window is not an int.

    >>> Blocks(1000, window=8)
    Blocks(1000 each, window=8)
    >>> Blocks([3, 0, 5])
    Blocks(3 of 0 to 5 samples, window=16)
    """

    lengths: int | npt.ArrayLike
    _: KW_ONLY
    window: int = DEFAULT_WINDOW

    def __post_init__(self) -> None:
        window = as_int("window", self.window)
        if window < 1:
            raise ValueError(f"{window = } mixes nothing. Remedy: pass 1 block or more")
        object.__setattr__(self, "window", window)
        lengths = np.array(self.lengths)
        if lengths.size == 0:
            lengths = lengths.astype(np.int64)
        if lengths.dtype.kind not in "iu" or lengths.ndim > 1:
            raise ValueError(
                f"lengths of blocks have shape {lengths.shape} and dtype {lengths.dtype}. Remedy: "
                "pass one int, or a list of ints"
            )
        least = 1 if lengths.ndim == 0 else 0
        if lengths.size and lengths.min() < least:
            raise ValueError(
                f"a block has {lengths.min()} samples. Remedy: pass lengths of {least} or more"
            )
        if lengths.ndim == 0:
            object.__setattr__(self, "lengths", int(lengths))
        else:
            lengths = lengths.astype(np.int64)
            lengths.flags.writeable = False
            object.__setattr__(self, "lengths", lengths)

    @classmethod
    def of(cls, source: HasBlocks, *, window: int = DEFAULT_WINDOW) -> Blocks:
        """Return the blocks that a source reports.

        Raises:
            TypeError: the source has no ``block_lengths()``.
        """
        if not isinstance(source, HasBlocks):
            raise TypeError(
                f"{type(source).__name__} has no block_lengths(). Remedy: describe its blocks: "
                "Blocks(lengths, window=...)"
            )
        return cls(source.block_lengths(), window=window)

    @property
    def even(self) -> int | None:
        """Number of samples in every block; None if the blocks differ."""
        return self.lengths if isinstance(self.lengths, int) else None

    @property
    def uneven(self) -> IndexArray:
        """Number of samples in each block if they differ; int64 [number of blocks]."""
        return cast(IndexArray, self.lengths)

    def layout(self) -> str:
        """Return everything that determines the order, as text."""
        lengths = f"{self.even} each" if self.even is not None else digest_of(self.uneven)
        return f"{lengths}, window {self.window}"

    def __repr__(self) -> str:
        if self.even is not None:
            return f"Blocks({self.even} each, window={self.window})"
        lengths = self.uneven
        extent = f"{lengths.min()} to {lengths.max()} samples" if len(lengths) else "none"
        return f"Blocks({len(lengths)} of {extent}, window={self.window})"


class _EvenLayout:
    """Positions of an epoch's blocks of equal length, in constant memory.

    Turn t reads the t-th block. The dataset's last block may be shorter.
    """

    def __init__(self, n: int, length: int, *, seed: int, epoch: int) -> None:
        self.num_blocks = -(-n // length)
        self._length = length
        self._lacking = self.num_blocks * length - n
        self._blocks = Permutation(self.num_blocks, seed=seed, epoch=epoch)
        self._shorter = int(self._blocks.inverse(np.array([self.num_blocks - 1]))[0])
        self._end_of_shorter = (self._shorter + 1) * length - self._lacking

    def starts(self, turns: IndexArray) -> IndexArray:
        """Return the positions at which turns begin; for ``num_blocks``, the end of the epoch."""
        return turns * self._length - np.where(turns > self._shorter, self._lacking, 0)

    def turns(self, positions: IndexArray) -> IndexArray:
        """Return the turns that contain the positions."""
        lacking = np.where(positions >= self._end_of_shorter, self._lacking, 0)
        turns: IndexArray = (positions + lacking) // self._length
        return turns

    def first_indices(self, turns: IndexArray) -> IndexArray:
        """Return the index of the first sample in the blocks read at the turns."""
        return self._blocks(turns) * self._length

    def turns_of(self, index: int) -> IndexArray:
        """Return the turn at which the block of an index is read, int64 [1]."""
        return self._blocks.inverse(np.array([index // self._length], dtype=np.int64))


class _UnevenLayout:
    """Positions of blocks of any lengths, with 24 bytes a block and a binary search."""

    def __init__(self, lengths: IndexArray, *, seed: int, epoch: int) -> None:
        self.num_blocks = len(lengths)
        blocks = Permutation(len(lengths), seed=seed, epoch=epoch)(np.arange(len(lengths)))
        self._starts = _offsets(lengths[blocks])
        self._first_indices = _offsets(lengths)[blocks]

    def starts(self, turns: IndexArray) -> IndexArray:
        return self._starts[turns]

    def turns(self, positions: IndexArray) -> IndexArray:
        # The last turn that begins at or before the position; empty blocks are skipped.
        return np.searchsorted(self._starts, positions, side="right").astype(np.int64) - 1

    def first_indices(self, turns: IndexArray) -> IndexArray:
        return self._first_indices[turns]

    def turns_of(self, index: int) -> IndexArray:
        first, sizes = self._first_indices, np.diff(self._starts)
        return np.flatnonzero((first <= index) & (index < first + sizes))


@dataclass(frozen=True, eq=False)
class BlockEpoch:
    """One epoch's order over a layout of blocks."""

    n: int
    window: int
    layout: _EvenLayout | _UnevenLayout
    seed: int
    epoch: int

    def __call__(self, positions: IndexArray) -> IndexArray:
        places = positions.reshape(-1)
        if places.size and (places.min() < 0 or places.max() >= self.n):
            raise IndexError(
                f"position outside range({self.n}): from {places.min()} to {places.max()}. "
                "Remedy: count from 0 within one epoch"
            )
        layout = self.layout
        windows = layout.turns(places) // self.window
        distinct, which = distinct_of(windows)
        starts, ends = self._extents(distinct)
        first = starts[which]
        mixed = first + permuted(
            places - first,
            (ends - starts)[which],
            seed=self.seed,
            epoch=self.epoch,
            numbers=windows,
        )
        turns = layout.turns(mixed)
        indices = layout.first_indices(turns) + mixed - layout.starts(turns)
        return indices.reshape(positions.shape)

    def window_of(self, position: int) -> int:
        """Return the number of the window that a position lies in."""
        return int(self.layout.turns(np.array([position]))[0]) // self.window

    def indices_of(self, window: int) -> IndexArray:
        """Return the indices of a window, block by block; int64 [0] beyond the last window."""
        first = window * self.window
        turns = np.arange(first, min(first + self.window, self.layout.num_blocks), dtype=np.int64)
        starts, firsts = self.layout.starts(turns), self.layout.first_indices(turns)
        ends = starts + np.diff(self.layout.starts(np.append(turns, turns[-1:] + 1)))
        blocks = [
            np.arange(index, index + end - start, dtype=np.int64)
            for index, start, end in zip(
                firsts.tolist(), starts.tolist(), ends.tolist(), strict=True
            )
        ]
        return np.concatenate([np.empty(0, dtype=np.int64), *blocks])

    def positions_of(self, index: int) -> IndexArray:
        """Return the position of an index, int64 [1], or [0] for an index outside the dataset."""
        if index >= self.n:
            return np.empty(0, dtype=np.int64)
        layout = self.layout
        turns = layout.turns_of(index)
        mixed = layout.starts(turns) + index - layout.first_indices(turns)
        windows = turns // self.window
        starts, ends = self._extents(windows)
        return starts + unpermuted(
            mixed - starts, ends - starts, seed=self.seed, epoch=self.epoch, numbers=windows
        )

    def _extents(self, windows: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Return the positions at which windows begin and end."""
        layout, first = self.layout, windows * self.window
        # (windows + 1) * window may lie beyond the last block.
        last = first + np.minimum(self.window, layout.num_blocks - first)
        return layout.starts(first), layout.starts(last)


class BlockOrder(LastEpoch):
    """Orders of all epochs of a dataset stored in blocks.

    In each epoch the blocks are permuted and divided into windows, and the samples within a window
    are permuted. Only the blocks of one window are read at any time. If all blocks have the same
    length, an index takes constant time and memory; otherwise prefix sums over the blocks are
    computed once an epoch.

    Args:
        data_source: the dataset.
        blocks: its storage layout.

    Raises:
        ValueError: the block lengths do not add up to the dataset's length, or there are 2**62
            samples or more.
    """

    is_shuffled = True

    def __init__(self, data_source: Sized, blocks: Blocks) -> None:
        self._data_source = data_source
        self._blocks = blocks
        self.algorithm = f"blocks-1 over {ShuffledOrder.algorithm}, {blocks.layout()}"
        self._check()

    @property
    def num_positions(self) -> int:
        return len(self._data_source)

    def begin(self, seed: int, epoch: int) -> EpochOrder:
        self._check()
        n, even = self.num_positions, self._blocks.even
        if n == 0:
            return Identity(0)
        layout: _EvenLayout | _UnevenLayout
        if even is None:
            layout = _UnevenLayout(self._blocks.uneven, seed=seed, epoch=epoch)
        else:
            layout = _EvenLayout(n, min(even, n), seed=seed, epoch=epoch)
        window = min(self._blocks.window, layout.num_blocks)
        return BlockEpoch(n, window, layout, seed, epoch)

    def _check(self) -> None:
        n = self.num_positions
        if n >= _LARGEST:
            raise ValueError(f"{n} samples are too many for blocks. Remedy: at most {_LARGEST - 1}")
        if self._blocks.even is None and self._blocks.uneven.sum() != n:
            raise ValueError(
                f"the blocks have {self._blocks.uneven.sum()} samples together, and the dataset "
                f"{n}. Remedy: pass the lengths of all of its blocks"
            )


def _offsets(lengths: IndexArray) -> IndexArray:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])

"""BlockOrder: blocks in keyed order, and their samples mixed within windows of them."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stateful_gpu_loader.randomness.permutation import Permutation
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.samplers.blocks import Blocks
from stateful_gpu_loader.samplers.last_epoch import LastEpoch
from stateful_gpu_loader.samplers.orders import EpochOrder, Identity, ShuffledOrder
from stateful_gpu_loader.samplers.permutations import permuted

_LARGEST = 1 << 62


class _Layout(Protocol):
    """Blocks one after the other in the order of an epoch; turn t is when the t-th is read."""

    num_blocks: int

    def starts(self, turns: IndexArray) -> IndexArray:
        """Positions at which the turns begin; that of turn ``num_blocks`` is the epoch's end."""
        ...

    def turns(self, positions: IndexArray) -> IndexArray:
        """The turns that the positions fall into."""
        ...

    def first_indices(self, turns: IndexArray) -> IndexArray:
        """The dataset's index of the first sample of the blocks that are read at the turns."""
        ...


class _EvenLayout:
    """Blocks of one length, the dataset's last one perhaps shorter: constant memory."""

    def __init__(self, n: int, length: int, *, seed: int, epoch: int) -> None:
        self.num_blocks = -(-n // length)
        self._length = length
        self._lacking = self.num_blocks * length - n
        self._blocks = Permutation(self.num_blocks, seed=seed, epoch=epoch)
        self._shorter = int(self._blocks.inverse(np.array([self.num_blocks - 1]))[0])
        self._end_of_shorter = (self._shorter + 1) * length - self._lacking

    def starts(self, turns: IndexArray) -> IndexArray:
        return turns * self._length - np.where(turns > self._shorter, self._lacking, 0)

    def turns(self, positions: IndexArray) -> IndexArray:
        lacking = np.where(positions >= self._end_of_shorter, self._lacking, 0)
        turns: IndexArray = (positions + lacking) // self._length
        return turns

    def first_indices(self, turns: IndexArray) -> IndexArray:
        return self._blocks(turns) * self._length


class _UnevenLayout:
    """Blocks of any lengths: 24 bytes a block, and a binary search for a position."""

    def __init__(self, lengths: IndexArray, *, seed: int, epoch: int) -> None:
        self.num_blocks = len(lengths)
        blocks = Permutation(len(lengths), seed=seed, epoch=epoch)(np.arange(len(lengths)))
        self._starts = _offsets(lengths[blocks])
        self._first_indices = _offsets(lengths)[blocks]

    def starts(self, turns: IndexArray) -> IndexArray:
        return self._starts[turns]

    def turns(self, positions: IndexArray) -> IndexArray:
        # The last turn that begins at or before the position: empty blocks begin there, too.
        return np.searchsorted(self._starts, positions, side="right").astype(np.int64) - 1

    def first_indices(self, turns: IndexArray) -> IndexArray:
        return self._first_indices[turns]


@dataclass(frozen=True, eq=False)
class _BlockEpoch:
    """One epoch's order over a layout of blocks."""

    n: int
    window: int
    layout: _Layout
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
        starts = layout.starts(windows * self.window)
        # Not (windows + 1) * window: that of the last window may lie beyond the last block.
        ends = layout.starts(
            windows * self.window
            + np.minimum(self.window, layout.num_blocks - windows * self.window)
        )
        mixed = starts + permuted(
            places - starts, ends - starts, seed=self.seed, epoch=self.epoch, numbers=windows
        )
        turns = layout.turns(mixed)
        indices = layout.first_indices(turns) + mixed - layout.starts(turns)
        return indices.reshape(positions.shape)


class BlockOrder(LastEpoch):
    """The orders of all epochs of a dataset in blocks.

    In each epoch the blocks are permuted by key and taken in windows of so many of them; within
    a window its samples are permuted by key. So at any time samples of one window's blocks are
    read, and each block in one window only. An index is found in constant time and memory for
    blocks of one length; for others, prefix sums over the blocks are made once an epoch.

    Args:
        data_source: the dataset.
        blocks: how it is stored.

    Raises:
        ValueError: the lengths of the blocks do not add up to the dataset's, or there are 2**62
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
        layout: _Layout
        if even is None:
            layout = _UnevenLayout(self._blocks.uneven, seed=seed, epoch=epoch)
        else:
            layout = _EvenLayout(n, min(even, n), seed=seed, epoch=epoch)
        window = min(self._blocks.window, layout.num_blocks)
        return _BlockEpoch(n, window, layout, seed, epoch)

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

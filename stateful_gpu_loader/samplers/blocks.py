"""Blocks: where data lies together (shards, row groups), and how many are mixed at a time."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.samplers.digest import digest_of
from stateful_gpu_loader.state.schema import as_int

DEFAULT_WINDOW = 16
"""Blocks that are mixed at a time unless something else is asked for."""


@runtime_checkable
class HasBlocks(Protocol):
    """A dataset that knows in which blocks it is stored."""

    def block_lengths(self) -> IndexArray:
        """int64 [number of blocks]: samples in each block, in the order of their indices."""
        ...


@dataclass(frozen=True, eq=False)
class Blocks:
    """How a dataset is stored, for a shuffled order that reads it nearly sequentially.

    Args:
        lengths: samples in every block as one int (the last block may be shorter), or int64
            [number of blocks] with those of each block, none negative (of block boundaries:
            ``np.diff(boundaries)``).
        window: blocks that are mixed at a time, 1 or more: that many are open at once, and a
            buffer of their samples is what the order is as random as.

    Raises:
        ValueError: a length or the window is out of range, or the lengths are no list of ints.
        TypeError: the window is no int.

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
        """The blocks of a source that names them itself.

        Raises:
            TypeError: it has no ``block_lengths()``.
        """
        if not isinstance(source, HasBlocks):
            raise TypeError(
                f"{type(source).__name__} has no block_lengths(). Remedy: describe its blocks: "
                "Blocks(lengths, window=...)"
            )
        return cls(source.block_lengths(), window=window)

    @property
    def even(self) -> int | None:
        """Samples in every block, None where each has its own number."""
        return self.lengths if isinstance(self.lengths, int) else None

    @property
    def uneven(self) -> IndexArray:
        """int64 [number of blocks]: samples in each, where each has its own number."""
        return cast(IndexArray, self.lengths)

    def layout(self) -> str:
        """All that decides the order, as text."""
        lengths = f"{self.even} each" if self.even is not None else digest_of(self.uneven)
        return f"{lengths}, window {self.window}"

    def __repr__(self) -> str:
        if self.even is not None:
            return f"Blocks({self.even} each, window={self.window})"
        lengths = self.uneven
        extent = f"{lengths.min()} to {lengths.max()} samples" if len(lengths) else "none"
        return f"Blocks({len(lengths)} of {extent}, window={self.window})"

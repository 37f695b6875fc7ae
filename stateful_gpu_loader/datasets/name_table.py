"""NameTable: a million file names in one block of memory."""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


class NameTable:
    """An immutable sequence of names: some 30 bytes each, where a list of str takes 90.

    Workers that are forked share it (there are no objects whose reference counts would be
    written), and workers that are spawned receive it as two blocks.

    >>> table = NameTable(["a/1.jpg", "b/2.jpg"])
    >>> len(table), table[1]
    (2, 'b/2.jpg')
    """

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self._text = b"".join(encoded)
        self._ends: npt.NDArray[np.int64] = np.cumsum(
            [0, *(len(name) for name in encoded)], dtype=np.int64
        )

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        """The name at ``0 <= index < len(self)``."""
        return os.fsdecode(self._text[self._ends[index] : self._ends[index + 1]])

    def blocks(self) -> tuple[bytes, bytes]:
        """The names joined, and where each ends: what a fingerprint is made from."""
        return self._text, self._ends.astype("<i8").tobytes()

    def __repr__(self) -> str:
        return f"NameTable({len(self)} names, {len(self._text)} bytes)"

"""KeyTable: the keys of an LMDB by position, compactly and shared between forked workers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import numpy as np
import numpy.typing as npt

BLOCK = 1 << 16
"""Keys that are held as objects at once while the table is built."""


class KeyTable:
    """An immutable list of bytes: their text joined, and where each ends unless all are as long.

    >>> KeyTable([b"00000007_a.jpg", b"00000009_b.jpg"])[1]
    b'00000009_b.jpg'
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        text, lengths = bytearray(), [np.empty(0, dtype=np.int64)]
        iterator = iter(keys)
        while block := list(islice(iterator, BLOCK)):
            text += b"".join(block)
            lengths.append(np.fromiter(map(len, block), dtype=np.int64, count=len(block)))
        every = np.concatenate(lengths)
        self._text = bytes(text)
        self._length = len(every)
        self._width = int(every[0]) if len(every) and (every == every[0]).all() else None
        self._ends: npt.NDArray[np.int64] | None = None
        if self._width is None:
            self._ends = np.concatenate([[0], np.cumsum(every)])

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> bytes:
        """The key at ``0 <= index < len(self)``."""
        if self._ends is not None:
            return self._text[self._ends[index] : self._ends[index + 1]]
        width = self._width or 0
        return self._text[index * width : (index + 1) * width]

    def blocks(self) -> tuple[bytes, bytes]:
        """The keys joined, and where each ends or their length: what a fingerprint is made from."""
        if self._ends is not None:
            return self._text, self._ends.astype("<i8").tobytes()
        return self._text, f"{self._width} bytes each".encode()

    def __repr__(self) -> str:
        return f"KeyTable({len(self)} keys, {len(self._text)} bytes)"

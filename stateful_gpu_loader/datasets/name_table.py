"""KeyTable and NameTable: a million keys or file names in one block of memory.

Each takes some 30 bytes, where a list of str takes 90. Workers that are forked share the block
(there are no objects whose reference counts would be written), and workers that are spawned receive
it as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice

import numpy as np
import numpy.typing as npt

BLOCK = 1 << 16
"""Keys that are held as objects at once while a table is built."""


class KeyTable:
    """An immutable sequence of bytes: all joined, and where each ends unless all are as long.

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
        self.text = bytes(text)
        self._length = len(every)
        self._width = int(every[0]) if len(every) and (every == every[0]).all() else None
        self._ends = np.concatenate([[0], np.cumsum(every)]) if self._width is None else None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> bytes:
        """The key at ``0 <= index < len(self)``."""
        if self._ends is not None:
            return self.text[self._ends[index] : self._ends[index + 1]]
        width = self._width or 0
        return self.text[index * width : (index + 1) * width]

    def ends(self) -> npt.NDArray[np.int64]:
        """int64 [n + 1]: where each key begins in the text, and where the last one ends."""
        if self._ends is not None:
            return self._ends
        return np.arange(self._length + 1, dtype=np.int64) * (self._width or 0)

    def blocks(self) -> tuple[bytes, bytes]:
        """The keys joined, and where each ends or their length: what a fingerprint is made from."""
        if self._ends is not None:
            return self.text, self._ends.astype("<i8").tobytes()
        return self.text, f"{self._width} bytes each".encode()

    def __repr__(self) -> str:
        return f"KeyTable({len(self)} keys, {len(self.text)} bytes)"


class NameTable:
    """An immutable sequence of file names, of any bytes that the system allows.

    >>> table = NameTable(["a/1.jpg", "b/2.jpg"])
    >>> len(table), table[1]
    (2, 'b/2.jpg')
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._keys = KeyTable(map(os.fsencode, names))

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> str:
        """The name at ``0 <= index < len(self)``."""
        return os.fsdecode(self._keys[index])

    def blocks(self) -> tuple[bytes, bytes]:
        """The names joined, and where each ends: what a fingerprint is made from."""
        return self._keys.text, self._keys.ends().astype("<i8").tobytes()

    def __repr__(self) -> str:
        return f"NameTable({len(self)} names, {len(self._keys.text)} bytes)"

"""Lookahead: small pieces of a file in ascending order, read in windows of a size that suits."""

from __future__ import annotations

from stateful_gpu_loader.datasets.framed.framing import Read

_LARGEST = 1 << 23


class Lookahead:
    """Reads headers that lie near each other in one go, and skips what lies between far ones.

    Args:
        read: the bytes at an offset, so many.
        end: of the file, in bytes.
        window: the smallest that is read at a time; it grows where it holds many pieces.

    >>> import numpy as np
    >>> file = np.arange(100, dtype=np.uint8)
    >>> pieces = Lookahead(lambda offset, size: file[offset : offset + size], 100, window=10)
    >>> pieces.at(3, 2), pieces.at(97, 3)
    (b'\\x03\\x04', b'abc')
    """

    def __init__(self, read: Read, end: int, *, window: int) -> None:
        self._read = read
        self._end = end
        self._smallest = window
        self._window_size = window
        self._window = b""
        self._start = 0
        self._served = 0

    def at(self, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset``, which is not before that of the call before.

        Raises:
            OSError: the storage failed.
            ValueError: the file ends before.
        """
        start = offset - self._start
        if start + size > len(self._window):
            self._refill(offset, size)
            start = 0
        self._served += 1
        return self._window[start : start + size]

    def _refill(self, offset: int, size: int) -> None:
        if self._served > 1:
            self._window_size = min(self._window_size * 4, _LARGEST)
        else:
            self._window_size = max(self._window_size // 4, self._smallest)
        length = max(size, min(self._window_size, self._end - offset))
        self._window = self._read(offset, length).tobytes()
        self._start = offset
        self._served = 0

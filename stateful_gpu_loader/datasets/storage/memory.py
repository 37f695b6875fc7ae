"""Memory for reads: new NumPy arrays, a reused scratch array, or one arena for a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

Bytes = npt.NDArray[np.uint8]
Memory = Callable[[int], Bytes]
"""Returns uninitialised uint8 [num_bytes] for a number of bytes; the caller fills it."""


LARGEST_GUESS = 2**28
"""Maximum number of bytes allocated on the evidence of a single read."""


def with_margin(num_bytes: int) -> int:
    """Add an eighth: batches differ by some percent, and growing an arena copies it.

    >>> with_margin(800)
    900
    """
    return num_bytes * 9 // 8


def new_memory(num_bytes: int) -> Bytes:
    """Return a NumPy array; torch.empty is slower and uses torch's default device."""
    return np.empty(num_bytes, dtype=np.uint8)


class Scratch:
    """A :data:`Memory` that returns the same bytes at each call, which stay in the CPU cache.

    >>> scratch = Scratch()
    >>> first = scratch(2)
    >>> first[:] = 1
    >>> scratch(2)
    array([1, 1], dtype=uint8)
    """

    def __init__(self) -> None:
        self._bytes = new_memory(0)

    def __call__(self, num_bytes: int) -> Bytes:
        if num_bytes > len(self._bytes):
            self._bytes = new_memory(num_bytes)
        return self._bytes[:num_bytes]


class Arena:
    """The bytes of several reads, back to back in one tensor that grows as needed.

    Args:
        allocate: returns an uninitialised uint8 tensor [num_bytes] on the CPU.
        num_bytes: expected total number of bytes; 0 if unknown.
        num_reads: number of reads. If ``num_bytes`` is unknown, the first read allocates memory for
            this many reads of its size, up to :data:`LARGEST_GUESS`.

    >>> arena = Arena(lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8), 1)
    >>> arena.take(2)[:] = 1
    >>> arena.take(3)[:] = 2
    >>> arena.cut(4)
    >>> arena.filled()
    tensor([1, 1, 2, 2], dtype=torch.uint8)
    """

    def __init__(
        self, allocate: Callable[[int], torch.Tensor], num_bytes: int, num_reads: int = 1
    ) -> None:
        self._allocate = allocate
        self._num_reads = num_reads
        self._tensor = allocate(num_bytes)
        self._bytes: Bytes = self._tensor.numpy()
        self.end = 0
        """Number of bytes taken so far."""

    def take_from(self, start: int, num_bytes: int) -> Bytes:
        """Drop the bytes from ``start`` on, then :meth:`take`."""
        self.cut(start)
        return self.take(num_bytes)

    def take(self, num_bytes: int) -> Bytes:
        """Return the next bytes, to be filled before more are taken: a :data:`Memory`."""
        start, end = self.end, self.end + num_bytes
        if end > len(self._bytes):
            guess = min(with_margin(end * self._num_reads), LARGEST_GUESS)
            larger = self._allocate(max(end, 2 * len(self._bytes) or guess))
            copied: Bytes = larger.numpy()
            copied[:start] = self._bytes[:start]
            self._tensor, self._bytes = larger, copied
        self.end = end
        return self._bytes[start:end]

    def holds(self, start: int, data: torch.Tensor) -> bool:
        """Return whether ``data`` lies in the arena at ``start``."""
        return data.numel() > 0 and data.data_ptr() == self._tensor.data_ptr() + start

    def keep(self, start: int, data: torch.Tensor) -> None:
        """Make ``data`` the last bytes of the arena, at ``start``.

        It is copied unless it already lies there.

        Args:
            start: value of :attr:`end` before the read.
            data: uint8 [num_bytes] on the CPU.
        """
        if not self.holds(start, data):
            self.cut(start)
            self.take(data.numel())[:] = data.numpy()
        self.cut(start + data.numel())

    def leave_out(self, start: int, spans: Sequence[tuple[int, int]]) -> int:
        """Remove parts of the last bytes, and return the new start of the remaining bytes.

        The bytes before a removed part move up to the bytes after it. In an image only few bytes
        come before.

        Args:
            start: first of the last bytes.
            spans: (first, last + 1) of each part, relative to ``start``, ascending.

        >>> arena = Arena(lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8), 9)
        >>> arena.take(9)[:] = range(9)
        >>> start = arena.leave_out(1, [(2, 3), (4, 6)])
        >>> arena.filled()[start:]
        tensor([1, 2, 4, 7, 8], dtype=torch.uint8)
        """
        to = start + spans[-1][1]
        for i in reversed(range(len(spans))):
            first, last = spans[i - 1][1] if i else 0, spans[i][0]
            moved = last - first
            self._bytes[to - moved : to] = self._bytes[start + first : start + last]
            to -= moved
        return to

    def view(self, start: int, num_bytes: int) -> memoryview:
        """Return ``num_bytes`` of the taken bytes, from ``start`` on."""
        return self._bytes.data[start : start + num_bytes]

    def cut(self, end: int) -> None:
        """Drop the bytes from ``end`` on."""
        self.end = end

    def filled(self) -> torch.Tensor:
        """Return all taken bytes: uint8 [end] on the CPU."""
        return self._tensor[: self.end]

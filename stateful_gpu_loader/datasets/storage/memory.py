"""Memory that bytes are read into: NumPy's own, one arena for a batch, or the same again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

Bytes = npt.NDArray[np.uint8]
Memory = Callable[[int], Bytes]
"""uint8 [num_bytes], uninitialised, for a number of bytes; whoever asked fills it."""


LARGEST_GUESS = 2**28
"""Most bytes that are allocated because of a single read, whose size may be unusual."""


def with_margin(num_bytes: int) -> int:
    """Add an eighth: batches differ by some percent, and an arena that must grow is copied.

    >>> with_margin(800)
    900
    """
    return num_bytes * 9 // 8


def new_memory(num_bytes: int) -> Bytes:
    """Of NumPy: torch.empty costs more, and obeys torch's default device."""
    return np.empty(num_bytes, dtype=np.uint8)


class Scratch:
    """A :data:`Memory` that gives the same bytes at each call, which stay in a processor's cache.

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
    """The bytes of several reads, back to back in one tensor; it grows as they come.

    Args:
        allocate: an uninitialised uint8 tensor [num_bytes] on the CPU.
        num_bytes: number of bytes that are expected in all; 0 if it is not known.
        num_reads: number of reads. If ``num_bytes`` is not known, memory for as many reads of the
            first one's size is allocated at once, up to :data:`LARGEST_GUESS`.

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
        """Bytes that were taken so far."""

    def take_from(self, start: int, num_bytes: int) -> Bytes:
        """As :meth:`take`, after :meth:`cut`: what was taken behind ``start`` is given up."""
        self.cut(start)
        return self.take(num_bytes)

    def take(self, num_bytes: int) -> Bytes:
        """The next bytes, to be filled before others are taken: a :data:`Memory`."""
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
        """Whether these bytes are what follows the first ``start`` ones."""
        return data.numel() > 0 and data.data_ptr() == self._tensor.data_ptr() + start

    def keep(self, start: int, data: torch.Tensor) -> None:
        """Let these bytes be what follows the first ``start`` ones, and be the last.

        They are copied unless they lie there.

        Args:
            start: :attr:`end`, before they were read.
            data: uint8 [num_bytes] on the CPU.
        """
        if not self.holds(start, data):
            self.cut(start)
            self.take(data.numel())[:] = data.numpy()
        self.cut(start + data.numel())

    def leave_out(self, start: int, spans: Sequence[tuple[int, int]]) -> int:
        """Remove parts of the last bytes, and return where the others now start.

        The bytes before a part move up to those after it, and leave a gap before the new start. In
        an image few bytes come before what is removed, and all pixels after it.

        Args:
            start: first of the bytes.
            spans: (first, last + 1) of each part, counted from ``start``, in order.

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
        """So many of the bytes that were taken, from ``start`` on."""
        return self._bytes.data[start : start + num_bytes]

    def cut(self, end: int) -> None:
        """Take back what lies behind so many bytes."""
        self.end = end

    def filled(self) -> torch.Tensor:
        """uint8 [end] on the CPU: all of them."""
        return self._tensor[: self.end]

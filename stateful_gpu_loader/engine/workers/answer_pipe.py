"""Reading messages from a pipe that several processes write, any of which may die in the middle.

``Connection.recv_bytes`` cannot be woken in the middle of a message whose writer is dead while
some child of it still holds the pipe; this can.
"""

from __future__ import annotations

import os
import select
import struct
from typing import Protocol

_SIZE = struct.Struct("!i")
_LONG_SIZE = struct.Struct("!Q")


class WritersLost(Exception):
    """No further message will come."""


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class AnswerPipe:
    """The reading end of a pipe of ``multiprocessing.Connection``'s messages.

    Args:
        reader: the pipe.
        alarm: becomes readable when nobody writes any more. What was written completely before is
            still read.
    """

    def __init__(self, reader: HasFileno, alarm: HasFileno) -> None:
        self._fd = reader.fileno()
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(alarm.fileno(), select.POLLIN)

    def wait(self) -> None:
        """Wait for a message to begin; an interrupt here loses nothing.

        Raises:
            WritersLost: none will.
        """
        if all(fd != self._fd for fd, _ in self._poll.poll()):
            raise WritersLost

    def has_begun(self) -> bool:
        """Whether a message has begun to arrive."""
        return any(fd == self._fd and event & select.POLLIN for fd, event in self._poll.poll(0))

    def receive(self) -> memoryview:
        """The next message: uint8 [n].

        Raises:
            WritersLost: nobody writes the rest of it.
        """
        (size,) = _SIZE.unpack(self._exactly(_SIZE.size))
        if size == -1:
            (size,) = _LONG_SIZE.unpack(self._exactly(_LONG_SIZE.size))
        return self._exactly(size)

    def _exactly(self, size: int) -> memoryview:
        rest = message = memoryview(bytearray(size))
        while rest:
            self.wait()
            num_read = os.readv(self._fd, [rest])
            if num_read == 0:
                raise WritersLost
            rest = rest[num_read:]
        return message

"""Reads messages from a pipe that several processes write to, any of which may die.

``Connection.recv_bytes`` would wait for ever within a message whose writer is dead while a child of
the writer still holds the pipe open; this reader does not.
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
    """The reading end of a pipe with messages of ``multiprocessing.Connection``.

    Args:
        reader: the pipe.
        alarm: becomes readable when all writers have ended. Messages that were written completely
            before that are still read.
    """

    def __init__(self, reader: HasFileno, alarm: HasFileno) -> None:
        self._fd = reader.fileno()
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(alarm.fileno(), select.POLLIN)

    def wait(self) -> None:
        """Wait for a message to begin; an interrupt here loses nothing.

        Raises:
            WritersLost: no message will come.
        """
        if all(fd != self._fd for fd, _ in self._poll.poll()):
            raise WritersLost

    def has_begun(self) -> bool:
        """Whether a message has begun to arrive."""
        return any(fd == self._fd and event & select.POLLIN for fd, event in self._poll.poll(0))

    def receive(self) -> memoryview:
        """Return the next message, uint8 [n].

        Raises:
            WritersLost: the rest of the message will not come.
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

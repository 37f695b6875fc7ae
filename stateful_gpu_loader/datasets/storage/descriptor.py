"""Descriptor: an open file that is closed with the last reference to it."""

from __future__ import annotations

import os
from collections.abc import Callable


class Descriptor:
    """An open file, closed with the last reference to it.

    Args:
        path: of the file.
        flags: as of ``os.open``; the file is closed in programs that this process executes.

    Attributes:
        number: the file's number in this process.
    """

    def __init__(self, path: str, flags: int) -> None:
        self.number = -1
        self.number = os.open(path, flags | os.O_CLOEXEC, 0o644)

    # A default argument, because at the interpreter's exit ``os`` may be gone.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.number >= 0:
            close(self.number)

"""Open files in messages: a pickle names each by its number, and the socket carries it.

With Python's own way the receiver asks the sender for each file later, and so would wait for a
process that is stopped.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import reduction, resource_sharer
from multiprocessing.context import get_spawning_popen, set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any

MOST_FILES = 200
"""Most files of a message; the system takes 253. Others are sent in Python's own way."""


class OpenFile:
    """A file descriptor, owned by this object, that can be sent in a message.

    Args:
        file: the descriptor.
    """

    def __init__(self, file: int) -> None:
        self._file = file

    def detach(self) -> int:
        """Return the descriptor, which the caller closes."""
        file, self._file = self._file, -1
        return file

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (reduction.DupFd(self._file),)

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


def pickled(content: Any) -> tuple[bytes, list[int]]:
    """Pickle a message; return the bytes, and the descriptors to be sent and closed.

    Raises:
        Exception: part of it cannot be pickled.
    """
    files: list[int] = []
    collector: Any = _Collector(files)
    before = get_spawning_popen()
    set_spawning_popen(collector)
    try:
        return bytes(ForkingPickler.dumps(content)), files
    except BaseException:
        close_all(files)
        raise
    finally:
        set_spawning_popen(before)


@contextmanager
def received(files: list[int]) -> Iterator[None]:
    """Let what is unpickled here take the files of its message; close those that are left."""
    before, _PRESENT.files = getattr(_PRESENT, "files", None), files
    try:
        yield
    finally:
        _PRESENT.files = before
        close_all(files)


def close_all(files: list[int]) -> None:
    """Close those of the descriptors that nobody has taken."""
    while files:
        file = files.pop()
        if file >= 0:
            os.close(file)


class _Collector:
    """Stands where multiprocessing looks for a process that inherits files."""

    def __init__(self, files: list[int]) -> None:
        self._files = files

    def duplicate_for_child(self, file: int) -> int:
        return file

    def DupFd(self, file: int) -> Any:  # noqa: N802
        if len(self._files) == MOST_FILES:
            return resource_sharer.DupFd(file)
        self._files.append(os.dup(file))
        return _Numbered(len(self._files) - 1)


class _Numbered:
    """A file of the message that is being unpickled."""

    def __init__(self, number: int) -> None:
        self._number = number

    def detach(self) -> int:
        files: list[int] = _PRESENT.files
        file, files[self._number] = files[self._number], -1
        return file


_PRESENT = threading.local()


def _itself(file: Any) -> Any:
    return file

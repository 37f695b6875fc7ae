"""Opens regular files and nothing else, and reads no more of them than was asked for.

Opening a named pipe waits for its writer, and a device may never end.
"""

from __future__ import annotations

import os
import stat
from typing import BinaryIO


class NotRegular(OSError):
    """A path leads to a folder, a named pipe, a socket or a device."""


class TooLarge(OSError):
    """A file is larger than what is read of such files."""


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading; a link is followed.

    Raises:
        NotRegular: the path leads to something else than a regular file.
        OSError: the file cannot be opened.
    """
    try:
        file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115
    except IsADirectoryError:
        raise NotRegular("no regular file but a folder") from None
    mode = os.fstat(file.fileno()).st_mode
    if not stat.S_ISREG(mode):
        file.close()
        raise NotRegular(f"no regular file but {kind_of(mode)}")
    return file


def _open_at_once(path: str, flags: int) -> int:
    """Open a path; a named pipe is opened without its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def size_of(file: BinaryIO) -> int:
    """Return the present size of an open file in bytes."""
    return os.fstat(file.fileno()).st_size


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the content of a file of at most so many bytes.

    Raises:
        NotRegular: the path leads to something else than a regular file.
        TooLarge: the file has more bytes.
        OSError: the file cannot be read.

    >>> read_regular("/dev/zero", 100)
    Traceback (most recent call last):
        ...
    stateful_gpu_loader.checkpoint.regular_file.NotRegular: no regular file but a device
    """
    with open_regular(path) as file:
        size = size_of(file)
        # A file may grow meanwhile.
        content = file.read(size + 1) if size <= most else b""
    if size > most or len(content) > most:
        raise TooLarge(f"it has {max(size, len(content))} bytes, and at most {most} are read")
    return content


def kind_of(mode: int) -> str:
    """Return the kind of a file in words, from its ``st_mode``."""
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "a file of another kind"

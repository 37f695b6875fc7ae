"""Files kept for later runs: creation and trust.

Anyone who can write a kept file controls what a later run reads. So a kept file is used only if it
is a regular file, belongs to a trusted user, and is not writable by every user. Links are not
followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO


class Descriptor:
    """An open file that closes with the last reference to it.

    Args:
        flags: flags of ``os.open``; ``O_CLOEXEC`` is added.

    Attributes:
        number: the file descriptor.
    """

    def __init__(self, path: str, flags: int) -> None:
        self.number = -1
        self.number = os.open(path, flags | os.O_CLOEXEC, 0o644)

    # A default argument, because ``os`` may be gone at interpreter exit.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.number >= 0:
            close(self.number)


Owners = frozenset[int]
"""User IDs of trusted users."""

_MODE = 0o644
"""Mode of a new file before the umask: other users can never write it."""


def owners_for_data(path: str | None) -> Owners:
    """Return the users whose index of a data file is trusted: this one, root, and the data's owner.

    The data's owner already controls what a run reads.

    Args:
        path: file or folder of the data; None for a URL.

    Raises:
        OSError: the data does not exist, or its status cannot be read.
    """
    trusted = {os.geteuid(), 0}
    return frozenset(trusted if path is None else trusted | {os.stat(path).st_uid})


def owners_for_folder(folder: Path) -> Owners:
    """Return the users whose files in a folder are trusted: this one, root, the folder's owner.

    The folder's owner is left out below a folder that every user can write to, such as ``/tmp``.
    """
    trusted = {os.geteuid(), 0}
    if not any(above.stat().st_mode & stat.S_IWOTH for above in folder.parents if above.exists()):
        with contextlib.suppress(FileNotFoundError):
            trusted.add(folder.stat().st_uid)
    return frozenset(trusted)


class KeptFile(Descriptor):
    """An open kept file that closes with the last reference to it.

    Raises:
        PermissionError: the file is not trusted; the message says why.
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str, flags: int, owners: Collection[int]) -> None:
        self.number = -1
        # O_NONBLOCK, because opening a named pipe would block.
        safely = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            self.number = os.open(path, flags | safely, _MODE)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise _untrusted(path, "it is a link") from None
            raise
        _check_trust(os.fstat(self.number), path, owners)


@contextlib.contextmanager
def new_file(place: Path, owners: Collection[int]) -> Iterator[tuple[IO[bytes], str]]:
    """Yield a new file beside ``place``, and its path. It is removed afterwards unless renamed.

    Raises:
        PermissionError: files created there are not trusted, so they would never be read.
        OSError: the file cannot be created.
    """
    path = str(place.with_name(f".{place.name}.{secrets.token_hex(8)}.part"))
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    try:
        with open(descriptor, "wb") as file:
            _check_trust(os.fstat(descriptor), path, owners)
            yield file, path
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _check_trust(status: os.stat_result, path: str, owners: Collection[int]) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _untrusted(path, "it is not a regular file")
    if status.st_uid not in owners:
        raise _untrusted(path, f"user {status.st_uid} owns it, not one of {sorted(owners)}")
    if status.st_mode & stat.S_IWOTH:
        raise _untrusted(path, f"every user can write it (mode {stat.S_IMODE(status.st_mode):o})")


def _untrusted(path: str, reason: str) -> PermissionError:
    return PermissionError(
        errno.EPERM, f"not trusted: {reason}. Remedy: remove it, or use another folder", path
    )

"""Files of checkpoints: written whole or not at all, and found by number.

A file is written under another name beside its own, synced, and then given its own name in one
step, which a number that another process has taken meanwhile refuses. Whoever dies before that
leaves a file of the other name, which is never read; the next writer removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from stateful_gpu_loader.checkpoint.names import Pattern
from stateful_gpu_loader.errors import CheckpointError, CheckpointNotFound

_Read = TypeVar("_Read")

_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
_NO_SYNC_OF_FOLDERS = (errno.EINVAL, errno.ENOTSUP)
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room, or save to another folder"),
    errno.EISDIR: "pass the path of a file, or a pattern such as 'step_{seq}.json' in this folder",
    errno.ENAMETOOLONG: "pass a shorter name",
}


def write(pattern: Pattern, data: bytes) -> tuple[int, str]:
    """Write the next file of a pattern with a number; else replace the one file.

    Returns:
        Number (0 where there is none) and path of the file, which outlasts a loss of power.

    Raises:
        CheckpointError: it could not be written, or the folder not be synced. The files before it
            are whole.
    """
    try:
        return _write(pattern, data)
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "save to another folder")
        raise CheckpointError(
            f"{pattern.text!r} could not be written: {error.strerror}. The files before it are "
            f"whole. Remedy: {remedy}"
        ) from error


def _write(pattern: Pattern, data: bytes) -> tuple[int, str]:
    path = pattern.path()
    if not pattern.is_numbered:
        # What a link points to is replaced, where it lies; the link stays.
        real = os.path.realpath(path)
        _check_replaceable(real)
        folder, name = os.path.split(real)
        pattern = replace(pattern, folder=folder, before=name)
    folder, number = pattern.folder or os.curdir, 0
    _make_folder(folder)
    _remove_abandoned(pattern.parts(pattern.listed()))
    with _part(folder, pattern, data) as part:
        if pattern.is_numbered:
            number = _take_number(pattern, part)
            path = pattern.path(number)
        else:
            os.replace(part, pattern.path())
    _sync_folder(folder)
    return number, path


def read(path: str) -> bytes:
    """The bytes of one file.

    Raises:
        CheckpointNotFound: there is no such file.
        CheckpointError: it is no regular file or cannot be read.
    """
    try:
        # Asked before it is opened: opening a named pipe waits for its writer.
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise CheckpointError(
                f"{path!r} is no regular file{' but a folder' if stat.S_ISDIR(mode) else ''}. "
                "Remedy: pass a path that save() returned, or the pattern that was saved to"
            )
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointNotFound(
            f"there is no file {path!r}. Remedy: pass the path that save() returned, or begin "
            "without a checkpoint"
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"{path!r} cannot be read: {error.strerror}. Remedy: make it readable, or pass another"
        ) from error


def read_newest(
    pattern: Pattern, parse: Callable[[bytes], _Read]
) -> tuple[str, _Read, dict[str, CheckpointError]]:
    """The file of the highest number that can be parsed.

    Args:
        pattern: with a number.
        parse: raises CheckpointError for what is no whole checkpoint.

    Returns:
        Its path, what ``parse`` made of it, and why those of higher numbers were passed over.

    Raises:
        CheckpointNotFound: there is no file of the pattern.
        CheckpointError: none can be parsed; the text names all of them and why.
    """
    vanished: set[str] = set()
    while files := _listed(pattern):
        passed_over: dict[str, CheckpointError] = {}
        for path in files:
            try:
                return path, parse(read(path)), passed_over
            except CheckpointError as error:
                passed_over[path] = error
                # Another process's keep= removes a file after a newer one is there: look again.
                if path not in vanished and not os.path.lexists(path):
                    vanished.add(path)
                    break
        else:
            reasons = "".join(f"\n  {path}: {error}" for path, error in passed_over.items())
            raise CheckpointError(
                f"none of the {len(files)} files of {pattern.text!r} is a whole checkpoint:"
                f"{reasons}\nRemedy: restore one of them, or begin without a checkpoint"
            )
    raise CheckpointNotFound(
        f"there is no file of {pattern.text!r}. Remedy: pass the pattern that was saved to, "
        "or begin without a checkpoint"
    )


def _listed(pattern: Pattern) -> list[str]:
    try:
        return list(pattern.files().values())
    except OSError as error:
        raise CheckpointError(
            f"the folder of {pattern.text!r} cannot be listed: {error.strerror}. Remedy: make it "
            "readable, or pass another"
        ) from error


def _check_replaceable(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        # A rename would put a file where a device was, of which others think as a device.
        raise CheckpointError(
            f"{path!r} is no regular file, and nothing was written. Remedy: pass the path of a file"
        )


def _remove_abandoned(parts: Iterable[str]) -> None:
    """Remove the unfinished files of writers that died; those of living ones are locked."""
    for path in parts:
        # Whatever hinders it: such a file is in nobody's way but that of the disk's room.
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def _part(folder: str, pattern: Pattern, data: bytes) -> Iterator[str]:
    """Path of a synced file with the data, locked; it is gone afterwards, unless renamed."""
    while True:
        path = os.path.join(folder, pattern.part_name(secrets.token_hex(8)))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            # Where files cannot be locked, nobody can take this one for abandoned either.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not os.fstat(descriptor).st_nlink:
                continue  # another writer took it for abandoned before it was locked
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
            yield path
            return
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
            os.close(descriptor)


def _take_number(pattern: Pattern, part: str) -> int:
    """Give a file the number after the highest, or the next that nobody takes meanwhile."""
    number = _highest(pattern) + 1
    while not _take_name(pattern, part, number):
        number = max(number, _highest(pattern)) + 1
    return number


def _highest(pattern: Pattern) -> int:
    return max(pattern.numbers(pattern.listed()), default=-1)


def _take_name(pattern: Pattern, part: str, number: int) -> bool:
    """Give a file a number, unless that is taken, or was: below a higher one it would be old."""
    path = pattern.path(number)
    try:
        has_links = _link(part, path)
    except FileExistsError:
        return False
    is_taken = False
    try:
        # Another process may have taken this number, gone on to a higher one and removed it.
        if _highest(pattern) <= number:
            if not has_links:
                os.replace(part, path)
            is_taken = True
    finally:
        if not is_taken:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    return is_taken


def _link(part: str, path: str) -> bool:
    """Whether there are hard links; if there are none, an empty file holds the name."""
    try:
        os.link(part, path)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        return False
    return True


def _make_folder(folder: str) -> None:
    """Make a folder and those above it, so that all of them outlast a loss of power."""
    if os.path.isdir(folder):
        return
    above = os.path.dirname(os.path.abspath(folder))
    _make_folder(above)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder)
    _sync_folder(above)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC_OF_FOLDERS:
            raise
    finally:
        os.close(descriptor)

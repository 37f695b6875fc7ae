"""Checkpoint files: named by a pattern, written atomically, read, and removed when old.

A file is written under a temporary name in its folder, synced, and then renamed. If another process
has taken the name meanwhile, the next number is tried. A dead writer's temporary file is never
read; the next writer removes it.

Only regular files are opened, because pipes and devices may never end.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO, TypeGuard

from stateful_gpu_loader.checkpoint import document
from stateful_gpu_loader.checkpoint.document import SavedState
from stateful_gpu_loader.errors import CheckpointError, CheckpointNotFound

_LITERAL = r"(?:[^{}]|\{\{|\}\})*"
_PATTERN = re.compile(
    rf"(?P<before>{_LITERAL})(?:\{{seq(?::(?P<width>0[1-9]\d?)?d?)?\}}(?P<after>{_LITERAL}))?",
    re.DOTALL,
)
_MOST_DIGITS = 18
"""Maximum number of digits, unless the pattern has more."""
_TOKEN = re.compile("[0-9a-f]{16}")
_MOST_OF_A_NAME = 40
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
_NO_SYNC_OF_FOLDERS = (errno.EINVAL, errno.ENOTSUP)
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room, or save to another folder"),
    errno.EISDIR: "pass the path of a file, or a pattern such as 'step_{seq}.json' in this folder",
    errno.ENAMETOOLONG: "pass a shorter name",
}
_HEAD_BYTES = 512
_MOST_BEYOND = 1 << 20
"""Maximum number of bytes read without a head, or beyond the head's length."""

_States = dict[str, SavedState]
Stamp = tuple[str, int, int, int]
"""Path, inode, size and time of a file, which reveal a rewritten file."""


@dataclass(frozen=True)
class Pattern:
    """A folder, and the parts of its files' names before and after the number.

    >>> pattern = Pattern.of("run_{seq:04d}.json")
    >>> pattern.path(7)
    'run_0007.json'
    >>> pattern.numbers(["run_0007.json", "run_7.json"])
    [7]
    """

    text: str
    """The given path, for errors."""
    folder: str
    before: str
    width: int | None
    """Minimum digits of the number; None if there is no number and ``before`` is the whole name."""
    after: str = ""

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Pattern:
        """Parse a path, in which ``{{`` and ``}}`` stand for braces.

        Raises:
            CheckpointError: it has braces other than one ``{seq}`` or ``{seq:04d}`` in the file's
                name, or names no file.
        """
        text = path if isinstance(path, str) else getattr(path, "__fspath__", lambda: None)()
        if not _is_path(text):
            raise _refused(path, "it is not a path", "pass a str or pathlib.Path")
        found = _PATTERN.fullmatch(text)
        if found is None or "/" in (found["after"] or ""):
            raise _refused(
                text,
                "of braces it may have one {seq}, or {seq:04d} for four digits at least, in the "
                "name of the file",
                "write {{ and }} for other braces",
            )
        folder, before = os.path.split(_unescaped(found["before"]))
        if found["after"] is not None:
            width = int(found["width"] or 1)
            return cls(text, folder, before, width, _unescaped(found["after"]))
        if before in ("", ".", ".."):
            raise _refused(text, "it names no file", "pass the path of a file")
        return cls(text, folder, before, width=None)

    @classmethod
    def to_read(cls, path: str | os.PathLike[str]) -> Pattern:
        """Parse a path like :meth:`of`, but take an existing file literally.

        Raises:
            CheckpointError: as for :meth:`of`, if there is no such file.
        """
        if isinstance(path, str | os.PathLike) and os.path.isfile(path):
            text = os.fsdecode(path)
            return cls(text, *os.path.split(text), width=None)
        return cls.of(path)

    @property
    def is_numbered(self) -> bool:
        """Whether the pattern stands for many numbered files."""
        return self.width is not None

    def path(self, number: int = 0) -> str:
        """Return the path of a file.

        >>> Pattern.of("runs/{seq:04d}.json").path(7)
        'runs/0007.json'
        """
        digits = "" if self.width is None else f"{number:0{self.width}d}"
        return os.path.join(self.folder, f"{self.before}{digits}{self.after}")

    def listed(self) -> list[str]:
        """Return all names in the folder; none if there is no folder.

        Raises:
            OSError: the folder cannot be listed.
        """
        try:
            return os.listdir(self.folder or os.curdir)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self) -> dict[int, str]:
        """Return the paths of the pattern's files by number, highest first.

        Raises:
            OSError: the folder cannot be listed.
        """
        return {number: self.path(number) for number in sorted(self.numbers(self.listed()))[::-1]}

    def numbers(self, names: Iterable[str]) -> list[int]:
        """Return the numbers of the names that have one.

        "run_7.json" does not match "run_{seq:04d}.json".
        """
        # Each save looks through all files of the folder.
        match = self._numbered.fullmatch
        return [int(found[1]) for name in names if (found := match(name))]

    def part_name(self, token: str) -> str:
        """Return the name under which a file is written before it gets its final name.

        It is hidden and matches no pattern. It contains the machine, because locks of network file
        systems may not show whether another machine's writer lives.

        >>> machine = _machine()
        >>> Pattern.of("run_{seq}.json").part_name("01234567").replace(machine, "machine")
        '.run_.json.machine.01234567.part'
        """
        # Shortened, so that the longest file name has a valid part name.
        beginning = f"{self.before}{self.after}"[:_MOST_OF_A_NAME]
        return f".{beginning}.{_machine()}.{token}.part"

    def parts(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the paths of unfinished files, among the names, of writers on this machine."""
        beginning = self.part_name("").removesuffix(".part")
        for name in names:
            if name.startswith(beginning) and name.endswith(".part"):
                token = name.removeprefix(beginning).removesuffix(".part")
                if _TOKEN.fullmatch(token):
                    yield os.path.join(self.folder, name)

    @functools.cached_property
    def _numbered(self) -> re.Pattern[str]:
        """Regular expression that matches a name with its number."""
        width = self.width or 1
        digits = f"[0-9]{{{width}}}|[1-9][0-9]{{{width},{max(width, _MOST_DIGITS - 1)}}}"
        before, after = re.escape(self.before), re.escape(self.after)
        return re.compile(f"{before}({digits}){after}")


def write(pattern: Pattern, data: bytes) -> tuple[int, str]:
    """Write the next file of a numbered pattern, or else replace the one file.

    Returns:
        Number (0 without numbers) and path of the file, which survives a loss of power.

    Raises:
        CheckpointError: the file could not be written, or the folder could not be synced. Earlier
            files are intact.
    """
    try:
        return _write(pattern, data)
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "save to another folder")
        raise CheckpointError(
            f"{pattern.text!r} could not be written: {error.strerror}. The files before it are "
            f"whole. Remedy: {remedy}"
        ) from error


def read(path: str) -> bytes:
    """Return the bytes of one file, or its first bytes if it is not an intact checkpoint.

    Raises:
        CheckpointNotFound: there is no such file.
        CheckpointError: it is not a regular file, cannot be read or does not fit into memory.
    """
    try:
        with open_regular(path) as file:
            claimed = document.claimed_length(file.read(_HEAD_BYTES))
            file.seek(0)
            # A file may be larger than memory.
            return file.read(min(size_of(file), claimed + _MOST_BEYOND))
    except NotRegular as error:
        raise CheckpointError(
            f"{path!r} is {error}. Remedy: pass a path that save() returned, or the pattern that "
            "was saved to"
        ) from None
    except MemoryError as error:
        raise CheckpointError(
            f"{path!r} does not fit into memory: {os.path.getsize(path)} bytes. Remedy: load it on "
            "a machine with more memory, or pass another"
        ) from error
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointNotFound(
            f"there is no file {path!r}. Remedy: pass the path that save() returned, or begin "
            "without a checkpoint"
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"{path!r} cannot be read: {error.strerror}. Remedy: make it readable, or pass another"
        ) from error


def read_newest(pattern: Pattern) -> tuple[str, _States, dict[str, CheckpointError]]:
    """Read the intact checkpoint with the highest number.

    Args:
        pattern: a numbered pattern.

    Returns:
        Its path, its states, and the reasons why files with higher numbers were skipped.

    Raises:
        CheckpointNotFound: there is no file of the pattern.
        CheckpointError: no file is intact; the text names all files and reasons.
    """
    vanished: set[str] = set()
    while True:
        try:
            paths = pattern.files().values()
        except OSError as error:
            raise CheckpointError(
                f"the folder of {pattern.text!r} cannot be listed: {error.strerror}. Remedy: make "
                "it readable, or pass another"
            ) from error
        if not paths:
            raise CheckpointNotFound(
                f"there is no file of {pattern.text!r}. Remedy: pass the pattern that was saved "
                "to, or begin without a checkpoint"
            )
        passed_over: dict[str, CheckpointError] = {}
        for path in paths:
            try:
                return path, document.from_text(read(path)), passed_over
            except CheckpointError as error:
                passed_over[path] = error
                # Another process with keep= may have written a newer file: look again.
                if path not in vanished and not os.path.lexists(path):
                    vanished.add(path)
                    break
        else:
            reasons = "".join(f"\n  {path}: {error}" for path, error in passed_over.items())
            raise CheckpointError(
                f"none of the {len(paths)} files of {pattern.text!r} is a whole checkpoint:"
                f"{reasons}\nRemedy: restore one of them, or begin without a checkpoint"
            )


def remove_old(
    pattern: Pattern, *, newest: int, keep: int, known: set[Stamp]
) -> dict[str, OSError]:
    """Remove files older than the newest ``keep`` intact checkpoints of a pattern.

    Files that do not begin like a checkpoint stay.

    Args:
        pattern: a numbered pattern.
        newest: number of an intact and durable file; no higher number is removed.
        keep: 1 or more.
        known: files found intact earlier; replaced.

    Returns:
        Files that could not be removed, or the unlisted pattern, each with the reason.
    """
    whole: set[Stamp] = set()
    failures: dict[str, OSError] = {}
    try:
        found = pattern.files()
    except OSError as error:
        return {pattern.text: error}
    for number, path in found.items():
        try:
            if len(whole) < keep:
                stamp = _stamp(path)
                if number == newest or stamp in known or _is_whole(path):
                    whole.add(stamp)
            elif number < newest and _begins_as_checkpoint(path):
                os.unlink(path)
        except FileNotFoundError:
            continue  # another process has removed it
        except OSError as error:
            failures[path] = error
    known.clear()
    known.update(whole)
    return failures


def _stamp(path: str) -> Stamp:
    status = os.stat(path)
    return path, status.st_ino, status.st_size, status.st_mtime_ns


@functools.cache
def _machine() -> str:
    return hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:8]


def _is_path(text: object) -> TypeGuard[str]:
    if not isinstance(text, str) or "\0" in text:
        return False
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _unescaped(text: str) -> str:
    return text.replace("{{", "{").replace("}}", "}")


def _refused(path: object, reason: str, remedy: str) -> CheckpointError:
    return CheckpointError(
        f"the path {path!r} is not valid for a checkpoint: {reason}. Remedy: {remedy}"
    )


def _write(pattern: Pattern, data: bytes) -> tuple[int, str]:
    path = pattern.path()
    if not pattern.is_numbered:
        # A link stays; its target is replaced.
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


def _check_replaceable(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        # A rename would replace a device by a file.
        raise CheckpointError(
            f"{path!r} is not a regular file; nothing was written. Remedy: pass the path of a file"
        )


def _remove_abandoned(parts: Iterable[str]) -> None:
    """Remove the unfinished files of dead writers; live writers hold locks on theirs."""
    for path in parts:
        # A leftover only costs disk space.
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def _part(folder: str, pattern: Pattern, data: bytes) -> Iterator[str]:
    """Yield the path of a synced and locked file with the data; delete it unless it was renamed."""
    while True:
        path = os.path.join(folder, pattern.part_name(secrets.token_hex(8)))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            # Without locks no other writer considers this file abandoned.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not os.fstat(descriptor).st_nlink:
                continue  # another writer removed it before it was locked
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
    """Give a file the next number after the highest that no other process has taken."""
    number = _highest(pattern) + 1
    while not _take_name(pattern, part, number):
        number = max(number, _highest(pattern)) + 1
    return number


def _highest(pattern: Pattern) -> int:
    return max(pattern.numbers(pattern.listed()), default=-1)


def _take_name(pattern: Pattern, part: str, number: int) -> bool:
    """Give a file a number; return False if it is taken, or if a higher number already exists."""
    path = pattern.path(number)
    try:
        has_links = _link(part, path)
    except FileExistsError:
        return False
    is_taken = False
    try:
        # Another process may have taken and removed this number.
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
    """Link a file; without hard links, reserve the name with an empty file and return False."""
    try:
        os.link(part, path)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        return False
    return True


def _make_folder(folder: str) -> None:
    """Create a folder and its parents so that they survive a loss of power."""
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


def _is_whole(path: str) -> bool:
    try:
        document.from_text(read(path))
    except CheckpointError:
        return False
    return True


def _begins_as_checkpoint(path: str) -> bool:
    try:
        with open_regular(path) as file:
            return document.FORMAT.encode() in file.read(_HEAD_BYTES)
    except NotRegular:
        return False


class NotRegular(OSError):
    """A path leads to a folder, a named pipe, a socket or a device."""


class TooLarge(OSError):
    """A file is larger than the limit for such files."""


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading; a link is followed.

    Raises:
        NotRegular: the path leads to something other than a regular file.
        OSError: the file cannot be opened.
    """
    try:
        file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115
    except IsADirectoryError:
        raise NotRegular("not a regular file but a folder") from None
    mode = os.fstat(file.fileno()).st_mode
    if not stat.S_ISREG(mode):
        file.close()
        raise NotRegular(f"not a regular file but {kind_of(mode)}")
    return file


def _open_at_once(path: str, flags: int) -> int:
    """Open a path; a named pipe is opened without its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def size_of(file: BinaryIO) -> int:
    """Return the present size of an open file in bytes."""
    return os.fstat(file.fileno()).st_size


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the content of a file of at most ``most`` bytes.

    Raises:
        NotRegular: the path leads to something other than a regular file.
        TooLarge: the file has more bytes.
        OSError: the file cannot be read.

    >>> read_regular("/dev/zero", 100)
    Traceback (most recent call last):
        ...
    stateful_gpu_loader.checkpoint.files.NotRegular: not a regular file but a device
    """
    with open_regular(path) as file:
        size = size_of(file)
        # The file may grow meanwhile.
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

"""Names of checkpoint files: a pattern with ``{seq}``, or one path."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeGuard

from stateful_gpu_loader.errors import CheckpointError

_WIDTH = re.compile(r"(0[1-9]\d?)?d?")
_MOST_DIGITS = 18
"""Of a number that needs them; more only where the pattern has them."""
_TOKEN = re.compile("[0-9a-f]{16}")
_MOST_OF_A_NAME = 40


@dataclass(frozen=True)
class Pattern:
    """A folder, and what stands before and after the number in the names of its files.

    >>> pattern = Pattern.of("run_{seq:04d}.json")
    >>> pattern.path(7)
    'run_0007.json'
    >>> pattern.number("run_0007.json"), pattern.number("run_7.json")
    (7, None)
    """

    text: str
    """As it was given, for errors."""
    folder: str
    before: str
    width: int | None
    """Digits of the number, at least; None where there is none and ``before`` is the whole name."""
    after: str = ""

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Pattern:
        """Read a path, in which ``{{`` and ``}}`` stand for braces.

        Raises:
            CheckpointError: it has another field than ``{seq}``, a format other than ``d`` or
                ``04d``, the number in its folder or twice, or no name.
        """
        text = path if isinstance(path, str) else getattr(path, "__fspath__", lambda: None)()
        if not _is_path(text):
            raise _refused(path, "it is no path", "pass a str or pathlib.Path")
        try:
            pieces = list(string.Formatter().parse(text))
        except ValueError as error:
            raise _refused(text, str(error), "write {{ and }} for braces in a path") from None
        before, after = "", ""
        width: int | None = None
        for literal, field, spec, conversion in pieces:
            if width is None:
                before += literal
            else:
                after += literal
            if field is None:
                continue
            if field != "seq" or conversion:
                mark = f"{{{field}{f'!{conversion}' if conversion else ''}}}"
                remedy = "use {seq} alone, and {{ and }} for braces in a path"
                raise _refused(text, f"{mark} is no field of it", remedy)
            if width is not None:
                raise _refused(text, "{seq} stands in it twice", "leave one out")
            if not (found := _WIDTH.fullmatch(spec or "")):
                remedy = "write {seq} or, for four digits at least, {seq:04d}"
                raise _refused(text, f"the format {spec!r} gives no plain number", remedy)
            width = int(found[1] or 1)
        folder, before = os.path.split(before)
        if "/" in after:
            raise _refused(text, "{seq} stands in its folder", "put {seq} into the file's name")
        if width is None and before in ("", ".", ".."):
            raise _refused(text, "it names no file", "pass the path of a file")
        return cls(text, folder, before, width, after)

    @classmethod
    def to_read(cls, path: str | os.PathLike[str]) -> Pattern:
        """As :meth:`of`, but the path of a file is that file, whatever braces it has.

        Raises:
            CheckpointError: as :meth:`of`, where there is no such file.
        """
        if isinstance(path, str | os.PathLike) and os.path.isfile(path):
            text = os.fsdecode(path)
            return cls(text, *os.path.split(text), width=None)
        return cls.of(path)

    @property
    def is_numbered(self) -> bool:
        """Whether it stands for many files."""
        return self.width is not None

    def path(self, number: int = 0) -> str:
        """The path of a file.

        >>> Pattern.of("runs/{seq:04d}.json").path(7)
        'runs/0007.json'
        """
        digits = "" if self.width is None else f"{number:0{self.width}d}"
        return os.path.join(self.folder, f"{self.before}{digits}{self.after}")

    def number(self, name: str) -> int | None:
        """The number of the file of this name, or None.

        A name has one number and a number one name, so "run_7.json" is not of "run_{seq:04d}.json".
        """
        found = self._numbered.fullmatch(name)
        return int(found[1]) if found else None

    def listed(self) -> list[str]:
        """All names in the folder; none where there is no folder.

        Raises:
            OSError: the folder cannot be listed.
        """
        try:
            return os.listdir(self.folder or os.curdir)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self) -> dict[int, str]:
        """Paths of what has such a name, by number, the highest first.

        Raises:
            OSError: the folder cannot be listed.
        """
        return {number: self.path(number) for number in sorted(self.numbers(self.listed()))[::-1]}

    def numbers(self, names: Iterable[str]) -> list[int]:
        """The numbers of those of the names that have one."""
        # A folder may have thousands of files, and each save looks through them.
        match = self._numbered.fullmatch
        return [int(found[1]) for name in names if (found := match(name))]

    def part_name(self, token: str) -> str:
        """The name under which a file is written before it gets its own; hidden, and of no pattern.

        It tells the machine, because of another's writers none can say whether they live: on
        network file systems, locks may hold on one machine only.

        >>> machine = _machine()
        >>> Pattern.of("run_{seq}.json").part_name("01234567").replace(machine, "machine")
        '.run_.json.machine.01234567.part'
        """
        # Cut, so that whatever name a file may have, its part may have one.
        beginning = f"{self.before}{self.after}"[:_MOST_OF_A_NAME]
        return f".{beginning}.{_machine()}.{token}.part"

    def parts(self, names: Iterable[str]) -> Iterator[str]:
        """Paths of those of the names that are names of this machine's parts."""
        beginning = self.part_name("").removesuffix(".part")
        for name in names:
            if name.startswith(beginning) and name.endswith(".part"):
                token = name.removeprefix(beginning).removesuffix(".part")
                if _TOKEN.fullmatch(token):
                    yield os.path.join(self.folder, name)

    @functools.cached_property
    def _numbered(self) -> re.Pattern[str]:
        """A name with its number."""
        width = self.width or 1
        digits = f"[0-9]{{{width}}}|[1-9][0-9]{{{width},{max(width, _MOST_DIGITS - 1)}}}"
        before, after = re.escape(self.before), re.escape(self.after)
        return re.compile(f"{before}({digits}){after}")


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


def _refused(path: object, reason: str, remedy: str) -> CheckpointError:
    return CheckpointError(f"the path {path!r} names no checkpoint: {reason}. Remedy: {remedy}")

"""Lists the files of a folder, each of them once, whatever links lie in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Listed:
    """One file, or a folder that counts as one."""

    path: Path
    refusal: str = ""
    """Why it is not read; empty if it may be read."""


def files_in(top: Path, is_one: Callable[[Path], bool]) -> Iterator[Listed]:
    """Yield the regular files below a folder, in the order of their names, or the file itself.

    Hidden entries are left out, and so are named pipes, sockets and devices. A link is taken after
    all that is no link, and only if what it leads to was not listed yet. A link to a folder outside
    is not followed, because it may lead to a whole file system.

    Args:
        top: a folder or file.
        is_one: whether a folder counts as one file.
    """
    if not top.is_dir() or is_one(top):
        yield Listed(top)
    else:
        yield from _Walk(os.path.realpath(top), is_one).of(top)


@dataclass
class _Walk:
    real_top: str
    is_one: Callable[[Path], bool]
    seen: set[str] = field(default_factory=set)
    """Real paths that were listed."""
    links: list[Path] = field(default_factory=list)
    """Links that were met and not followed yet."""

    def of(self, top: Path) -> Iterator[Listed]:
        yield from self._below(top)
        while self.links:
            links, self.links = self.links, []
            for link in links:
                yield from self._led_to_by(link)

    def _below(self, top: Path) -> Iterator[Listed]:
        waiting = [top]
        while waiting:
            path = waiting.pop()
            if path.is_symlink() and path is not top:
                self.links.append(path)
                continue
            real = os.path.realpath(path)
            if real in self.seen:
                continue
            self.seen.add(real)
            try:
                mode = os.stat(path).st_mode
                if stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and self.is_one(path)):
                    yield Listed(path)
                elif stat.S_ISDIR(mode):
                    names = [name for name in os.listdir(path) if not name.startswith(".")]
                    waiting += [path / name for name in sorted(names, reverse=True)]
            except OSError as error:
                yield Listed(path, _reason(error))

    def _led_to_by(self, link: Path) -> Iterator[Listed]:
        try:
            is_folder = stat.S_ISDIR(os.stat(link).st_mode)
        except OSError as error:
            yield Listed(link, _reason(error))
            return
        real = os.path.realpath(link)
        is_inside = os.path.commonpath([real, self.real_top]) == self.real_top
        if is_folder and not is_inside:
            yield Listed(link, f"is a link to the folder {real!r} outside, and is not followed")
        else:
            yield from self._below(link)


def _reason(error: OSError) -> str:
    return f"cannot be read: {error.strerror}"

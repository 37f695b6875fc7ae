"""Which old checkpoints are removed once a newer one is durable."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field

from stateful_gpu_loader.checkpoint import document, files
from stateful_gpu_loader.checkpoint.names import Pattern
from stateful_gpu_loader.errors import CheckpointError

_HEAD_BYTES = 512


@dataclass(frozen=True)
class _Stamp:
    """What changes when a file is written anew."""

    inode: int
    size: int
    changed_ns: int


@dataclass
class Retention:
    """Keeps the newest whole checkpoints; remembers them, so that each is read once."""

    _whole: dict[str, _Stamp] = field(default_factory=dict)

    def remove_old(self, pattern: Pattern, *, newest: int, keep: int) -> dict[str, OSError]:
        """Remove what is older than the newest ``keep`` whole checkpoints of the pattern.

        A damaged checkpoint does not count as one of them. A file that does not begin as a
        checkpoint is somebody else's and stays.

        Args:
            pattern: with a number.
            newest: the number of a file that is whole and durable; none above it is removed.
            keep: 1 or more.

        Returns:
            Why files, or all in the folder, that should have been removed were not.
        """
        whole: dict[str, _Stamp] = {}
        failures: dict[str, OSError] = {}
        try:
            found = pattern.files()
        except OSError as error:
            return {pattern.text: error}
        for number, path in found.items():
            try:
                if len(whole) < keep:
                    if number == newest or self._is_whole(path):
                        whole[path] = _stamp(path)
                elif number < newest and _begins_as_checkpoint(path):
                    os.unlink(path)
            except FileNotFoundError:
                continue  # another process has removed it
            except OSError as error:
                failures[path] = error
        self._whole = whole
        return failures

    def _is_whole(self, path: str) -> bool:
        if self._whole.get(path) == _stamp(path):
            return True
        try:
            document.from_text(files.read(path))
        except CheckpointError:
            return False
        return True


def check_keep(keep: int | None, pattern: Pattern) -> None:
    """Raises: CheckpointError: it is no number of files, or the pattern has no number."""
    if keep is None:
        return
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise CheckpointError(
            f"{keep = } is no number of files to keep. Remedy: pass an int of 1 or more, or None"
        )
    if not pattern.is_numbered:
        raise CheckpointError(
            f"{keep = } says how many numbered files to keep, and {pattern.text!r} is one file. "
            "Remedy: leave keep out, or put {seq} into the name"
        )


def _stamp(path: str) -> _Stamp:
    status = os.stat(path)
    return _Stamp(status.st_ino, status.st_size, status.st_mtime_ns)


def _begins_as_checkpoint(path: str) -> bool:
    if not stat.S_ISREG(os.stat(path).st_mode):
        return False
    with open(path, "rb") as file:
        return document.FORMAT.encode() in file.read(_HEAD_BYTES)

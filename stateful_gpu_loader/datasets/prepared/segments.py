"""Segments: the files of a folder that several processes append to, each to one of its own."""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from pathlib import Path

from stateful_gpu_loader.datasets.prepared.record import Record
from stateful_gpu_loader.datasets.storage.kept_files import KeptFile, Owners
from stateful_gpu_loader.datasets.storage.open_files import unfilled

_TRIES_APART = 100
"""Appends that are passed over where there was no segment with room, before it is tried again."""


class Segments:
    """Numbered files of at most ``segment_bytes``, of which a process holds one to append to.

    Who appends to a file holds a lock on it, which ends with the process, however it ends; the
    next one goes on behind what was written.

    Args:
        folder: where the files lie.
        segment_bytes: of a file, at most.
        limit: number of files, at most; None is without limit.
        owners: trusted users.
    """

    def __init__(
        self, folder: Path, *, segment_bytes: int, limit: int | None, owners: Owners
    ) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._limit = limit
        self._owners = owners
        self._held: _Held | None = None
        self._end = 0
        self._passed_over = 0
        self._lock = threading.Lock()
        _all.add(self)

    def path(self, number: int) -> str:
        """Where a segment lies."""
        return f"{self._folder}/pixels-{number:06d}.bin"

    def append(self, record: Record) -> tuple[int, int] | None:
        """Write a record behind those of this process's segment.

        Returns: the segment's number and the offset in bytes; None where no segment has room.

        Raises:
            OSError: the disk is full, the folder cannot be written or has no locks, or a file in it
                is not trusted. Nothing refers to what was written then.
        """
        size = record.num_bytes
        with self._lock:
            if self._held is None or self._end + size > self._segment_bytes:
                self._held = self._next(size)
            if self._held is None:
                return None
            segment, offset = self._held, self._end
            self._end += size
        parts = [memoryview(record.head), record.pixels.data, memoryview(record.json)]
        done = 0
        while done < size:
            left = unfilled(parts, done) if done else parts
            done += os.pwritev(segment.file.number, left, offset + done)
        return segment.number, offset

    def _next(self, size: int) -> _Held | None:
        """Hold the first segment that has room and is not held by another process."""
        self._held = None
        if size > self._segment_bytes or self._passed_over:
            self._passed_over = max(self._passed_over - 1, 0)
            return None
        number = 0
        while self._limit is None or number < self._limit:
            held = _Held(number, self.path(number), self._owners)
            if held.is_locked:
                self._end = os.fstat(held.file.number).st_size
                if self._end + size <= self._segment_bytes:
                    return held
            number += 1
        self._passed_over = _TRIES_APART
        return None

    def forget(self) -> None:
        """Hold nothing; a forked child begins with this, as its parent's segment is not its own."""
        self._held = None
        self._lock = threading.Lock()


_all: weakref.WeakSet[Segments] = weakref.WeakSet()


def _forget_all() -> None:
    for segments in _all:
        segments.forget()


os.register_at_fork(after_in_child=_forget_all)


class _Held:
    """An open segment, locked if nobody else holds it."""

    def __init__(self, number: int, path: str, owners: Owners) -> None:
        self.number = number
        self.file = KeptFile(path, os.O_RDWR | os.O_CREAT, owners)
        try:
            fcntl.flock(self.file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.is_locked = True
        except BlockingIOError:
            self.is_locked = False

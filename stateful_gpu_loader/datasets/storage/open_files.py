"""OpenFiles: reads ranges of many files, from many threads, in any process."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from stateful_gpu_loader.datasets.storage.index_files import identity_of
from stateful_gpu_loader.datasets.storage.kept_files import Descriptor, KeptFile, Owners
from stateful_gpu_loader.datasets.storage.memory import Bytes, Memory, new_memory
from stateful_gpu_loader.datasets.storage.paths import is_url
from stateful_gpu_loader.datasets.storage.remote import Range, ReadAhead, read_remote

FileNumber = tuple[int, int]
"""Device and inode of a file."""


def file_number(path: str) -> FileNumber | None:
    """Return the identity of a local file; None for a URL or a missing file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class OpenFiles:
    """Opens files on demand, and keeps the descriptors of the files read last.

    Each read passes its own offset, so threads can share a descriptor. A forked child opens its own
    descriptors, and a pickled copy starts without any.

    Args:
        limit: largest number of descriptors kept open.
        numbers: :func:`file_number` of local files when they were indexed, by path; a replaced file
            is refused.
        owners: trusted users, for kept files (:class:`KeptFile`); None reads any file.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"abcdef")
    ...     file.flush()
    ...     bytes(OpenFiles().read(file.name, 2, 3))
    b'cde'
    """

    def __init__(
        self,
        limit: int = 64,
        numbers: Mapping[str, FileNumber | None] | None = None,
        owners: Owners | None = None,
    ) -> None:
        self._limit = limit
        self._numbers = numbers or {}
        self._owners = owners
        self._files: OrderedDict[str, Descriptor] = OrderedDict()  # the one read last comes last
        self._lock = threading.Lock()
        self._ahead = ReadAhead()
        forget_in_children(self)

    def expect(self, ranges: Iterable[Range], num_bytes: int, *, anew: bool = False) -> None:
        """Begin to fetch ranges of URLs; each range will be read once, exactly as passed here.

        Args:
            ranges: (URL, begin, end) in bytes; consumed only if there is room.
            num_bytes: total size of the ranges; beyond the room, nothing is fetched.
            anew: whether to drop the ranges announced before.
        """
        if anew:
            self._ahead.forget()
        if self._ahead.has_room(num_bytes):
            self._ahead.expect(ranges)

    def read(self, path: str, offset: int, size: int) -> Bytes:
        """Return uint8 [size], read without the GIL.

        Raises:
            OSError: the file cannot be opened or read, or has been replaced.
            ValueError: the file ends too early.
        """
        data = new_memory(size)
        self.fill(path, offset, [data.data])
        return data

    def fill(self, path: str, offset: int, parts: Sequence[memoryview]) -> None:
        """Read from ``offset`` on into ``parts``, which are consecutive in the file.

        One system call fills all parts. Files are not mapped, because truncating a mapped file
        kills the process.

        Raises:
            OSError, ValueError: as :meth:`read`.
        """
        size = sum(map(len, parts))
        file = self._kept(path)
        if file is None and is_url(path):
            expected = self._ahead.take(path, offset, size)
            content = memoryview(read_remote(path, offset, size)) if expected is None else expected
            done = len(content)
            for part in parts if done == size else ():
                part[:], content = content[: len(part)], content[len(part) :]
        else:
            file = file or self._open(path)
            done = 0
            # One read returns at most 2 GiB, and less on some network file systems.
            while done < size and (
                got := os.preadv(
                    file.number, unfilled(parts, done) if done else parts, offset + done
                )
            ):
                done += got
        if done < size:
            raise ValueError(
                f"{path!r} ends at byte {offset + done}, inside the {size} bytes from {offset}. "
                "Remedy: fetch the file again; if it was replaced, make a new index"
            )

    def _kept(self, path: str) -> Descriptor | None:
        try:
            self._files.move_to_end(path)
            return self._files[path]
        except KeyError:  # another thread may evict it in between
            return None

    def _open(self, path: str) -> Descriptor:
        opened: Descriptor
        if self._owners is None:
            opened = _Opened(path, self._numbers.get(path))
        else:
            opened = KeptFile(path, os.O_RDONLY, self._owners)
        with self._lock:
            file = self._files.setdefault(path, opened)
            while len(self._files) > self._limit:
                # A thread that is still reading holds a reference, which keeps the file open.
                self._files.popitem(last=False)
        return file

    def forget(self) -> None:
        """Drop all descriptors and fetched ranges; files close once no thread reads them.

        Called in each forked child, where a thread of the parent may have held the lock.
        """
        self._files = OrderedDict()
        self._lock = threading.Lock()
        self._ahead = ReadAhead()

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenFiles, (self._limit, self._numbers, self._owners)


def read_whole(path: str) -> Bytes:
    """Return a whole file as uint8 [num_bytes], without keeping it open; raises as a read does."""
    return OpenFiles(limit=1).read(path, 0, identity_of(path)[0])


def unfilled(parts: Sequence[memoryview], done: int) -> list[memoryview]:
    """Return the parts of a read or write that remain after ``done`` bytes.

    >>> [bytes(part) for part in unfilled([memoryview(b"ab"), memoryview(b"cd")], 3)]
    [b'd']
    """
    left = []
    for part in parts:
        left.append(part[done:])
        done = max(0, done - len(part))
    return [part for part in left if len(part)]


_forgetful: weakref.WeakSet[Any] = weakref.WeakSet()


def forget_in_children(holder: Any) -> None:
    """Call the object's ``forget`` in each forked child."""
    _forgetful.add(holder)


def _forget_all() -> None:
    for holder in _forgetful:
        holder.forget()


os.register_at_fork(after_in_child=_forget_all)


class _Opened(Descriptor):
    """A file opened for reading, unless it has replaced the indexed file."""

    def __init__(self, path: str, expected: FileNumber | None) -> None:
        super().__init__(path, os.O_RDONLY)
        status = os.fstat(self.number)
        if expected not in (None, (status.st_dev, status.st_ino)):
            raise OSError(
                errno.ESTALE,
                "it was replaced by another file after indexing. Remedy: make a new source",
                path,
            )


def read_file(path: str, memory: Memory = new_memory) -> torch.Tensor:
    """Return the file's bytes, read without the GIL: uint8 [num_bytes] on the CPU.

    Raises:
        OSError: the file cannot be opened or read.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"abc")
    ...     file.flush()
    ...     read_file(file.name)
    tensor([97, 98, 99], dtype=torch.uint8)
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        rest = data = memory(os.fstat(descriptor).st_size)
        # One read returns at most 2 GiB, and less on some network file systems.
        while len(rest) and (got := os.readv(descriptor, [rest.data])):
            rest = rest[got:]
    finally:
        os.close(descriptor)
    return torch.from_numpy(data[: len(data) - len(rest)])

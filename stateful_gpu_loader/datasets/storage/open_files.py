"""OpenFiles: reading ranges of many files, from many threads, in any process."""

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
"""Device and inode."""


def file_number(path: str) -> FileNumber | None:
    """What tells a local file from one that replaces it; None for a URL or a missing file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class OpenFiles:
    """Opens files as they are read, and keeps the descriptors of the last few that it read.

    Reads carry their offset with them, so threads share a descriptor; a forked child opens files
    anew, and a pickled copy has none.

    Args:
        limit: descriptors that are kept open.
        numbers: of local files, by path, as :func:`file_number` gave them when they were indexed:
            another file in the place of one is not read as if it were the same.
        owners: trusted users, if the files are kept ones (:class:`KeptFile`); None reads any file.

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
        self._files: OrderedDict[str, Descriptor] = OrderedDict()  # the one read last at the end
        self._lock = threading.Lock()
        self._ahead = ReadAhead()
        forget_in_children(self)

    def expect(self, ranges: Iterable[Range], num_bytes: int, *, anew: bool = False) -> None:
        """Begin to fetch ranges of URLs that will be read, each once and as it is given here.

        Args:
            ranges: URL, first byte and the byte behind the last; made only where there is room.
            num_bytes: of all of them. Where these are too many to be kept, nothing is fetched.
            anew: whether what was expected before will not be read any more.
        """
        if anew:
            self._ahead.forget()
        if self._ahead.has_room(num_bytes):
            self._ahead.expect(ranges)

    def read(self, path: str, offset: int, size: int) -> Bytes:
        """uint8 [size]; the GIL is released while it is read.

        Raises:
            OSError: the file cannot be opened or read, or is another one.
            ValueError: it ends before.
        """
        data = new_memory(size)
        self.fill(path, offset, [data.data])
        return data

    def fill(self, path: str, offset: int, parts: Sequence[memoryview]) -> None:
        """Read the bytes from ``offset`` on into the parts, which follow each other in the file.

        One call of the system fills them all, so that what is wanted need not be copied out of
        what was read along with it. Files are read and not mapped: a map of a file that somebody
        cuts off kills the process, where a read ends with an error.

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
            # One read gives at most 2 GiB, and less on some network file systems.
            while done < size and (
                got := os.preadv(
                    file.number, unfilled(parts, done) if done else parts, offset + done
                )
            ):
                done += got
        if done < size:
            raise ValueError(
                f"{path!r} ends at byte {offset + done}, in the middle of the {size} bytes from "
                f"{offset}. Remedy: fetch the file anew; if it was replaced, make a new index"
            )

    def _kept(self, path: str) -> Descriptor | None:
        try:
            self._files.move_to_end(path)
            return self._files[path]
        except KeyError:  # another thread may close it in between
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
                # A thread that is still reading keeps the descriptor open until it is done.
                self._files.popitem(last=False)
        return file

    def forget(self) -> None:
        """Forget all descriptors, and what was fetched; files that are not being read are closed.

        A forked child begins with this, for a thread of the parent may have held the lock.
        """
        self._files = OrderedDict()
        self._lock = threading.Lock()
        self._ahead = ReadAhead()

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenFiles, (self._limit, self._numbers, self._owners)


def read_whole(path: str) -> Bytes:
    """All bytes of one file, uint8 [num_bytes], which is not kept open; errors as of reading it."""
    return OpenFiles(limit=1).read(path, 0, identity_of(path)[0])


def unfilled(parts: Sequence[memoryview], done: int) -> list[memoryview]:
    """What is left of the parts of one read or write, the first ``done`` bytes aside.

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
    """Let the ``forget`` of an object be called in each forked child."""
    _forgetful.add(holder)


def _forget_all() -> None:
    for holder in _forgetful:
        holder.forget()


os.register_at_fork(after_in_child=_forget_all)


class _Opened(Descriptor):
    """A file that is read, unless it is another one than was indexed."""

    def __init__(self, path: str, expected: FileNumber | None) -> None:
        super().__init__(path, os.O_RDONLY)
        status = os.fstat(self.number)
        if expected not in (None, (status.st_dev, status.st_ino)):
            raise OSError(
                errno.ESTALE,
                "another file took its place since it was indexed. Remedy: make the source anew",
                path,
            )


def read_file(path: str, memory: Memory = new_memory) -> torch.Tensor:
    """The file's bytes: uint8 [num_bytes] on the CPU; the GIL is released while it is read.

    Args:
        path: of the file.
        memory: where its bytes go.

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
        # One read gives at most 2 GiB, and less on some network file systems.
        while len(rest) and (got := os.readv(descriptor, [rest.data])):
            rest = rest[got:]
    finally:
        os.close(descriptor)
    return torch.from_numpy(data[: len(data) - len(rest)])

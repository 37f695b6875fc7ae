"""LmdbEnvironment: one LMDB file, opened when it is first read, once in each process.

This file keeps three rules of LMDB. An environment must not be opened twice in a process, so all
sources share one. It must not cross a fork, so it is closed before one and opened again at the next
read. And because LMDB maps its file, and reading a mapped file beyond its end kills the process,
the file's size is compared with the size in its header whenever it is opened.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Condition, RLock, get_ident
from time import monotonic
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.lmdb.tree import read_leaves, read_meta
from stateful_gpu_loader.datasets.name_table import KeyTable
from stateful_gpu_loader.datasets.storage.open_files import FileNumber, file_number
from stateful_gpu_loader.datasets.storage.progress import progress_bar
from stateful_gpu_loader.errors import MissingDependency

REFETCH = "Remedy: fetch it anew"

FORK_TIMEOUT = 30.0
"""Seconds that a fork waits for reads in other threads, and they for it; both take milliseconds."""
_SECONDS_BETWEEN_CHECKS = 0.002


@dataclass(frozen=True, slots=True)
class LmdbIndex:
    """What is known of the records of one file without reading them."""

    keys: KeyTable
    """In their order."""
    lengths: str
    """A digest of how long the values are."""
    outside: frozenset[bytes]
    """Keys whose values would lie beyond the file, which must not be read."""


class LmdbEnvironment:
    """Reads the LMDB at one path, for all sources of this process.

    :func:`environment_at` makes it. It is pickled as its path and number. It is closed with the
    last source that uses it.

    Args:
        path: of the folder that holds ``data.mdb``, or of the file itself; absolute.
        number: of the file: another one in its place is not read as if it were the same.
    """

    def __init__(self, path: str, number: FileNumber | None) -> None:
        self.path = path
        self.number = number
        self._opened: Any = None
        self._reads: WeakSet[_Read] = WeakSet()

    def index(self) -> LmdbIndex:
        """What the tree says of all records; reads no value.

        Raises:
            OSError: as of :meth:`read`, or the tree is damaged or not of plain records.
        """
        digest = hashlib.blake2b(b"lengths", digest_size=16)
        outside: set[bytes] = set()

        def keys(descriptor: int) -> Iterator[bytes]:
            meta, done = read_meta(descriptor), 0
            with progress_bar(f"indexing {self.path}", meta.entries, " records") as note:
                for names, lengths in read_leaves(descriptor, meta):
                    digest.update(np.array(lengths, dtype="<i8").data)
                    if -1 in lengths:
                        outside.update(
                            name for name, length in zip(names, lengths, strict=True) if length < 0
                        )
                    yield from names
                    done += len(names)
                    note(done)

        read = _Read()
        try:
            _GATE.opened(self, read)
            descriptor = os.open(_file(self.path), os.O_RDONLY | os.O_CLOEXEC)
            try:
                table = KeyTable(keys(descriptor))
            except ValueError as error:
                raise OSError(errno.EIO, f"damaged LMDB: {error}. {REFETCH}", self.path) from error
            finally:
                os.close(descriptor)
        finally:
            del read
        return LmdbIndex(table, digest.hexdigest(), frozenset(outside))

    def read(self, key: bytes) -> npt.NDArray[np.uint8] | None:
        """A copy of the value of a key, uint8 [num_bytes]; None where there is no such key.

        Any number of threads may read at once. LMDB's locks are not used: a database that is
        read must not be written at the same time.

        Raises:
            FileNotFoundError: no such path.
            OSError: it is no LMDB file, is truncated or damaged, or cannot be opened.
            MissingDependency: the package ``lmdb`` is not installed.
        """
        lmdb = _lmdb()
        read = _Read()
        try:
            with _GATE.opened(self, read).begin(buffers=True) as transaction:
                # A view of the mapped file, which lmdb has read with the GIL released.
                value = transaction.get(key)
                return None if value is None else np.array(value, dtype=np.uint8)
        except lmdb.Error as error:
            raise OSError(
                errno.EIO, f"LMDB cannot read it ({error}). {REFETCH}", self.path
            ) from error
        finally:
            del read

    def __reduce__(self) -> tuple[Any, ...]:
        return environment_at, (self.path, self.number)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"


def environment_at(
    path: str | os.PathLike[str], number: FileNumber | None = None
) -> LmdbEnvironment:
    """The environment at a path: the same object while any source uses it.

    Nothing is opened yet.

    Args:
        path: of the folder or the file.
        number: of the file that is meant; None is the file that is at the path now.
    """
    full = absolute(path)
    return _GATE.shared(full, file_number(_file(full)) if number is None else number)


def absolute(path: str | os.PathLike[str]) -> str:
    """The path from the root, without ``~``."""
    return os.path.abspath(os.path.expanduser(path))


class _Read:
    """A read in progress, for as long as a function refers to it: no exception can leave it."""

    __slots__ = ("__weakref__",)


class _Gate:
    """Knows the reads in progress, and delays a fork until there are none.

    The interpreter drops what a signal handler raises in a hook of a fork, and leaves the hook in
    the middle. So hooks keep no lock, and reads wait for a fork no longer than ``FORK_TIMEOUT``.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._fork_ended = Condition(self._lock)
        self._shared: WeakValueDictionary[Any, LmdbEnvironment] = WeakValueDictionary()
        self._forks: dict[int, float] = {}
        """By the thread that forks: the seconds of ``monotonic`` until which reads wait for it."""
        self._inherited: list[Any] = []

    def shared(self, path: str, number: FileNumber | None) -> LmdbEnvironment:
        with self._lock:
            # By the file, which two paths may lead to, and which may be written anew.
            key = os.path.realpath(_file(path)), number
            environment = self._shared.get(key)
            if environment is None:
                environment = self._shared[key] = LmdbEnvironment(path, number)
            return environment

    def opened(self, environment: LmdbEnvironment, read: _Read) -> Any:
        """The lmdb.Environment, which stays open until ``read`` is gone."""
        with self._lock:
            while (seconds := max(self._forks.values(), default=0.0) - monotonic()) > 0:
                self._fork_ended.wait(seconds)
            if environment._opened is None:
                environment._opened = _open(environment.path, environment.number)
            environment._reads.add(read)
            return environment._opened

    def before_fork(self) -> None:
        deadline = monotonic() + FORK_TIMEOUT
        with self._lock:
            self._forks[get_ident()] = deadline
            while any(len(each._reads) for each in self._shared.values()):
                if monotonic() >= deadline:
                    break
                self._fork_ended.wait(_SECONDS_BETWEEN_CHECKS)
            self._close_all()

    def after_fork(self) -> None:
        self._forks.pop(get_ident(), None)
        with self._lock:
            self._fork_ended.notify_all()

    def after_fork_in_child(self) -> None:
        # The threads that waited here, and those that read, are not in this process.
        self._lock = RLock()
        self._fork_ended = Condition(self._lock)
        self._forks = {}
        self._close_all()
        for environment in self._shared.values():
            if environment._opened is not None:
                # Never closed, which would wait for the reads of the other process.
                self._inherited.append(environment._opened)
                environment._opened, environment._reads = None, WeakSet()

    def _close_all(self) -> None:
        """Close what is not being read."""
        for environment in self._shared.values():
            if not environment._reads:
                # It is forgotten before it is closed: no read may find it half closed.
                opened, environment._opened = environment._opened, None
                if opened is not None:
                    opened.close()


def _open(path: str, number: FileNumber | None) -> Any:
    """An lmdb.Environment of a file that is as long as it says."""
    lmdb = _lmdb()
    file = _file(path)
    try:
        size = os.stat(file).st_size
    except OSError as error:
        text = f"{error.strerror}: no LMDB is here. Remedy: check the path; it is that of the "
        raise OSError(error.errno, f"{text}folder with data.mdb or of the file", file) from error
    if number not in (None, file_number(file)):
        raise OSError(
            errno.ESTALE,
            "another database took its place since it was indexed. Remedy: make the source anew",
            file,
        )
    try:
        opened = lmdb.open(
            path,
            subdir=file != path,
            readonly=True,
            create=False,
            lock=False,
            # Images are as long as what the system reads ahead: in order it is ten times as fast,
            # at random no slower (records of 10 and 100 KB that no cache held).
            readahead=True,
            max_spare_txns=16,
        )
    except lmdb.Error as error:
        raise OSError(
            errno.EINVAL,
            f"LMDB cannot open this file of {size} bytes ({error}). Remedy: check that it is an "
            "LMDB database, fetch it anew, and close other lmdb.Environment objects over it",
            file,
        ) from error
    claimed = (opened.info()["last_pgno"] + 1) * opened.stat()["psize"]
    if size < claimed:
        opened.close()
        raise OSError(
            errno.EIO,
            f"truncated LMDB: the file has {size} bytes, and says that it has {claimed}. "
            f"{REFETCH}; if it is whole, rewrite it with 'mdb_copy -c'",
            file,
        )
    return opened


def _file(path: str) -> str:
    return os.path.join(path, "data.mdb") if os.path.isdir(path) else path


def _lmdb() -> Any:
    try:
        import lmdb
    except ModuleNotFoundError as error:
        raise MissingDependency("lmdb", needed_for="reading an LMDB", extra="lmdb") from error
    return lmdb


_GATE = _Gate()
os.register_at_fork(
    before=_GATE.before_fork,
    after_in_parent=_GATE.after_fork,
    after_in_child=_GATE.after_fork_in_child,
)

"""LMDB files: random access to the records of one or several files, in any format.

LMDB has three rules. An environment must not be opened twice in a process, so all sources share it.
It must not cross a fork, so it is closed before a fork and opened again at the next read. Reading a
mapped file beyond its end kills the process, so the file's size is compared with its header at each
opening.

lmdb's cursors load a page of every value even for keys alone: for an uncached file, minutes per
million records instead of seconds. So this module reads the pages of the tree itself. Their layout
is that of LMDB 0.9 for 64 bits (mdb.c: MDB_meta, MDB_page, MDB_node), little-endian.
"""

from __future__ import annotations

import bisect
import errno
import hashlib
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct, unpack_from
from threading import Condition, RLock, get_ident
from time import monotonic
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.datasets.name_table import KeyTable
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.datasets.storage.failures import damaged
from stateful_gpu_loader.datasets.storage.index_files import progress_bar
from stateful_gpu_loader.datasets.storage.open_files import FileNumber, file_number
from stateful_gpu_loader.datasets.storage.paths import AnyPath, absolute
from stateful_gpu_loader.errors import MissingDependency
from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.state.contents import ContentDigest

RECORDS_IN_FINGERPRINT = 32
"""Number of whole records of each database in the fingerprint."""


class LmdbSource(Source):
    """Base class of LMDB sources: a format defines :meth:`parse` and :meth:`settings`.

    Records are in the order of their keys, path by path, as in DALI's readers. The keys are read
    once, here (under 1 s per million), and sent to workers with the source. A database must not be
    written while it is read.

    Args:
        paths: the folder with ``data.mdb``, or the file itself; or several, one after the other.

    Attributes:
        paths: the paths, absolute.

    Raises:
        FileNotFoundError: no such path.
        OSError: the file is not an LMDB, or is truncated.
        ValueError: a database has no records, or no path was given.
        MissingDependency: the package ``lmdb`` is not installed.
    """

    paths: tuple[str, ...]

    def __init__(self, paths: AnyPath | Iterable[AnyPath]) -> None:
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        if not given:
            raise ValueError("no paths were given. Remedy: give at least one")
        self._environments = [environment_at(path) for path in given]
        self.paths = tuple(map(absolute, given))
        self._indexes: list[LmdbIndex] = []
        for environment in self._environments:
            index = environment.index()
            if not len(index.keys):
                raise ValueError(
                    f"{environment.path!r} holds no record. Remedy: check the path; sub-databases "
                    "are not read"
                )
            self._indexes.append(index)
        self._ends: list[int] = np.cumsum([len(each.keys) for each in self._indexes]).tolist()
        self._fingerprint: str | None = None

    @abstractmethod
    def parse(self, record: memoryview, index: int) -> tuple[npt.NDArray[np.uint8], Any]:
        """Return a record's image as a file, uint8 [num_bytes], and its target.

        Args:
            record: the record; the image may be a view of it.

        Raises:
            ValueError: the record is malformed.
        """

    @abstractmethod
    def settings(self) -> str:
        """Return a text of the format and its arguments, for the fingerprint."""

    def __len__(self) -> int:
        return self._ends[-1]

    def read(self, index: int) -> EncodedSample:
        """Return the image, its target, and the path and key of its record.

        Raises:
            ValueError: the record is malformed; the message has the path, key and byte.
            OSError: the database cannot be opened, or no longer has the key.
        """
        number, key = self._place(index)
        try:
            data, target = self.parse(self._record(number, key).data, index)
        except ValueError as error:
            raise damaged(self.paths[number], str(error), record=_text(key)) from error
        name = f"{self.paths[number]}, record {_text(key)!r}"
        return EncodedSample(torch.from_numpy(data), target, name)

    def _place(self, index: int) -> tuple[int, bytes]:
        """Return the number of a sample's database, and its key in the database."""
        number = bisect.bisect_right(self._ends, index)
        start = self._ends[number - 1] if number else 0
        return number, self._indexes[number].keys[index - start]

    def _record(self, number: int, key: bytes) -> npt.NDArray[np.uint8]:
        if key in self._indexes[number].outside:
            raise ValueError("damaged LMDB: the value would lie beyond the file's end")
        record = self._environments[number].read(key)
        if record is None:
            raise OSError(
                errno.ESTALE,
                f"record {_text(key)!r} existed when the keys were read, and no longer does. "
                "Remedy: make a new source, and do not write a database that is read",
                self.paths[number],
            )
        return record

    def fingerprint(self) -> str:
        """Return a blake2b of all records' keys and lengths, and of 32 whole records per database.

        Keys alone are often mere numbers. The 32 records are evenly spread, including the first and
        the last, so a change of all labels is noticed. A single record that changed in place and
        kept its length is noticed only if it is one of the 32. Copies, and databases rewritten with
        the same records, have the same fingerprint.
        """
        if self._fingerprint is None:
            digest = ContentDigest(f"lmdb 1, {self.settings()}")
            for number, index in enumerate(self._indexes):
                keys = index.keys
                places = np.linspace(0, len(keys) - 1, min(len(keys), RECORDS_IN_FINGERPRINT))
                chosen = [keys[int(place)] for place in places]
                records = [
                    self._record(number, key).tobytes()
                    for key in chosen
                    if key not in index.outside
                ]
                digest.add_blocks((*keys.blocks(), index.lengths.encode(), *records))
            self._fingerprint = f"{len(self)} LMDB records, {digest.text()}"
        return self._fingerprint

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.paths)!r}, {len(self)} records)"


def _text(key: bytes) -> str:
    return key.decode(errors="backslashreplace")


REFETCH = "Remedy: fetch it again"

FORK_TIMEOUT = 30.0
"""Maximum seconds that a fork and reads in other threads wait for each other."""
_SECONDS_BETWEEN_CHECKS = 0.002


@dataclass(frozen=True, slots=True)
class LmdbIndex:
    """Keys and lengths of the records of one file."""

    keys: KeyTable
    """Keys in order."""
    lengths: str
    """Digest of the lengths of the values."""
    outside: frozenset[bytes]
    """Keys whose values would lie beyond the end of the file, and must not be read."""


class LmdbEnvironment:
    """Reads the LMDB at one path, for all sources of this process.

    It is pickled as its path and number, and closed with the last source that uses it.

    Args:
        path: absolute path of the folder that contains ``data.mdb``, or of the file itself.
        number: number of the file; a file that has replaced it is refused.
    """

    def __init__(self, path: str, number: FileNumber | None) -> None:
        self.path = path
        self.number = number
        self._opened: Any = None
        self._reads: WeakSet[_Read] = WeakSet()

    def index(self) -> LmdbIndex:
        """Return the keys and lengths of all records, from the tree; no value is read.

        Raises:
            OSError: as :meth:`read`, or the tree is damaged or has other records than plain ones.
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
        """Return a copy of the value of a key, uint8 [num_bytes]; None if there is no such key.

        Any number of threads may read at once. LMDB's locks are not used: a database must not be
        written while it is read.

        Raises:
            FileNotFoundError: no such path.
            OSError: the file is not an LMDB, is truncated or damaged, or cannot be opened.
            MissingDependency: the package ``lmdb`` is not installed.
        """
        lmdb = _lmdb()
        read = _Read()
        try:
            with _GATE.opened(self, read).begin(buffers=True) as transaction:
                # A view of the mapped file; lmdb loaded the pages without the GIL.
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
    """Return the environment at a path: the same object while any source uses it.

    Args:
        path: path of the folder or the file.
        number: number of the expected file; None is the file now at the path.
    """
    full = absolute(path)
    return _GATE.shared(full, file_number(_file(full)) if number is None else number)


class _Read:
    """A read in progress. It ends with the last reference to it, even after an exception."""

    __slots__ = ("__weakref__",)


class _Gate:
    """Tracks reads in progress, and delays a fork until there are none.

    If a signal handler raises in a fork hook, the interpreter drops the exception and leaves the
    hook in the middle. So hooks keep no lock, and reads wait at most ``FORK_TIMEOUT`` for a fork.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._fork_ended = Condition(self._lock)
        self._shared: WeakValueDictionary[Any, LmdbEnvironment] = WeakValueDictionary()
        self._forks: dict[int, float] = {}
        """Time of ``monotonic`` in seconds until which reads wait, by the thread that forks."""
        self._inherited: list[Any] = []

    def shared(self, path: str, number: FileNumber | None) -> LmdbEnvironment:
        with self._lock:
            # By file, because two paths may lead to the same file, and the file may be rewritten.
            key = os.path.realpath(_file(path)), number
            environment = self._shared.get(key)
            if environment is None:
                environment = self._shared[key] = LmdbEnvironment(path, number)
            return environment

    def opened(self, environment: LmdbEnvironment, read: _Read) -> Any:
        """Return the lmdb.Environment, which stays open until ``read`` is gone."""
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
        # The waiting and reading threads do not exist in this process.
        self._lock = RLock()
        self._fork_ended = Condition(self._lock)
        self._forks = {}
        self._close_all()
        for environment in self._shared.values():
            if environment._opened is not None:
                # Never closed, because closing would wait for the parent's reads.
                self._inherited.append(environment._opened)
                environment._opened, environment._reads = None, WeakSet()

    def _close_all(self) -> None:
        """Close the environments that are not being read."""
        for environment in self._shared.values():
            if not environment._reads:
                # Removed first, so that no read finds it half closed.
                opened, environment._opened = environment._opened, None
                if opened is not None:
                    opened.close()


def _open(path: str, number: FileNumber | None) -> Any:
    """Open an lmdb.Environment whose file is as long as its header says."""
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
            "it was replaced by another database after indexing. Remedy: make a new source",
            file,
        )
    try:
        opened = lmdb.open(
            path,
            subdir=file != path,
            readonly=True,
            create=False,
            lock=False,
            # Images are about as long as the system's read-ahead: reading in order is ten times as
            # fast, and random access no slower (uncached records of 10 and 100 KB).
            readahead=True,
            max_spare_txns=16,
        )
    except lmdb.Error as error:
        raise OSError(
            errno.EINVAL,
            f"LMDB cannot open this file of {size} bytes ({error}). Remedy: check that it is an "
            "LMDB database, fetch it again, and close other lmdb.Environment objects over it",
            file,
        ) from error
    claimed = (opened.info()["last_pgno"] + 1) * opened.stat()["psize"]
    if size < claimed:
        opened.close()
        raise OSError(
            errno.EIO,
            f"truncated LMDB: the file has {size} bytes, but its header says {claimed}. "
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


MAGIC, VERSION = 0xBEEFC0DE, 1
BRANCH, LEAF, KINDS = 1, 2, 0x6F
"""Mask for the flags of a page, without the flag of dirty pages."""
BIG = 1
"""Flag of a node whose value has its own pages; nodes with other flags are not plain records."""
EMPTY = 2**64 - 1
MAX_DEPTH = 32

# Page header, 16 bytes: number, padding, flags, lower, upper.
_PAGE = Struct("<QHHHH")
# Node header: length of the value as low and high (in branches: a page number, with flags), flags,
# and length of the key. The key follows, then the value or the number of its first page.
_NODE = Struct("<HHHH")
# Page number, stored after the key of a node whose value has its own pages.
_NUMBER = Struct("<Q")
# Magic, version; then from byte 24 the free list (its first field is the page size) and the main
# database: flags, depth, branch, leaf and overflow pages, entries, root; last page, transaction.
_META = Struct("<II16xI44xIHHQQQQQQQ")


@dataclass(frozen=True, slots=True)
class LmdbMeta:
    """The meta page of an LMDB file."""

    page_size: int
    """Bytes."""
    depth: int
    """Number of levels of the tree; 0 if it is empty."""
    leaf_pages: int
    entries: int
    root: int
    """Number of the root page."""
    last_page: int
    transaction: int
    """Number of the last transaction; the newer of the two meta pages counts."""


def read_meta(descriptor: int) -> LmdbMeta:
    """Return the newer meta page of an open file.

    Raises:
        ValueError: the file is not an LMDB of this format.
        OSError: the file cannot be read.
    """
    first = _meta_at(descriptor, 0)
    second = _meta_at(descriptor, first.page_size)
    return first if first.transaction >= second.transaction else second


def read_leaves(descriptor: int, meta: LmdbMeta) -> Iterator[tuple[list[bytes], list[int]]]:
    """Yield the keys and the lengths of the values of each leaf of the main database, in order.

    The length is -1 if the value would lie beyond the end of the file.

    Raises:
        ValueError: a page is damaged or missing, or records are not plain (sub-databases, several
            values under one key).
        OSError: a page cannot be read.
    """
    if meta.depth > MAX_DEPTH:
        raise ValueError(f"a tree of {meta.depth} levels, at most {MAX_DEPTH} exist")
    entries = leaves = 0
    size = os.fstat(descriptor).st_size
    for page in _walk(descriptor, meta, meta.root, meta.depth) if meta.root != EMPTY else ():
        keys, lengths = [], []
        for at in _nodes(page):
            low, high, flags, key_length = _NODE.unpack_from(page, at)
            start, end = at + _NODE.size, at + _NODE.size + key_length
            if flags & ~BIG or end > len(page):
                raise ValueError(
                    "sub-databases or several values under one key, which are not read"
                    if flags & ~BIG
                    else f"a key of {key_length} bytes reaches beyond its page"
                )
            keys.append(page[start:end])
            length = low | high << 16
            if flags:
                value = page[end : end + _NUMBER.size]
                number = _NUMBER.unpack(value)[0] if len(value) == _NUMBER.size else size
                is_inside = number * meta.page_size + _PAGE.size + length <= size
            else:
                is_inside = end + length <= len(page)
            lengths.append(length if is_inside else -1)
        entries, leaves = entries + len(keys), leaves + 1
        if entries > meta.entries or leaves > meta.leaf_pages:
            break
        yield keys, lengths
    if (entries, leaves) != (meta.entries, meta.leaf_pages):
        raise ValueError(
            f"{entries} records on {leaves} pages were found, expected {meta.entries} on "
            f"{meta.leaf_pages}"
        )


def _walk(descriptor: int, meta: LmdbMeta, number: int, depth: int) -> Iterator[bytes]:
    """Yield the leaves below a page, in order."""
    if number > meta.last_page:
        raise ValueError(f"page {number} of {meta.last_page + 1} is requested")
    page = os.pread(descriptor, meta.page_size, number * meta.page_size)
    if len(page) < meta.page_size:
        raise ValueError(f"page {number} lies beyond the file's end")
    own_number, _, flags, _, _ = _PAGE.unpack_from(page)
    if own_number != number or flags & KINDS != (LEAF if depth == 1 else BRANCH):
        raise ValueError(f"page {number} is not the page of the tree that it should be")
    if depth == 1:
        yield page
        return
    for at in _nodes(page):
        low, high, highest, _ = _NODE.unpack_from(page, at)
        yield from _walk(descriptor, meta, low | high << 16 | highest << 32, depth - 1)


def _nodes(page: bytes) -> tuple[int, ...]:
    """Return the offset of each node in a page."""
    number, _, _, lower, _ = _PAGE.unpack_from(page)
    if _PAGE.size <= lower <= len(page):
        nodes = unpack_from(f"<{(lower - _PAGE.size) // 2}H", page, _PAGE.size)
        if not nodes or lower <= min(nodes) <= max(nodes) <= len(page) - _NODE.size:
            return nodes
    raise ValueError(f"page {number} is damaged")


def _meta_at(descriptor: int, place: int) -> LmdbMeta:
    data = os.pread(descriptor, _PAGE.size + _META.size, place)
    if len(data) < _PAGE.size + _META.size:
        raise ValueError(f"no meta page at byte {place}, where the file ends")
    magic, version, page_size, _, _, depth, _, leaves, _, entries, root, last, transaction = (
        _META.unpack_from(data, _PAGE.size)
    )
    if magic != MAGIC:
        raise ValueError(f"no LMDB meta page at byte {place}")
    if version != VERSION or page_size not in (1 << power for power in range(9, 17)):
        raise ValueError(f"LMDB's format {version} with pages of {page_size} bytes, not {VERSION}")
    return LmdbMeta(page_size, depth, leaves, entries, root, last, transaction)

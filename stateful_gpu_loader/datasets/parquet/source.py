"""ParquetSource and ParquetShards: encoded images in Parquet files, by row or streamed."""

from __future__ import annotations

import errno
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.parquet.files import (
    Footer,
    decoding,
    iterate_rows,
    read_footer,
    read_footers,
    read_row_group,
)
from stateful_gpu_loader.datasets.parquet.rows import Place, Rows, Selection, path_to
from stateful_gpu_loader.datasets.sharded import EncodedShards, FileShards, sample_or_error
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.datasets.storage.failures import failed
from stateful_gpu_loader.datasets.storage.index_files import identity_of
from stateful_gpu_loader.datasets.storage.paths import AnyPath, as_paths, is_url, names_of
from stateful_gpu_loader.datasets.target_choice import Target
from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.state.contents import ContentDigest

T = TypeVar("T")

_FOOTERS = 64
"""Number of parsed footers that a process keeps."""


class ParquetSource(Source):
    """Rows of Parquet files: a column of encoded images, and columns of the target.

    The image is a column of bytes, or a struct ``{bytes, path}`` as on the Hugging Face hub. If the
    struct has no bytes, the file at its path or URL is read. A relative path starts at the Parquet
    file's folder.

    Reading a row reads its whole row group, because pyarrow reads nothing smaller. Each process
    keeps up to ``cache_bytes`` of decoded row groups, which its threads share. A shuffled order
    over more data reads a row group for almost every sample, and causes one warning. Then shuffle
    by blocks (:meth:`block_lengths`) with a window that fits into ``cache_bytes``, write smaller
    row groups, or use ParquetShards.

    Args:
        paths: one or several, local or URLs, with wildcards and braces, in order.
        image: the image column; ``"a.b"`` is field b of the struct a.
        target: a column, for its value; a tuple or list of columns, for a tuple; a dict of new
            names and columns, for a dict; None for the index. Numbers, strings and bytes become
            Python values, dates and times the stored int, lists arrays.
        cache_bytes: size of the decoded row groups kept in one process. One row group of any size
            is always kept, and each thread also holds the row group it is reading.

    Attributes:
        paths: absolute paths of the files.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is not a Parquet file or is truncated, a column is missing or has an
            unsupported type, or there are no rows.
        MissingDependency: pyarrow, or a package for the URL, is not installed.

    >>> import pyarrow, pyarrow.parquet, tempfile
    >>> table = pyarrow.table({"image": [b"jpeg 0", b"jpeg 1"], "label": [7, 8]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pyarrow.parquet.write_table(table, f"{folder}/train-0.parquet")
    ...     source = ParquetSource(f"{folder}/train-*.parquet", target={"class": "label"})
    ...     source[1]
    (tensor([106, 112, 101, 103,  32,  49], dtype=torch.uint8), {'class': 8})
    """

    def __init__(
        self,
        paths: AnyPath | Iterable[AnyPath],
        *,
        image: str = "image",
        target: Target = "label",
        cache_bytes: int = 256 << 20,
    ) -> None:
        if cache_bytes < 0:
            raise ValueError(f"{cache_bytes = } is negative. Remedy: pass 0 or more bytes")
        self.paths = as_paths(paths)
        self.image = image
        self.target = target
        self.cache_bytes = cache_bytes
        self._selection = Selection(image, target)
        footers = read_footers(self.paths)
        for footer in footers:
            self._selection.check(footer.path, footer.schema)
            self._check_types(footers[0], footer)
        self._digests = [footer.digest for footer in footers]
        groups = [
            (file, number, first)
            for file, footer in enumerate(footers)
            for number, first in enumerate(np.cumsum((0, *footer.row_groups))[:-1].tolist())
        ]
        self._groups = np.array(groups, dtype=np.int64).reshape(-1, 3)
        """int64 [row groups, 3]: file, number in the file, and number of the first row."""
        counts = [count for footer in footers for count in footer.row_groups]
        self._ends = np.cumsum(counts, dtype=np.int64)
        if not len(self):
            raise ValueError(
                f"no row in {', '.join(map(repr, self.paths[:5]))}{', ...' * (len(footers) > 5)}. "
                "Remedy: give files that have rows"
            )
        self._rows: BoundedCache[Rows] = BoundedCache(
            cache_bytes, attrgetter("num_bytes"), RowGroupUse(cache_bytes, len(counts))
        )
        self._footers: BoundedCache[Footer] = BoundedCache(_FOOTERS, _one)

    def _check_types(self, first: Footer, other: Footer) -> None:
        """Refuse columns whose types or units differ between files."""
        for column in self._selection.columns:
            name = path_to(first.schema, column)[0]
            types = [footer.schema.field(name).type for footer in (first, other)]
            if types[0] != types[1]:
                raise ValueError(
                    f"column {name!r} is {types[0]} in {first.path!r} and {types[1]} in "
                    f"{other.path!r}. Remedy: write them alike, or make a source of each"
                )

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, index: int) -> EncodedSample:
        """Return the image's bytes, its target, and the file and row as name.

        Raises:
            OSError: the storage failed, or the file has changed since it was indexed.
            ValueError: the row group is damaged, the image has neither bytes nor a path, or a value
                of the target is null; the message has the file, row group and row.
            MemoryError: memory is too small for the row group, or for the size that a damaged one
                claims.
        """
        group, row, place = self._place(index)

        def load() -> EncodedSample:
            rows = self._rows.get(group, lambda: self._read_group(group))
            return rows.sample(row, place, index)

        return _of_storage(load, index)

    def record(self, index: int) -> dict[str, Any]:
        """Return all columns of a row, as pyarrow's Python values; reads the whole row group.

        Raises:
            OSError, ValueError, MemoryError: as :meth:`read`; also ValueError for a value without a
                Python equivalent, such as a time after the year 9999.
        """
        group, row, place = self._place(index)
        table = _of_storage(lambda: read_row_group(self._footer(group), place.group, None), index)
        where = f"row group {place.group}, row {place.row}"
        with decoding(place.path, where, "a value"):
            found: dict[str, Any] = table.slice(row, 1).to_pylist()[0]
        return found

    def block_lengths(self) -> npt.NDArray[np.int64]:
        """Return int64 [row groups]: number of samples of each non-empty row group, in order."""
        lengths = np.diff(self._ends, prepend=0)
        return lengths[lengths > 0]

    def fingerprint(self) -> str:
        """Return a blake2b of the files' names and footers, and of the chosen columns.

        Footers hold the columns, the rows, sizes and positions of all row groups, and the writer's
        statistics. So no data is read, and the files may move.
        """
        digest = ContentDigest("parquet 1")
        for name, footer in zip(names_of(self.paths), self._digests, strict=True):
            digest.add_name(name).add(footer)
        digest.add(self._selection.describe().encode())
        return f"{len(self)} rows, {digest.text()}"

    def _place(self, index: int) -> tuple[int, int, Place]:
        """Return the row group, counted over all files, the row in it, and its place."""
        group = int(self._ends.searchsorted(index, side="right"))
        row = index - (int(self._ends[group - 1]) if group else 0)
        file, number, first = self._groups[group].tolist()
        return group, row, Place(self.paths[file], number, first + row)

    def _read_group(self, group: int) -> Rows:
        number, columns = int(self._groups[group, 1]), self._selection.columns
        return self._selection.rows(read_row_group(self._footer(group), number, columns))

    def _footer(self, group: int) -> Footer:
        """Return the footer of a row group's file; refuse a file changed after indexing."""
        file = int(self._groups[group, 0])
        path = self.paths[file]
        footer = self._footers.get(file, lambda: self._read_footer(file))
        if not is_url(path) and identity_of(path) != footer.identity:
            # The file was rewritten. For a URL this check would cost a request per row group.
            self._footers.drop(file)
            footer = self._footers.get(file, lambda: self._read_footer(file))
        return footer

    def _read_footer(self, file: int) -> Footer:
        path = self.paths[file]
        try:
            footer = read_footer(path)
        except ValueError as error:
            raise self._changed(path) from error
        if footer.digest != self._digests[file]:
            raise self._changed(path)
        return footer

    def _changed(self, path: str) -> OSError:
        # The whole file is wrong, so no policy for bad samples may hide it.
        return OSError(
            errno.ESTALE,
            "the file has changed since it was indexed. Remedy: make a new source, or put the file "
            "back",
            path,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.paths)} files, {len(self)} rows)"


def _of_storage(load: Callable[[], T], index: int) -> T:
    """Return ``load()``; a failure of the storage also names the sample."""
    try:
        return load()
    except OSError as error:
        if error.errno is None or error.filename is None:
            raise
        raise failed(error, error.filename, f"sample {index = }") from error


def _one(footer: Footer) -> int:
    return 1


class ParquetShards(FileShards, EncodedShards):
    """Streamed Parquet files: a shard is a file, a cursor the number of a row.

    Row groups before the cursor are not read. About 8 MiB of rows are decoded at a time, so many
    files can be open at once.

    Args:
        paths: one or several, local or URLs, with wildcards and braces, in order.
        image: the image column, as for :class:`ParquetSource`.
        target: the target columns, as for :class:`ParquetSource`; None for the row's number in its
            file.
        count_rows: whether the number of rows is read from the files' footers, when first needed;
            then every rank delivers the same number of batches, and ``len(loader)`` is known. For
            very many URLs, pass False to save a small read for each.
        num_lanes: number of files read at a time; None is 64, or fewer if there are fewer files.
        shuffle_buffer: as for :class:`ShardedDataset`.

    Attributes:
        paths: absolute paths of the files.

    Raises:
        ValueError: no file is given, or a file is given twice.
        FileNotFoundError: a wildcard matches nothing. Other files are opened only when read.

    >>> import pyarrow, pyarrow.parquet, tempfile
    >>> table = pyarrow.table({"image": [b"a", b"b", b"c"], "label": [7, 8, 9]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pyarrow.parquet.write_table(table, f"{folder}/0.parquet", row_group_size=2)
    ...     shards = ParquetShards(f"{folder}/*.parquet")
    ...     [(sample.target, cursor) for sample, cursor in shards.read_shard("0.parquet", 1)]
    [(8, 2), (9, 3)]
    """

    def __init__(
        self,
        paths: AnyPath | Iterable[AnyPath],
        *,
        image: str = "image",
        target: Target = "label",
        count_rows: bool = True,
        num_lanes: int | None = None,
        shuffle_buffer: int = EncodedShards.shuffle_buffer,
    ) -> None:
        super().__init__(paths, None, num_lanes, shuffle_buffer)
        self.image = image
        self.target = target
        self.count_rows = count_rows
        self._selection = Selection(image, target)
        self._footers: dict[str, tuple[int, bytes]] = {}
        """Number of rows and digest of each file's footer, once read."""

    def num_samples(self, shard: str) -> int | None:
        """Return the number of rows of a file, if ``count_rows``.

        Raises:
            OSError, ValueError: a footer cannot be read, or is damaged.
        """
        return self._footer_of(shard)[0] if self.count_rows else None

    def fingerprint(self) -> str:
        """Return a blake2b of the files' names, the chosen columns and, if counted, the footers."""
        digest = ContentDigest("parquet shards 1")
        for name in self._names:
            digest.add_name(name).add(self._footer_of(name)[1] if self.count_rows else b"")
        digest.add(self._selection.describe().encode())
        return f"{len(self._names)} shards, {digest.text()}"

    def read_shard(
        self, shard: str, cursor: int
    ) -> Iterator[tuple[EncodedSample | ValueError, int]]:
        """Yield the rows from ``cursor`` on, each with the number of the next row.

        A row without an image or a valid target yields a ValueError in its place.

        Raises:
            OSError: the storage failed.
            ValueError: no such shard, a column is missing, the cursor is beyond the end, or the
                rest of the file is damaged; the message has the file, row group and row.
            MemoryError: memory is too small for a row, or for the size that a damaged file claims.
        """
        path = self.path_of(shard)
        footer = read_footer(path)
        self._selection.check(path, footer.schema)
        if not 0 <= cursor <= footer.num_rows:
            raise ValueError(
                f"{path!r} has {footer.num_rows} rows, and the cursor is {cursor}. Remedy: go on "
                "with the file that the state was saved with"
            )
        for first, group, batch in iterate_rows(footer, cursor, self._selection.columns):
            rows = self._selection.rows(batch)
            for i in range(len(rows)):
                number = first + i
                place = Place(path, group, number)
                yield sample_or_error(rows.sample, i, place, number), number + 1

    def _footer_of(self, shard: str) -> tuple[int, bytes]:
        if not self._footers:
            footers = read_footers(self.paths)
            found = [(footer.num_rows, footer.digest) for footer in footers]
            self._footers = dict(zip(self._names, found, strict=True))
        return self._footers[shard]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.paths)} files)"


IN_TURN = 64
"""Number of row groups wasted in succession before the warning; looking at samples wastes fewer."""
LEAST_SHARE = 8
"""A row group is wasted if less than this fraction (1 / LEAST_SHARE) of its rows was read."""


@dataclass
class RowGroupUse:
    """Counts decoded row groups that were dropped for lack of room with few of their rows read.

    It counts reads instead of time, so the same order of reads gives the same warning, once for
    each source in each process.
    """

    cache_bytes: int
    num_groups: int
    wasted: int = 0
    """Number of row groups wasted in succession so far."""
    wasted_bytes: int = 0
    """Size of these row groups in memory."""
    has_warned: bool = False

    def __call__(self, rows: Rows, uses: int) -> None:
        """Record that a row group is dropped after ``uses`` of its rows were read."""
        if self.has_warned:
            return
        if uses * LEAST_SHARE >= len(rows):
            self.wasted = self.wasted_bytes = 0
            return
        self.wasted, self.wasted_bytes = self.wasted + 1, self.wasted_bytes + rows.num_bytes
        if self.wasted < IN_TURN or self.wasted_bytes <= self.cache_bytes:
            return
        self.has_warned = True
        warnings.warn(
            f"{self.wasted} row groups of a ParquetSource, one after the other, were decoded and "
            f"dropped again before one in {LEAST_SHARE} of their rows was read: the last has "
            f"{len(rows)} rows, of which {uses} were read. A row is read with its whole row group, "
            f"of {rows.num_bytes / 2**20:.1f} MiB here, and cache_bytes={self.cache_bytes} keeps "
            f"some {self.cache_bytes // max(1, rows.num_bytes)} of {self.num_groups}; so decoding "
            "takes most of the time. Remedy: shuffle a few row groups at a time, "
            "sampler=ShuffledSampler(source, locality=Blocks.of(source, window=...)), with "
            "cache_bytes for all row groups of a window; worker processes have a cache each, and "
            "worker threads share one. Or keep the decoded images, PreparedSource(source, "
            "directory); or write smaller row groups, or read with ParquetShards",
            stacklevel=2,
        )


class BoundedCache(Generic[T]):
    """The values used last, as many as fit into ``limit`` bytes, but at least one.

    A forked child and a pickled copy start empty. Only threads that want the same value wait while
    it is made. If that fails, each of them tries again.

    Args:
        size_of: returns the size of a value in bytes.
        on_drop: called with a value dropped for lack of room, and with how often it was requested.

    >>> cache = BoundedCache(10, len)
    >>> [cache.get(key, lambda: "x" * 6) for key in (1, 2, 2)]
    ['xxxxxx', 'xxxxxx', 'xxxxxx']
    >>> cache.keys()
    [2]
    """

    def __init__(
        self,
        limit: int,
        size_of: Callable[[T], int],
        on_drop: Callable[[T, int], None] | None = None,
    ) -> None:
        self._limit = limit
        self._size_of = size_of
        self._on_drop = on_drop
        self._here: _Held[T] = _Held()

    def get(self, key: int, make: Callable[[], T]) -> T:
        """Return the value of a key; make it if it is not held."""
        here = self._held()
        while True:
            with here.lock:
                slot = here.slots.get(key)
                if slot is None:
                    mine = here.slots[key] = _Slot[T]()
                    break
                here.slots.move_to_end(key)
                slot.uses += 1
            slot.done.wait()
            if slot.made:
                return slot.made[0]
        try:
            value = make()
        except BaseException:
            with here.lock:
                del here.slots[key]
            raise
        else:
            with here.lock:
                mine.made, mine.size = (value,), self._size_of(value)
                here.size += mine.size
                dropped = self._drop_oldest(here, key)
        finally:
            mine.done.set()
        if self._on_drop is not None:
            for old in dropped:
                self._on_drop(old.made[0], old.uses)
        return value

    def keys(self) -> list[int]:
        """Return the keys of the held values, the one used last at the end."""
        return list(self._held().slots)

    def drop(self, key: int) -> None:
        """Drop the value of a key."""
        here = self._held()
        with here.lock:
            slot = here.slots.get(key)
            if slot is not None and slot.made:
                here.size -= here.slots.pop(key).size

    def _drop_oldest(self, here: _Held[T], newest: int) -> list[_Slot[T]]:
        dropped: list[_Slot[T]] = []
        for key in [key for key in here.slots if key != newest]:
            if here.size <= self._limit:
                break
            if here.slots[key].made:
                dropped.append(here.slots.pop(key))
                here.size -= dropped[-1].size
        return dropped

    def _held(self) -> _Held[T]:
        here = self._here
        if here.owner != os.getpid():
            # No lock here: a thread of the parent may have held it at the fork.
            here = self._here = _Held()
        return here

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundedCache, (self._limit, self._size_of, self._on_drop)


class _Slot(Generic[T]):
    """The place of one value, which may still be in the making."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.made: tuple[T, ...] = ()
        """The value, once it exists."""
        self.size = 0
        self.uses = 1
        """Number of requests for the value, including the first."""


class _Held(Generic[T]):
    """The values held by one process."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.lock = threading.Lock()
        self.slots: OrderedDict[int, _Slot[T]] = OrderedDict()
        self.size = 0

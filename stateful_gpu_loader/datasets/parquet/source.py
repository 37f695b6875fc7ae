"""ParquetSource and ParquetShards: encoded images in Parquet files, by row or as streams."""

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
"""Footers that a process keeps parsed."""


class ParquetSource(Source):
    """Rows of Parquet files: a column of encoded images, and columns that are the target.

    The image is a column of bytes, or a struct ``{bytes, path}`` as the Hugging Face hub stores
    images; where such a struct has no bytes, the file at its path is read: a URL, or a path that,
    if it is relative, begins at the folder of the Parquet file.

    A row is read with its whole row group, since pyarrow reads nothing smaller; row groups are
    kept, decoded, up to ``cache_bytes`` in each process (a worker process, or all worker threads
    together). A shuffled order over more data than that reads a row group for almost every
    sample, and a warning says so once: shuffle by blocks (:meth:`block_lengths`), whose window
    should fit into ``cache_bytes``, write small row groups, or use ParquetShards.

    Args:
        paths: one or several, local or URLs, with wildcards and braces, in this order.
        image: the column of the image; ``"a.b"`` is field b of the struct a.
        target: a column, for its value; a tuple or list of columns, for a tuple; a dict of new
            names and columns, for a dict; None for the index. Numbers, texts and bytes come as
            Python's, dates and times as the int that is stored, lists as arrays.
        cache_bytes: of decoded row groups in one process; one is kept however large it is, and
            a thread holds the row group that it is reading, too.

    Attributes:
        paths: of the files, absolute.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is no Parquet file or truncated, a column is missing or of a type that
            cannot be used, or there is no row.
        MissingDependency: pyarrow is not installed, or what a URL needs.

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
        """int64 [row groups, 3]: the file, the number in it, and the number of its first row."""
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
        """A column of another type, or unit, would give other values for the same thing."""
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
        """The image's bytes, its target, and the file and row as its name.

        Raises:
            OSError: the storage failed, or the file is another one than was indexed.
            ValueError: the row group is damaged, the image has neither bytes nor a path, or a value
                of the target is null; the text names file, row group and row.
            MemoryError: there is not enough for the row group, or for what a damaged one claims.
        """
        group, row, place = self._place(index)

        def load() -> EncodedSample:
            rows = self._rows.get(group, lambda: self._read_group(group))
            return rows.sample(row, place, index)

        return _of_storage(load, index)

    def record(self, index: int) -> dict[str, Any]:
        """All columns of a row, as pyarrow's Python values; its whole row group is read for it.

        Raises:
            OSError, ValueError, MemoryError: as :meth:`read`; a ValueError, too, if a value is none
                of Python's, as a time after the year 9999.
        """
        group, row, place = self._place(index)
        table = _of_storage(lambda: read_row_group(self._footer(group), place.group, None), index)
        where = f"row group {place.group}, row {place.row}"
        with decoding(place.path, where, "a value"):
            found: dict[str, Any] = table.slice(row, 1).to_pylist()[0]
        return found

    def block_lengths(self) -> npt.NDArray[np.int64]:
        """int64 [row groups]: the samples of each, in the order of indices; none is 0."""
        lengths = np.diff(self._ends, prepend=0)
        return lengths[lengths > 0]

    def fingerprint(self) -> str:
        """blake2b of the files' names and footers, and of the columns chosen.

        Footers hold the columns, the rows, sizes and places of all row groups, and what statistics
        the writer left; so the content id does not depend on the files' paths, and no
        data is read for it.
        """
        digest = ContentDigest("parquet 1")
        for name, footer in zip(names_of(self.paths), self._digests, strict=True):
            digest.add_name(name).add(footer)
        digest.add(self._selection.describe().encode())
        return f"{len(self)} rows, {digest.text()}"

    def _place(self, index: int) -> tuple[int, int, Place]:
        """The row group, counted over all files, the row in it, and where that lies."""
        group = int(self._ends.searchsorted(index, side="right"))
        row = index - (int(self._ends[group - 1]) if group else 0)
        file, number, first = self._groups[group].tolist()
        return group, row, Place(self.paths[file], number, first + row)

    def _read_group(self, group: int) -> Rows:
        number, columns = int(self._groups[group, 1]), self._selection.columns
        return self._selection.rows(read_row_group(self._footer(group), number, columns))

    def _footer(self, group: int) -> Footer:
        """The footer of a row group's file, which must be the one that was indexed."""
        file = int(self._groups[group, 0])
        path = self.paths[file]
        footer = self._footers.get(file, lambda: self._read_footer(file))
        if not is_url(path) and identity_of(path) != footer.identity:
            # Written anew since; to ask that of a URL would be a request for each row group.
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
        # Not one bad record but a wrong file: no policy for bad samples may hide it.
        return OSError(
            errno.ESTALE,
            "the file is another one than when it was indexed. Remedy: make the source anew, or "
            "put the file back",
            path,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.paths)} files, {len(self)} rows)"


def _of_storage(load: Callable[[], T], index: int) -> T:
    """What ``load`` gives; a failure of the storage also names the sample."""
    try:
        return load()
    except OSError as error:
        if error.errno is None or error.filename is None:
            raise
        raise failed(error, error.filename, f"sample {index = }") from error


def _one(footer: Footer) -> int:
    return 1


class ParquetShards(FileShards, EncodedShards):
    """Parquet files that are read from a row on: a shard is a file, a cursor the number of a row.

    Row groups before the cursor's are not read. Some 8 MiB of rows are decoded at a time, however
    large row groups are, so that many files can be open at once.

    Args:
        paths: one or several, local or URLs, with wildcards and braces, in this order.
        image: the column of the image, as for :class:`ParquetSource`.
        target: the columns of the target, as there; None for the
            row's number in its file.
        count_rows: whether the number of rows is read from the files' footers, once, when it is
            first asked for; then every rank delivers as many batches, and ``len(loader)`` is known.
            Costs a small read a file: pass False for very many URLs.
        num_lanes: files that are read at a time; None is 64, or as many as there are.
        shuffle_buffer: as for :class:`ShardedDataset`.

    Attributes:
        paths: of the files, absolute.

    Raises:
        ValueError: there is no file, or one twice.
        FileNotFoundError: a wildcard matches nothing. Else files are looked for when read.

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
        """Rows and digest of each file's footer, once they were asked for."""

    def num_samples(self, shard: str) -> int | None:
        """The rows of a file, if ``count_rows``.

        Raises:
            OSError, ValueError: a footer cannot be read, or is damaged.
        """
        return self._footer_of(shard)[0] if self.count_rows else None

    def fingerprint(self) -> str:
        """blake2b of the files' names, the columns chosen and, if ``count_rows``, the footers.

        Equal for copies of the files at other paths.
        """
        digest = ContentDigest("parquet shards 1")
        for name in self._names:
            digest.add_name(name).add(self._footer_of(name)[1] if self.count_rows else b"")
        digest.add(self._selection.describe().encode())
        return f"{len(self._names)} shards, {digest.text()}"

    def read_shard(
        self, shard: str, cursor: int
    ) -> Iterator[tuple[EncodedSample | ValueError, int]]:
        """The rows from ``cursor`` on, each with the number of the next one; a ValueError in place
        of a row that has no image, or a target that is none.

        Raises:
            OSError: the storage failed.
            ValueError: no such shard, a column is missing, the cursor is beyond the end, or the
                file is damaged from here on; the text names file, row group and row.
            MemoryError: there is not enough for a row, or for what a damaged file claims.
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
"""Row groups, one dropped after the other, from which it is no accident: a few samples that
somebody looks at make fewer. A resume late in a window of blocks leaves as many as the window has
with few of their rows to read; but all of these were held at once."""
LEAST_SHARE = 8
"""A row group is wasted if fewer than one in so many of its rows were read."""


@dataclass
class RowGroupUse:
    """Counts the decoded row groups that were dropped for want of room before they were used.

    Reads are counted and not timed, so the same order of reads always gives the same warning: one
    for each source in each process, worker processes included.
    """

    cache_bytes: int
    num_groups: int
    """Row groups of the source."""
    wasted: int = 0
    """Row groups dropped in turn, up to now, that had hardly been used."""
    wasted_bytes: int = 0
    """That these took in memory."""
    has_warned: bool = False

    def __call__(self, rows: Rows, uses: int) -> None:
        """Note that a row group is dropped after ``uses`` of its rows were read."""
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
    """The values used last, as many as fit into a number of bytes, but at least one.

    A forked child and a pickled copy begin with none. While a value is made, threads that ask for
    the same one wait, and others do not; if making it fails, each of them tries for itself.

    Args:
        limit: bytes.
        size_of: bytes that a value takes.
        on_drop: called with a value that was dropped for want of room, and how often it was got.

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
        """The value of a key; made, if it is not held."""
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
        """The keys of the values held, the one used last at the end."""
        return list(self._held().slots)

    def drop(self, key: int) -> None:
        """Forget the value of a key; code that is using it is not affected."""
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
            # No lock here: a thread of the parent may have held it at the fork, for ever.
            here = self._here = _Held()
        return here

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundedCache, (self._limit, self._size_of, self._on_drop)


class _Slot(Generic[T]):
    """The place of one value, which may not be made yet."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.made: tuple[T, ...] = ()
        """The value, once it is there."""
        self.size = 0
        self.uses = 1
        """How often the value was got, the first time included."""


class _Held(Generic[T]):
    """What one process holds."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.lock = threading.Lock()
        self.slots: OrderedDict[int, _Slot[T]] = OrderedDict()
        self.size = 0

"""Parquet files through pyarrow: their footers and row groups. The one file that imports it.

Bytes are fetched by :class:`OpenFiles`, and pyarrow only decodes them. So a
failure of the storage (OSError) and damaged bytes (ValueError) can be told apart, although pyarrow
reports either with several types of exceptions.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from stateful_gpu_loader.datasets.storage.failures import INDEX_REMEDY, REMEDY, damaged
from stateful_gpu_loader.datasets.storage.index_files import identity_of, progress_bar
from stateful_gpu_loader.datasets.storage.open_files import OpenFiles
from stateful_gpu_loader.datasets.storage.paths import is_url
from stateful_gpu_loader.errors import MissingDependency

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_LAST_BYTES = 1 << 16
"""Read at once from a file's end: most footers are shorter."""
_THREADS = 16
"""How many read footers at a time."""


def arrow() -> Any:
    """The module pyarrow, its Parquet part loaded.

    Raises:
        MissingDependency: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingDependency(
            "pyarrow", needed_for="reading Parquet files", extra="parquet"
        ) from None
    return pyarrow


@dataclass(frozen=True, eq=False)
class Footer:
    """The metadata at the end of a Parquet file."""

    path: str
    identity: tuple[int, str]
    """Size in bytes and mark of change, as :func:`identity_of` gives them."""
    digest: bytes
    """blake2b of the footer's bytes, 16 of them: another one for other content."""
    metadata: Any
    """``pyarrow.parquet.FileMetaData``."""
    row_groups: tuple[int, ...]
    """Rows of each row group."""

    @property
    def num_rows(self) -> int:
        """Of the whole file."""
        return sum(self.row_groups)

    @property
    def schema(self) -> Any:
        """``pyarrow.Schema``: the columns and their types."""
        with decoding(self.path, None, "its schema"):
            return self.metadata.schema.to_arrow_schema()

    def leaves(self, columns: Sequence[str] | None) -> list[int]:
        """The numbers of the columns that lie in the file, for names such as ``image.bytes``.

        Args:
            columns: None is all.
        """
        paths = [self.metadata.schema.column(i).path for i in range(self.metadata.num_columns)]
        return [
            i
            for i, path in enumerate(paths)
            if columns is None or any(f"{path}.".startswith(f"{name}.") for name in columns)
        ]


def read_footer(path: str) -> Footer:
    """Read a file's last bytes: its schema, and the rows and places of its row groups.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no Parquet file, is truncated, encrypted, or its footer is damaged.
        MissingDependency: pyarrow is not installed.
    """
    pyarrow = arrow()
    identity = identity_of(path)
    size, files = identity[0], OpenFiles(limit=1)
    count = min(size, _LAST_BYTES)
    tail = files.read(path, size - count, count)
    ending = bytes(tail[-8:])
    if ending[4:] == _ENCRYPTED:
        raise damaged(path, "its footer is encrypted", offset=max(0, size - 4), remedy="decrypt it")
    if len(ending) < 8 or ending[4:] != _MAGIC:
        raise damaged(
            path,
            f"it ends with {ending[4:]!r} and not with {_MAGIC!r}: it is no Parquet file, or one "
            f"that was truncated ({size} bytes)",
            offset=max(0, size - 4),
            remedy="fetch or write the file anew",
        )
    length = int.from_bytes(ending[:4], "little") + 8
    if length > size:
        raise damaged(
            path,
            f"its footer claims {length - 8} bytes, and the file has {size}",
            offset=size - 8,
            remedy="fetch or write the file anew",
        )
    footer = tail[-length:] if length <= count else files.read(path, size - length, length)
    with decoding(path, None, "its footer", offset=size - length):
        metadata = pyarrow.parquet.read_metadata(pyarrow.BufferReader(footer))
        counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    if min(counts, default=0) < 0 or sum(counts) != metadata.num_rows:
        raise damaged(
            path,
            f"its footer counts {metadata.num_rows} rows, and {sum(counts)} in its row groups",
            offset=size - length,
            remedy="fetch or write the file anew",
        )
    digest = hashlib.blake2b(footer.data, digest_size=16).digest()
    return Footer(path, identity, digest, metadata, tuple(counts))


def read_footers(paths: list[str]) -> list[Footer]:
    """The footers of all files; several at a time where they are read by URL.

    Raises:
        OSError, ValueError: as :func:`read_footer`.
    """
    threads = min(_THREADS, len(paths)) if any(map(is_url, paths)) else 1
    footers = []
    with (
        ThreadPoolExecutor(threads) as pool,
        progress_bar("reading footers", len(paths), " files") as note,
    ):
        for footer in pool.map(read_footer, paths):
            footers.append(footer)
            note(len(footers))
    return footers


@contextmanager
def decoding(
    path: str,
    record: str | None,
    what: str,
    *,
    offset: int | None = None,
    failure: Callable[[], Exception | None] = lambda: None,
) -> Iterator[None]:
    """Turn what pyarrow raises for damaged bytes into a ValueError that names the place.

    Args:
        path: the file.
        record: a row group, for the error; None is what is read while a source is made.
        what: is decoded, for the error.
        offset: where that begins, in bytes.
        failure: gives what the storage raised meanwhile, which is raised instead.

    Raises:
        ValueError: the bytes are damaged.
        MemoryError: there is not enough for what they decode to, or for what damaged ones claim.
            pyarrow does not tell which, and want of memory may not leave out a sample.
    """
    try:
        yield
    except MissingDependency:
        raise
    except Exception as error:
        if (failed := failure()) is not None:
            raise failed from None
        reason = str(error).partition("\n")[0]
        if isinstance(error, MemoryError):
            where = repr(path) if record is None else f"{path!r}, record {record!r}"
            raise MemoryError(
                f"{where}: {what} cannot be decoded: {reason}. Remedy: give the process more "
                "memory, or fetch the file anew, if it is damaged and claims more than it holds"
            ) from error
        raise damaged(
            path,
            f"{what} cannot be decoded: {reason}",
            record=record,
            offset=offset,
            remedy=INDEX_REMEDY if record is None else REMEDY,
        ) from error


_STREAM_BUFFER = 1 << 20
"""Bytes of a column that a stream holds encoded."""
_STREAM_ROWS = 8 << 20
"""Bytes of rows that a stream decodes at a time, where a row has not more."""
_GAP = 1 << 16
"""Bytes between two columns that are cheaper to read than to skip."""


def read_row_group(footer: Footer, number: int, columns: Sequence[str] | None) -> Any:
    """The decoded row group, as a ``pyarrow.Table`` of the columns asked for.

    It is decoded in this thread alone, and columns that are neighbours are fetched in one read.

    Args:
        columns: names such as ``label`` or ``image.bytes``; None is all.

    Raises:
        OSError: the storage failed.
        ValueError: the row group is damaged.
    """
    leaves = footer.leaves(columns)
    file = _RangeFile(footer, number)
    with file.decoding("a column"):
        file.hold(_spans(footer, number, leaves))
        reader = _open(footer, file)
        table = reader.reader.read_row_group(number, column_indices=leaves, use_threads=False)
    if table.num_rows != footer.row_groups[number]:
        raise damaged(
            footer.path,
            f"it has {table.num_rows} rows, and its footer counts {footer.row_groups[number]}",
            record=f"row group {number}",
        )
    return table


def iterate_rows(
    footer: Footer, start: int, columns: Sequence[str]
) -> Iterator[tuple[int, int, Any]]:
    """Rows from ``start`` on: (number of the first, row group, ``pyarrow.RecordBatch``).

    Row groups before the row's own are not read; of that one, the rows before are decoded and
    left out. Some 8 MiB of rows are decoded at a time, or one row, and 1 MiB of each column is
    held encoded, however large the row groups are.

    Raises:
        OSError: the storage failed.
        ValueError: the file is damaged from here on.
    """
    first = 0
    for number, count in enumerate(footer.row_groups):
        if start < first + count:
            yield from _iterate_group(footer, number, first, start, columns)
        first += count


def _iterate_group(
    footer: Footer, number: int, first: int, start: int, columns: Sequence[str]
) -> Iterator[tuple[int, int, Any]]:
    file, at = _RangeFile(footer, number), first
    end = first + footer.row_groups[number]
    try:
        with file.decoding("a column"):
            batches = _open(footer, file, buffer_size=_STREAM_BUFFER).iter_batches(
                batch_size=_rows_at_a_time(footer, number, columns),
                row_groups=[number],
                columns=list(columns),
                use_threads=False,
            )
        while True:
            with file.decoding(f"row {at} or behind"):
                batch = next(batches, None)
            if batch is None:
                break
            if at + batch.num_rows > start:
                skipped = max(0, start - at)
                yield at + skipped, number, batch.slice(skipped)
            at += batch.num_rows
    finally:
        file.close()
    if at != end:
        raise damaged(
            footer.path,
            f"its rows end with {at - 1}, and its footer counts up to {end - 1}",
            record=f"row group {number}",
        )


def _rows_at_a_time(footer: Footer, number: int, columns: Sequence[str]) -> int:
    chunks = _chunks(footer, number, footer.leaves(columns))
    size = sum(chunk.total_uncompressed_size for chunk in chunks)
    fitting: int = footer.row_groups[number] * _STREAM_ROWS // max(1, size)
    return max(1, min(1024, fitting))


def _open(footer: Footer, file: _RangeFile, *, buffer_size: int = 0) -> Any:
    pyarrow = arrow()
    return pyarrow.parquet.ParquetFile(
        pyarrow.PythonFile(file, mode="r"),
        metadata=footer.metadata,
        # Reading ahead would use pyarrow's threads, which do not exist in a forked child.
        pre_buffer=False,
        buffer_size=buffer_size,
        page_checksum_verification=True,
    )


def _spans(footer: Footer, number: int, leaves: Sequence[int]) -> list[tuple[int, int]]:
    """(start, end) of the bytes of columns, in order, near ones joined."""
    spans: list[tuple[int, int]] = []
    for column in sorted(_chunks(footer, number, leaves), key=_start_of):
        start = _start_of(column)
        end = start + column.total_compressed_size
        if start < 0 or end < start or end > footer.identity[0]:
            raise ValueError(f"its column {column.path_in_schema!r} lies at {start} to {end}")
        if spans and start - spans[-1][1] <= _GAP:
            start, end = spans[-1][0], max(end, spans.pop()[1])
        spans.append((start, end))
    return spans


def _chunks(footer: Footer, number: int, leaves: Sequence[int]) -> list[Any]:
    """What the footer says of columns of a row group: ``pyarrow.parquet.ColumnChunkMetaData``.

    Where a footer is damaged, ``RowGroupMetaData.column`` ends the process. So a reader, which
    raises an error then, looks at the same columns first, up to the first byte that it asks for.
    """
    with suppress(_NotRead):
        reader = _open(footer, _UnreadFile(footer, number), buffer_size=1).reader
        reader.read_row_group(number, column_indices=leaves, use_threads=False)
    group = footer.metadata.row_group(number)
    return [group.column(i) for i in leaves]


def _start_of(column: Any) -> int:
    dictionary, data = column.dictionary_page_offset, column.data_page_offset
    return int(data if not dictionary else min(dictionary, data))


class _RangeFile(io.RawIOBase):
    """The file object that pyarrow reads from; some ranges of it were fetched before."""

    def __init__(self, footer: Footer, group: int) -> None:
        self._path, self._size = footer.path, footer.identity[0]
        self._group = group
        self._files = OpenFiles(limit=1)
        self._held: list[tuple[int, Any]] = []
        self._position = 0
        self._failure: Exception | None = None

    def hold(self, spans: Sequence[tuple[int, int]]) -> None:
        """Fetch ranges now."""
        for start, end in spans:
            self._held.append((start, self._fetch(start, end - start)))

    def decoding(self, what: str) -> AbstractContextManager[None]:
        """As :func:`decoding`, of the row group; a failure of the storage is raised as it is."""
        record = f"row group {self._group}"
        return decoding(self._path, record, what, failure=lambda: self._failure)

    def _fetch(self, start: int, size: int) -> Any:
        try:
            return self._files.read(self._path, start, size)
        except Exception as error:
            self._failure = error
            raise

    def read(self, size: int = -1) -> Any:
        start = self._position
        count = max(0, min(size if size >= 0 else self._size, self._size - start))
        self._position += count
        for begin, data in self._held:
            if begin <= start and start + count <= begin + len(data):
                return memoryview(data)[start - begin : start - begin + count]
        return memoryview(self._fetch(start, count))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._held.clear()
        self._files = OpenFiles(limit=1)
        with suppress(ValueError):
            super().close()


class _NotRead(Exception):
    """pyarrow has asked for bytes that are not to be read."""


class _UnreadFile(_RangeFile):
    """A file that has its length and nothing else."""

    def read(self, size: int = -1) -> Any:
        raise _NotRead

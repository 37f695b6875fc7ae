"""Footers and row groups of Parquet files, through pyarrow. Only this module imports it.

:class:`OpenFiles` fetches the bytes, and pyarrow only decodes them. So a failure of the storage
(OSError) and damaged bytes (ValueError) stay distinct, unlike in pyarrow.
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
"""Bytes read at once from a file's end; most footers are shorter."""
_THREADS = 16
"""Number of footers read at a time."""


def arrow() -> Any:
    """Return the module pyarrow with ``pyarrow.parquet`` loaded.

    Raises:
        MissingDependency: pyarrow is not installed.
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
    """Size in bytes and change mark, from :func:`identity_of`."""
    digest: bytes
    """blake2b of the footer's bytes, 16 bytes; it differs for other content."""
    metadata: Any
    """``pyarrow.parquet.FileMetaData``."""
    row_groups: tuple[int, ...]
    """Number of rows in each row group."""

    @property
    def num_rows(self) -> int:
        return sum(self.row_groups)

    @property
    def schema(self) -> Any:
        """``pyarrow.Schema``: the columns and their types."""
        with decoding(self.path, None, "its schema"):
            return self.metadata.schema.to_arrow_schema()

    def leaves(self, columns: Sequence[str] | None) -> list[int]:
        """Return the indices of all leaf columns, or of those of names such as ``image.bytes``."""
        paths = [self.metadata.schema.column(i).path for i in range(self.metadata.num_columns)]
        return [
            i
            for i, path in enumerate(paths)
            if columns is None or any(f"{path}.".startswith(f"{name}.") for name in columns)
        ]


def read_footer(path: str) -> Footer:
    """Read the schema, and the rows and positions of the row groups, from the end of a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a Parquet file, or is truncated or encrypted, or its footer is
            damaged.
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
            f"it ends with {ending[4:]!r} and not with {_MAGIC!r}: it is not a Parquet file, or "
            f"it was truncated ({size} bytes)",
            offset=max(0, size - 4),
            remedy="fetch or write the file again",
        )
    length = int.from_bytes(ending[:4], "little") + 8
    if length > size:
        raise damaged(
            path,
            f"its footer claims {length - 8} bytes, and the file has {size}",
            offset=size - 8,
            remedy="fetch or write the file again",
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
            remedy="fetch or write the file again",
        )
    digest = hashlib.blake2b(footer.data, digest_size=16).digest()
    return Footer(path, identity, digest, metadata, tuple(counts))


def read_footers(paths: list[str]) -> list[Footer]:
    """Read the footers of all files, several at a time if there are URLs.

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
    """Convert pyarrow's exceptions for damaged bytes to a ValueError with the place.

    Args:
        record: row group, for the error; None while a source is created.
        what: name of what is decoded, for the error.
        offset: offset of the damage in bytes.
        failure: returns the storage's exception, if any, which is raised instead.

    Raises:
        ValueError: the bytes are damaged.
        MemoryError: memory is too small for the decoded bytes, or for the size that damaged bytes
            claim. pyarrow does not distinguish them, and a lack of memory must not skip a sample.
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
                "memory, or fetch the file again, if it is damaged and claims more than it holds"
            ) from error
        raise damaged(
            path,
            f"{what} cannot be decoded: {reason}",
            record=record,
            offset=offset,
            remedy=INDEX_REMEDY if record is None else REMEDY,
        ) from error


_STREAM_BUFFER = 1 << 20
"""Encoded bytes of a column that a stream holds."""
_STREAM_ROWS = 8 << 20
"""Decoded bytes that a stream holds, unless a single row has more."""
_GAP = 1 << 16
"""Largest gap in bytes between columns that are read together."""


def read_row_group(footer: Footer, number: int, columns: Sequence[str] | None) -> Any:
    """Return a decoded row group, as a ``pyarrow.Table`` of the columns.

    This thread alone decodes it, and neighbouring columns are fetched in one read.

    Args:
        columns: names such as ``label`` or ``image.bytes``; None for all.

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
    """Yield rows from ``start`` on: (number of the first row, row group, ``pyarrow.RecordBatch``).

    Earlier row groups are not read. Earlier rows of the same row group are decoded and dropped.
    About 8 MiB of rows (at least one row) are decoded at a time, and 1 MiB of each column is held
    encoded.

    Raises:
        OSError: the storage failed.
        ValueError: the rest of the file is damaged.
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
            with file.decoding(f"row {at} or after"):
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
        # Reading ahead would use pyarrow's threads, which a forked child lacks.
        pre_buffer=False,
        buffer_size=buffer_size,
        page_checksum_verification=True,
    )


def _spans(footer: Footer, number: int, leaves: Sequence[int]) -> list[tuple[int, int]]:
    """Return the byte ranges (start, end) of columns, ascending, with near ranges joined."""
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
    """Return the ``pyarrow.parquet.ColumnChunkMetaData`` of columns in a row group.

    With a damaged footer, ``RowGroupMetaData.column`` ends the process. So a reader, which raises
    an error instead, parses the same columns first.
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
    """File object for pyarrow, with some ranges fetched in advance."""

    def __init__(self, footer: Footer, group: int) -> None:
        self._path, self._size = footer.path, footer.identity[0]
        self._group = group
        self._files = OpenFiles(limit=1)
        self._held: list[tuple[int, Any]] = []
        self._position = 0
        self._failure: Exception | None = None

    def hold(self, spans: Sequence[tuple[int, int]]) -> None:
        for start, end in spans:
            self._held.append((start, self._fetch(start, end - start)))

    def decoding(self, what: str) -> AbstractContextManager[None]:
        """Wrap :func:`decoding` for the row group; storage failures are raised unchanged."""
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
    """pyarrow has requested bytes of an :class:`_UnreadFile`."""


class _UnreadFile(_RangeFile):
    """A file with a length but no readable bytes."""

    def read(self, size: int = -1) -> Any:
        raise _NotRead

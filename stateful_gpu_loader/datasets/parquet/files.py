"""Footers of Parquet files, through pyarrow: the one file that imports it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stateful_gpu_loader.datasets.damage import INDEX_REMEDY, REMEDY, damaged
from stateful_gpu_loader.datasets.storage.index_files import identity_of
from stateful_gpu_loader.datasets.storage.open_files import OpenFiles
from stateful_gpu_loader.datasets.storage.paths import is_url
from stateful_gpu_loader.datasets.storage.progress import progress_bar
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

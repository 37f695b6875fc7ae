"""ParquetSource: encoded images and their targets in Parquet files, by row."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.parquet.cache import BoundedCache
from stateful_gpu_loader.datasets.parquet.files import (
    Footer,
    decoding,
    read_footer,
    read_footers,
)
from stateful_gpu_loader.datasets.parquet.groups import read_row_group
from stateful_gpu_loader.datasets.parquet.row_group_use import RowGroupUse
from stateful_gpu_loader.datasets.parquet.rows import Place, Rows, Selection, path_to
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.datasets.storage.failures import failed
from stateful_gpu_loader.datasets.storage.index_files import identity_of
from stateful_gpu_loader.datasets.storage.paths import AnyPath, as_paths, is_url, names_of
from stateful_gpu_loader.datasets.target_choice import Target
from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.state.content_id import ContentDigest

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

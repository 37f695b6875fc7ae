"""ParquetShards: encoded images and their targets in Parquet files, row after row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stateful_gpu_loader.datasets.file_shards import FileShards
from stateful_gpu_loader.datasets.parquet.files import read_footer, read_footers
from stateful_gpu_loader.datasets.parquet.groups import iterate_rows
from stateful_gpu_loader.datasets.parquet.rows import Place, Selection
from stateful_gpu_loader.datasets.sharded import EncodedShards, sample_or_error
from stateful_gpu_loader.datasets.storage.paths import AnyPath
from stateful_gpu_loader.datasets.target_choice import Target
from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.state.content_id import ContentDigest


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

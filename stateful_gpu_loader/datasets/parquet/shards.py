"""ParquetShards: encoded images and their targets in Parquet files, row after row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from stateful_gpu_loader.datasets.damage import damaged
from stateful_gpu_loader.datasets.parquet.files import read_footer, read_footers
from stateful_gpu_loader.datasets.parquet.groups import iterate_rows
from stateful_gpu_loader.datasets.parquet.rows import Rows, Selection, read_beside
from stateful_gpu_loader.datasets.sharded import EncodedShards, sample_or_error
from stateful_gpu_loader.datasets.storage.paths import AnyPath, as_paths, names_of
from stateful_gpu_loader.datasets.target_choice import Target
from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.state.content_id import ContentDigest


class ParquetShards(EncodedShards):
    """Parquet files that are read from a row on: a shard is a file, a cursor the number of a row.

    Row groups before the cursor's are not read. Some 8 MiB of rows are decoded at a time, however
    large row groups are, so that many files can be open at once.

    Args:
        paths: one or several, local or URLs, with wildcards and braces, in this order.
        image: the column of the image, as for :class:`ParquetSource`.
        target: the columns of the target, as there; None for the row's number in its file.
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
        self.paths = as_paths(paths)
        self.image = image
        self.target = target
        self.count_rows = count_rows
        self.num_lanes = num_lanes
        self.shuffle_buffer = shuffle_buffer
        self._selection = Selection(image, target)
        self._names = names_of(self.paths)
        self._places = dict(zip(self._names, self.paths, strict=True))
        self._counts: dict[str, tuple[int, bytes]] | None = None

    def shards(self) -> Sequence[str]:
        """The files' names without the folder that all have in common."""
        return self._names

    def num_samples(self, shard: str) -> int | None:
        """The rows of a file, if ``count_rows``.

        Raises:
            OSError, ValueError: a footer cannot be read, or is damaged.
        """
        return self._counted()[shard][0] if self.count_rows else None

    def fingerprint(self) -> str:
        """blake2b of the files' names, the columns chosen and, if ``count_rows``, the footers.

        Equal wherever the files lie.
        """
        digest = ContentDigest("parquet shards 1")
        for name in self._names:
            digest.add_name(name).add(self._counted()[name][1] if self.count_rows else b"")
        digest.add(self._selection.describe().encode())
        return f"{len(self._names)} shards, {digest.text()}"

    def read_shard(
        self, shard: str, cursor: int
    ) -> Iterator[tuple[EncodedSample | ValueError, int]]:
        """The rows from ``cursor`` on, each with the number of the next one; a ValueError in place
        of a row that has no image, or a target that is none.

        Raises:
            OSError: the storage failed.
            ValueError: no such shard, a column is missing, the cursor is behind the end, or the
                file is damaged from here on; the text names file, row group and row.
        """
        path = self._places.get(shard)
        if path is None:
            raise ValueError(
                f"there is no shard {shard!r}. Remedy: take one of shards(): "
                f"{', '.join(self._names[:5])}{', ...' * (len(self._names) > 5)}"
            )
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
                sample = sample_or_error(self._sample, path, group, first + i, rows, i)
                yield sample, first + i + 1

    def _sample(self, path: str, group: int, number: int, rows: Rows, i: int) -> EncodedSample:
        try:
            image = rows.image(i)
            target = rows.target(i, number)
        except ValueError as error:
            where = f"row group {group}, row {number}"
            raise damaged(path, str(error), record=where) from error
        if isinstance(image, str):
            image = read_beside(path, image)
        return EncodedSample(torch.from_numpy(image), target, f"{path}, row {number}")

    def _counted(self) -> dict[str, tuple[int, bytes]]:
        """Rows and digest of each file's footer."""
        if self._counts is None:
            footers = read_footers(self.paths)
            counts = [(footer.num_rows, footer.digest) for footer in footers]
            self._counts = dict(zip(self._names, counts, strict=True))
        return self._counts

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.paths)} files)"

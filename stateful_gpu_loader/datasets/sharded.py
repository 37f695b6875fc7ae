"""ShardedDataset: named shards, read from a cursor on. FileShards: shards that are files."""

from __future__ import annotations

import json
import operator
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import IO, Any, SupportsIndex, TypeAlias, TypeVar

from torch.utils.data import IterableDataset, get_worker_info

from stateful_gpu_loader.datasets.storage.failures import damaged
from stateful_gpu_loader.datasets.storage.index_files import identity_of
from stateful_gpu_loader.datasets.storage.paths import AnyPath, as_paths, names_of
from stateful_gpu_loader.datasets.storage.streams import damage_errors, is_compressed, open_stream
from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.state.contents import ContentDigest

T = TypeVar("T")

DEFAULT_LANES = 64
_CHANGED = "resume with the file that the state was saved with, or begin the epoch again"


class ShardedDataset(IterableDataset[Any], ABC):
    """An iterable dataset that resumes on any number of workers and ranks.

    A subclass names its shards and reads one shard. A loader deals the shards into lanes, reads
    each lane in order and keeps a cursor for it, so nothing is read twice.

    Attributes:
        num_lanes: number of shards read at a time by all workers and ranks together; None is 64,
            or the number of shards if it is smaller. It must be a multiple of the number of ranks.
        shuffle_buffer: number of samples in memory at a time, in all workers together, with
            ``shuffle=True``. Each lane is shuffled in windows of ``shuffle_buffer // num_lanes``.

    >>> class Squares(ShardedDataset):
    ...     def shards(self):
    ...         return ["0", "100", "200"]
    ...     def read_shard(self, shard, cursor):
    ...         for number in range(cursor, 4):
    ...             yield (int(shard) + number) ** 2, number + 1
    >>> list(Squares())[:6]
    [0, 1, 4, 9, 10000, 10201]
    """

    num_lanes: int | None = None
    shuffle_buffer: int = 8192

    @abstractmethod
    def shards(self) -> Sequence[str]:
        """Return the names of the shards, unique and in the same order in every process."""

    @abstractmethod
    def read_shard(self, shard: str, cursor: int) -> Iterator[tuple[Any, int]]:
        """Yield each sample from ``cursor`` on, with the cursor of the next sample.

        For a malformed sample it may yield a ValueError instead. The loader then raises it or
        leaves out this sample alone.

        The loader seeds the global generators for each sample. So draw from them for each sample,
        not once for a shard: a resume begins in the middle. A sample may be read twice.

        Args:
            shard: one of :meth:`shards`.
            cursor: 0 for the beginning, else a cursor yielded with an earlier sample: a number of
                samples or an offset in bytes, as suits the format; 0 <= cursor < 2**63.

        Raises:
            OSError: the storage failed.
            ValueError: the rest of the shard is damaged.
        """

    def num_samples(self, shard: str) -> int | None:
        """Return the number of samples of a shard; None if it is unknown without reading it.

        If all are known, every rank delivers the same number of batches, and ``len(loader)`` is
        known.
        """
        return None

    def fingerprint(self) -> str:
        """Return the content id: by default a digest of the shards' names, in order."""
        digest = ContentDigest("shards 1")
        for name in self.shards():
            digest.add_name(name)
        return f"{len(self.shards())} shards, {digest.text()}"

    def __iter__(self) -> Iterator[Any]:
        """Yield all samples in order, for other loaders; workers divide the shards."""
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for shard in self.shards()[first::step]:
            for sample, _ in self.read_shard(shard, 0):
                if isinstance(sample, ValueError):
                    raise sample
                yield sample


class EncodedShards(ShardedDataset):
    """Shards of encoded images, which the loader decodes and augments as those of a Source.

    ``read_shard`` yields :class:`EncodedSample`, and must not draw from the global generators.
    Without a loader, iterating yields ``(data, target)``, as a Source does.
    """

    @abstractmethod
    def read_shard(
        self, shard: str, cursor: int
    ) -> Iterator[tuple[EncodedSample | ValueError, int]]: ...

    def __iter__(self) -> Iterator[Any]:
        for sample in super().__iter__():
            yield sample.data, sample.target


def sample_or_error(make: Callable[..., Any], *arguments: Any) -> Any:
    """Return ``make(*arguments)``, or the ValueError that it raises.

    >>> sample_or_error(int, "seven")
    ValueError("invalid literal for int() with base 10: 'seven'")
    """
    try:
        return make(*arguments)
    except ValueError as error:
        return error


Counts: TypeAlias = (
    Mapping[str, SupportsIndex] | Sequence[SupportsIndex] | str | os.PathLike[str] | None
)
"""Counts by name, in the order of the shards, or in a JSON file from webdataset's tools:
``{"000.tar": 1000, ...}`` (sizes.json) or ``{"shardlist": [{"url": ..., "nsamples": ...}]}``."""


class FileShards(ShardedDataset):
    """Base class of datasets whose shards are files.

    A shard's name is its path relative to the deepest common folder of all shards.

    Args:
        paths: one or several, as for ``as_paths``.
        counts: number of samples of each shard; None is unknown.
        num_lanes, shuffle_buffer: as in :class:`ShardedDataset`.

    Attributes:
        paths: absolute paths or URLs.

    Raises:
        OSError: the file of the counts cannot be read, or a wildcard matches nothing.
        ValueError: no path, a repeated path, or counts that do not fit the shards.
        TypeError: a count is not an integer.
    """

    paths: list[str]

    def __init__(
        self,
        paths: AnyPath | Iterable[AnyPath],
        counts: Counts,
        num_lanes: int | None,
        shuffle_buffer: int,
    ) -> None:
        self.num_lanes, self.shuffle_buffer = num_lanes, shuffle_buffer
        self.paths = as_paths(paths)
        self._names = names_of(self.paths)
        self._path_of = dict(zip(self._names, self.paths, strict=True))
        self._counts = {} if counts is None else _counts_by_name(counts, self._path_of)

    def shards(self) -> Sequence[str]:
        return self._names

    def num_samples(self, shard: str) -> int | None:
        return self._counts.get(shard)

    def path_of(self, shard: str) -> str:
        """Return the path or URL of a shard.

        Raises:
            ValueError: there is no such shard.
        """
        path = self._path_of.get(shard)
        if path is None:
            raise ValueError(
                f"there is no shard {shard!r}. Remedy: take one of shards(): "
                f"{', '.join(self._names[:5])}{', ...' * (len(self._names) > 5)}"
            )
        return path


def records_from(
    path: str, cursor: int, records: Callable[[IO[bytes], int, int], Iterator[tuple[T, int]]]
) -> Generator[tuple[T, int]]:
    """Yield each record of a file from a cursor on, with the cursor of the next record.

    A cursor is the offset of a record, or in a compressed file the number of records before it.

    Args:
        path: a local path or a URL; compressed if its name says so.
        cursor: 0, or a cursor yielded with a record.
        records: yields each record, and the offset after it. Its arguments are the stream, the
            stream's offset, and the number of records to skip.

    Raises:
        OSError: the file cannot be opened or read.
        ValueError: the rest of the file is damaged, or it ends before the cursor.
    """
    counting = is_compressed(path)
    start, skipped = (0, cursor) if counting else (cursor, 0)
    if start and start > (size := identity_of(path)[0]):
        raise damaged(path, f"it ends at byte {size}", offset=cursor, remedy=_CHANGED)
    number, at = 0, start
    with closing(open_stream(path, start)) as stream:
        try:
            for record, after in records(stream, start, skipped):
                number, at = number + 1, after
                if number > skipped:
                    yield record, number if counting else after
            # A checksum of the compressed data may come after the last record.
            while counting and stream.read(1 << 20):
                pass
        except damage_errors() as error:
            what = f"its compressed bytes are damaged: {type(error).__name__}: {error}"
            raise damaged(path, what, record=number, offset=at) from error
    if number < skipped:
        raise damaged(path, f"it ends after {number} records", record=cursor, remedy=_CHANGED)


def _counts_by_name(counts: Any, path_of: Mapping[str, str]) -> dict[str, int]:
    """Return the number of samples of each shard by name.

    A mapping or file may name a shard as ``shards()`` does, by its path, or by the last part of its
    path.
    """
    given = _from_file(os.fspath(counts)) if isinstance(counts, (str, os.PathLike)) else counts
    if not isinstance(given, Mapping):
        if len(given) != len(path_of):
            raise ValueError(
                f"{len(path_of)} shards and {len(given)} counts. Remedy: give one for each shard"
            )
        given = dict(zip(path_of, given, strict=True))
    last = Counter(path.rpartition("/")[2] for path in path_of.values())
    keys: dict[str, str] = {}
    for name, path in path_of.items():
        end = path.rpartition("/")[2]
        ways = (name, path, end) if last[end] == 1 else (name, path)
        if named := [way for way in ways if way in given]:
            keys[name] = named[0]
    if missing := [name for name in path_of if name not in keys]:
        raise ValueError(
            f"counts has no {missing[0]!r}, one of {len(missing)} missing shards. Remedy: "
            "name each shard as shards() does"
        )
    found = {name: _count(name, given[key]) for name, key in keys.items()}
    if bad := [name for name, count in found.items() if not 0 <= count < 1 << 63]:
        raise ValueError(f"counts[{bad[0]!r}] is {found[bad[0]]}. Remedy: count from 0")
    return found


def _count(name: str, count: Any) -> int:
    try:
        return operator.index(count)
    except TypeError:
        raise TypeError(
            f"counts[{name!r}] is a {type(count).__name__}, not an integer. Remedy: count from 0"
        ) from None


def _from_file(path: str) -> dict[str, Any]:
    with open_stream(path) as stream:
        text = stream.read()
    try:
        content = json.loads(text)
        if isinstance(content.get("shardlist", content), dict):
            return dict(content)
        return {
            name: entry["nsamples"]
            for entry in content["shardlist"]
            for name in (entry["url"], entry["url"].rpartition("/")[2])
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path!r} is not a list of shards and samples ({type(error).__name__}: {error}). "
            "Remedy: "
            'pass a JSON file such as {"000.tar": 1000}'
        ) from error

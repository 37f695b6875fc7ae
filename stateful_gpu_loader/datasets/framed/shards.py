"""FramedShards: files of records that carry their lengths, each read from a cursor on."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, SupportsIndex

import torch

from stateful_gpu_loader.datasets.framed.framing import Bytes, Framing, Place
from stateful_gpu_loader.datasets.sharded import EncodedShards, sample_or_error
from stateful_gpu_loader.datasets.storage.index_files import identity_of
from stateful_gpu_loader.datasets.storage.paths import AnyPath, as_paths, names_of
from stateful_gpu_loader.datasets.storage.streams import is_compressed, open_stream
from stateful_gpu_loader.records import EncodedSample

AnyPaths = AnyPath | Iterable[AnyPath]
Counts = Mapping[str, SupportsIndex] | Sequence[SupportsIndex] | None
"""Samples of each shard: by its name, or in the order of the shards; None is unknown."""


class FramedShards(EncodedShards):
    """The base of TFRecordShards and RecordIOShards; a subclass makes samples of the records.

    A shard's name is its path without the folder that all have in common. Its cursor is the offset
    of the next record in bytes; in a compressed file the number of records before it, which a
    resume reads again and leaves out.

    Args:
        paths: the shards.
        framing: where their records begin and end.
        counts: how many samples each has.
        num_lanes, shuffle_buffer: as of :class:`ShardedDataset`.

    Attributes:
        paths: absolute, or URLs.

    Raises:
        ValueError: no path, one twice, or counts that do not fit the shards.
    """

    paths: list[str]

    def __init__(
        self,
        paths: AnyPaths,
        framing: Framing,
        counts: Counts,
        num_lanes: int | None,
        shuffle_buffer: int,
    ) -> None:
        self.num_lanes, self.shuffle_buffer = num_lanes, shuffle_buffer
        self.paths = as_paths(paths)
        self._names = names_of(self.paths)
        self._path_of = dict(zip(self._names, self.paths, strict=True))
        self._framing = framing
        self._counts = None if counts is None else _by_name(counts, self._names)

    def shards(self) -> Sequence[str]:
        return self._names

    def num_samples(self, shard: str) -> int | None:
        return None if self._counts is None else self._counts[shard]

    def fingerprint(self) -> str:
        """The names of the shards in order, and what is made of a record."""
        return f"{super().fingerprint()}, {self._choice()}"

    def read_shard(
        self, shard: str, cursor: int
    ) -> Iterator[tuple[EncodedSample | ValueError, int]]:
        """Each sample from ``cursor`` on, with the cursor of the sample behind it; a ValueError in
        place of a record that is whole and not what it should be.

        Raises:
            OSError: the file is not there or cannot be read.
            ValueError: from here on the file is damaged, or ends before the cursor.
        """
        path = self._path_of[shard]
        if is_compressed(path):
            return self._read_counting(path, cursor)
        return self._read_from(path, cursor)

    @abstractmethod
    def _take(self, payload: Bytes, place: Place, number: int) -> tuple[torch.Tensor, Any]:
        """Image and target; ``number`` is the target where no field is asked for."""

    @abstractmethod
    def _choice(self) -> str:
        """What is made of a record, for the fingerprint."""

    def _read_from(
        self, path: str, cursor: int
    ) -> Iterator[tuple[EncodedSample | ValueError, int]]:
        if cursor and cursor > (size := identity_of(path)[0]):
            raise _shorter(path, f"{size} bytes, and byte {cursor}")
        with closing(open_stream(path, cursor)) as stream:
            start = Place(path, None if cursor else 0, cursor)
            at = cursor
            for payload, after in self._framing.stream(stream, start):
                place, name = Place(path, None, at), f"{path}, byte {at}"
                yield sample_or_error(self._sample, payload, place, at, name), after
                at = after

    def _read_counting(
        self, path: str, cursor: int
    ) -> Iterator[tuple[EncodedSample | ValueError, int]]:
        with closing(open_stream(path)) as stream:
            number = at = 0
            for payload, after in self._framing.stream(stream, Place(path, 0, 0)):
                if number >= cursor:
                    place, name = Place(path, number, at), f"{path}, record {number}"
                    yield sample_or_error(self._sample, payload, place, number, name), number + 1
                number, at = number + 1, after
        if number < cursor:
            raise _shorter(path, f"{number} records, and record {cursor}")

    def _sample(self, payload: Bytes, place: Place, number: int, name: str) -> EncodedSample:
        data, target = self._take(payload, place, number)
        return EncodedSample(data, target, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.paths)} shards, {self._choice()})"


def _by_name(
    counts: Mapping[str, SupportsIndex] | Sequence[SupportsIndex], names: list[str]
) -> Any:
    if isinstance(counts, str):
        raise TypeError(f"{counts = } is a text. Remedy: pass a dict by name, or a list")
    if not isinstance(counts, Mapping):
        if len(counts) != len(names):
            raise ValueError(
                f"{len(names)} shards and {len(counts)} counts. Remedy: give one for each shard"
            )
        counts = dict(zip(names, counts, strict=True))
    if missing := [name for name in names if name not in counts]:
        raise ValueError(
            f"counts has no {missing[0]!r}, one of {len(missing)} shards that it lacks. Remedy: "
            "name each shard as shards() does"
        )
    found = {name: operator.index(counts[name]) for name in names}
    if bad := [name for name, count in found.items() if count < 0]:
        raise ValueError(f"counts[{bad[0]!r}] is {found[bad[0]]}. Remedy: count from 0")
    return found


def _shorter(path: str, what: str) -> ValueError:
    return ValueError(
        f"{path!r} has {what} was to be read next: the shard is another one than when the cursor "
        "was taken. Remedy: bring that file back, or begin the epoch anew"
    )

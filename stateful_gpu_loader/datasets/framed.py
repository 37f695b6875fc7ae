"""Length-prefixed records, as in TFRecord and RecordIO files: by index, and as shards.

A format defines :class:`Framing` and :class:`ImageRecords`; the rest serves all formats.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import cached_property, partial
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.datasets.sharded import (
    Counts,
    EncodedShards,
    FileShards,
    records_from,
    sample_or_error,
)
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.datasets.storage.failures import INDEX_REMEDY, REMEDY, damaged, failed
from stateful_gpu_loader.datasets.storage.index_files import (
    Index,
    array_in,
    cached_index,
    check_ends,
    identity_of,
    progress_bar,
)
from stateful_gpu_loader.datasets.storage.memory import Bytes
from stateful_gpu_loader.datasets.storage.open_files import OpenFiles, file_number
from stateful_gpu_loader.datasets.storage.paths import AnyPath, as_paths, is_url, names_of
from stateful_gpu_loader.datasets.storage.remote import Range
from stateful_gpu_loader.datasets.storage.streams import Read, is_compressed, open_stream
from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.state.contents import ContentDigest

Offsets = npt.NDArray[np.int64]


class Place(NamedTuple):
    """Place of a record, for error messages."""

    path: str
    record: int | None
    """Number of the record in the file, from 0; None if earlier records were not counted."""
    offset: int
    """Offset in bytes in the file's (decompressed) content."""
    remedy: str = REMEDY
    """Remedy for a damaged record."""

    def following(self, offset: int) -> Place:
        number = None if self.record is None else self.record + 1
        return self._replace(record=number, offset=offset)

    def damaged(self, what: str, remedy: str | None = None) -> ValueError:
        """Return the ValueError for a malformed record."""
        remedy = remedy or self.remedy
        return damaged(self.path, what, record=self.record, offset=self.offset, remedy=remedy)


class Framing(Protocol):
    """The framing of a format's records."""

    @property
    def kind(self) -> str:
        """Name and version of the index."""

    @property
    def header_size(self) -> int:
        """Size in bytes of a record's header, which holds its length."""

    @property
    def shards(self) -> str:
        """Name of the class that reads compressed files, for an error."""

    def offsets(self, index_paths: list[str], paths: list[str], sizes: list[int]) -> list[Offsets]:
        """Return the offsets of :meth:`walk` for each file, int64 [n + 1], from the user's indices.

        Raises:
            OSError: an index cannot be read.
            ValueError: the numbers of indices and files differ, or an index is malformed.
        """

    def walk(self, path: str, size: int, read: Read, *, window: int) -> Offsets:
        """Return int64 [n + 1]: the beginning of each record, and the end of the last one.

        Args:
            window: smallest number of bytes read at a time.

        Raises:
            ValueError: the file does not consist of whole records.
        """

    def check_extent(self, header: bytes, size: int, place: Place) -> None:
        """Raise ValueError unless the header is that of a record of ``size`` bytes in all."""

    def payload(self, framed: Bytes, place: Place) -> Bytes:
        """Return the checked content of a whole record, uint8 [n]; a view if possible.

        Raises:
            ValueError: the bytes are not exactly one whole record.
        """

    def stream(self, stream: IO[bytes], place: Place) -> Iterator[tuple[Bytes, int]]:
        """Yield the payload of each record, and the offset after it.

        Args:
            stream: stream at the beginning of a record.
            place: place of that record.

        Raises:
            ValueError: the next record is damaged or truncated; earlier ones have been yielded.
            OSError: the stream cannot be read.
        """


class ImageRecords(Protocol):
    """Converts a format's records to samples; its ``repr`` is part of fingerprints."""

    def take(self, payload: Bytes, place: Place, number: int) -> tuple[torch.Tensor, Any]:
        """Return the encoded image, uint8 [num_bytes], and the target.

        Args:
            number: the target if no field is chosen.

        Raises:
            ValueError: the record is malformed, or lacks a chosen field.
        """

    def record(self, payload: Bytes, place: Place) -> dict[str, Any]:
        """Return all fields of the record by name.

        Raises:
            ValueError: the record is malformed.
        """


AnyPaths = AnyPath | Iterable[AnyPath]

_WINDOW, _REMOTE_WINDOW = 1 << 12, 1 << 20
_CHECKED, _CHECKED_REMOTE = 16, 2
"""Number of records that are compared with a user's index, local and remote."""
_CHECKED_KEPT = 2
"""Number of records of a local file that are compared with a kept index: first and last."""


class FramedSource(Source):
    """Base class of TFRecordSource and RecordIOSource.

    Args:
        paths: the files, one after the other.
        images: conversion of records to samples.
        index_paths: the user's indices; None builds an index from each record's header.
        cache_dir: directory for built indices; None is beside the files.

    Attributes:
        paths: absolute paths or URLs.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: a file is damaged, compressed or unlike its index, or no file has a record.
    """

    paths: list[str]

    def __init__(
        self,
        paths: AnyPaths,
        framing: Framing,
        images: ImageRecords,
        *,
        index_paths: AnyPaths | None,
        cache_dir: AnyPath | None,
    ) -> None:
        given = None if index_paths is None else as_paths(index_paths)
        self.paths = as_paths(paths)
        for path in self.paths:
            if is_compressed(path):
                raise ValueError(
                    f"{path!r} is compressed: its records cannot be read by index. Remedy: read it "
                    f"with {framing.shards}, or decompress it"
                )
        self._framing = framing
        self._images = images
        self._files = OpenFiles(numbers={path: file_number(path) for path in self.paths})
        kept = None if cache_dir is None else str(cache_dir)
        if given is None:
            self._offsets = [self._built(path, kept) for path in self.paths]
        else:
            sizes = [identity_of(path)[0] for path in self.paths]
            self._offsets = framing.offsets(given, self.paths, sizes)
            for path, size, offsets in zip(self.paths, sizes, self._offsets, strict=True):
                self._check(path, size, offsets, _CHECKED_REMOTE if is_url(path) else _CHECKED)
        counts = self.block_lengths()
        self._starts: list[int] = [0, *np.cumsum(counts).tolist()]
        self._fingerprint: str | None = None
        if not len(self):
            raise ValueError(
                f"no record in {', '.join(self.paths[:5])}. Remedy: give files with records"
            )

    def __len__(self) -> int:
        return self._starts[-1]

    def block_lengths(self) -> npt.NDArray[np.int64]:
        """Return int64 [num_files]: the number of samples of each file, in the order of indices."""
        return np.array([len(offsets) - 1 for offsets in self._offsets], dtype=np.int64)

    def read(self, index: int) -> EncodedSample:
        """Return the encoded image, whose memory may be part of the record's, and the target.

        Raises:
            OSError: the system's error, of the same type; the message has the path and the index.
            ValueError: the record is damaged, or lacks a field of the image or the target.
        """
        payload, place = self._payload(index)
        data, target = self._images.take(payload, place, index)
        return EncodedSample(data, target, f"{place.path}, record {place.record}")

    @cached_property
    def is_remote(self) -> bool:
        return any(map(is_url, self.paths))

    def expect(self, indices: npt.NDArray[np.int64], *, anew: bool = False) -> None:
        files = np.searchsorted(self._starts, indices, side="right") - 1
        ranges: list[Range] = []
        for file in np.unique(files).tolist():
            numbers = indices[files == file] - self._starts[file]
            begins, ends = self._offsets[file][numbers], self._offsets[file][numbers + 1]
            if is_url(path := self.paths[file]):
                ranges += zip(itertools.repeat(path), begins.tolist(), ends.tolist(), strict=False)
        self._files.expect(ranges, sum(end - begin for _, begin, end in ranges), anew=anew)

    def record(self, index: int) -> dict[str, Any]:
        """Return all fields of the record at ``0 <= index < len(self)``, by name."""
        return self._images.record(*self._payload(index))

    def fingerprint(self) -> str:
        """Return a blake2b of the files' names, the records' offsets, and the chosen fields.

        It does not depend on the files' folder. It changes if a record is added, removed or changes
        its length, but not if bytes are overwritten in place.
        """
        if self._fingerprint is None:
            digest = ContentDigest(self._framing.kind)
            for name, offsets in zip(names_of(self.paths), self._offsets, strict=True):
                digest.add_name(name).add_blocks([offsets.astype("<i8").tobytes()])
            self._fingerprint = f"{len(self)} records, {digest.text()}, {self._images}"
        return self._fingerprint

    def _payload(self, index: int) -> tuple[Bytes, Place]:
        """Return the record's content, newly allocated uint8 [n], and its place."""
        if not 0 <= index < len(self):
            raise IndexError(f"{index = } is outside 0 to {len(self) - 1}. Remedy: stay inside")
        file = bisect_right(self._starts, index) - 1
        number = index - self._starts[file]
        start, end = self._offsets[file][number : number + 2].tolist()
        place = Place(self.paths[file], number, start)
        try:
            framed = self._files.read(place.path, start, end - start)
        except ValueError as error:
            raise place.damaged(f"the file has become shorter ({error})") from error
        except OSError as error:
            raise failed(error, place.path, f"sample {index = }") from error
        return self._framing.payload(framed, place), place

    def _built(self, path: str, cache_dir: str | None) -> Offsets:
        def build() -> dict[str, npt.NDArray[np.generic]]:
            window, files = _REMOTE_WINDOW if is_url(path) else _WINDOW, OpenFiles()
            size = identity_of(path)[0]

            def read(offset: int, length: int) -> Bytes:
                note(offset)
                return files.read(path, offset, length)

            with progress_bar(f"indexing {path}", size, "B") as note:
                return {"offsets": self._framing.walk(path, size, read, window=window)}

        def check(index: Index, size: int) -> None:
            offsets = array_in(index, "offsets", np.int64)
            check_ends("offsets", offsets, total=size, shortest=1)
            if not is_url(path):
                self._check(path, size, offsets, _CHECKED_KEPT)

        index = cached_index(
            path, kind=self._framing.kind, build=build, check=check, cache_dir=cache_dir
        )
        return index["offsets"].astype(np.int64, copy=False)

    def _check(self, path: str, size: int, offsets: Offsets, checked: int) -> None:
        """Check that an index matches a file, by its end and ``checked`` of its records."""
        if offsets[-1] != size:
            raise ValueError(
                f"{path!r} has {size} bytes, and its index ends at byte {offsets[-1]}. Remedy: "
                "make the index again, or leave index_paths out"
            )
        # Not self._files: a source opens files only to read samples.
        files = OpenFiles()
        last = len(offsets) - 2
        for number in sorted({last * i // max(1, checked - 1) for i in range(checked)}):
            if 0 <= number <= last:
                start, end = offsets[number : number + 2].tolist()
                length = min(self._framing.header_size, end - start)
                header = files.read(path, start, length).tobytes()
                self._framing.check_extent(
                    header, end - start, Place(path, number, start, INDEX_REMEDY)
                )

    def __repr__(self) -> str:
        names = names_of(self.paths)
        files = names[0] if len(names) == 1 else f"{len(names)} files"
        return f"{type(self).__name__}({files}, {len(self)} records, {self._images})"


def read_indices(
    index_paths: list[str], paths: list[str], parse: Callable[[bytes, str], Offsets]
) -> list[Offsets]:
    """Return the offsets from index files, one for each file.

    Args:
        parse: converts an index's content and path to offsets.

    Raises:
        OSError: an index cannot be read.
        ValueError: the numbers of indices and files differ, or an index is malformed.
    """
    if len(index_paths) != len(paths):
        raise ValueError(
            f"{len(paths)} files and {len(index_paths)} indices. Remedy: give one for each file, "
            "in the same order"
        )
    found = []
    for path in index_paths:
        with open_stream(path) as stream:
            found.append(parse(stream.read(), path))
    return found


class FramedShards(FileShards, EncodedShards):
    """Base class of TFRecordShards and RecordIOShards.

    A cursor is the offset of the next record in bytes. In a compressed file it is the number of
    records before the next one.

    Args:
        images: conversion of records to samples.
        counts, num_lanes, shuffle_buffer: as for :class:`FileShards`.

    Raises:
        ValueError: no path, a repeated path, or counts that do not fit the shards.
    """

    def __init__(
        self,
        paths: AnyPaths,
        framing: Framing,
        images: ImageRecords,
        counts: Counts,
        num_lanes: int | None,
        shuffle_buffer: int,
    ) -> None:
        super().__init__(paths, counts, num_lanes, shuffle_buffer)
        self._framing = framing
        self._images = images

    def fingerprint(self) -> str:
        """Return a text of the shards' names in order, and of the chosen fields."""
        return f"{super().fingerprint()}, {self._images}"

    def read_shard(
        self, shard: str, cursor: int
    ) -> Iterator[tuple[EncodedSample | ValueError, int]]:
        """Yield each sample from ``cursor`` on, with the cursor of the next sample.

        A malformed record yields a ValueError in its place.

        Raises:
            OSError: the file is missing or cannot be read.
            ValueError: the rest of the file is damaged, or it ends before the cursor.
        """
        path = self.path_of(shard)
        is_counted = is_compressed(path)
        with closing(records_from(path, cursor, partial(self._records, path))) as records:
            for (payload, place), after in records:
                if not is_counted:
                    # The number is known only if reading began at the file's first record.
                    place = place._replace(record=None)
                at = place.record if is_counted else place.offset
                name = f"{path}, {'record' if is_counted else 'byte'} {at}"
                yield sample_or_error(self._sample, payload, place, at, name), after

    def _records(
        self, path: str, stream: IO[bytes], start: int, skipped: int
    ) -> Iterator[tuple[tuple[Bytes, Place], int]]:
        place = Place(path, None if start else 0, start)
        for payload, after in self._framing.stream(stream, place):
            yield (payload, place), after
            place = place.following(after)

    def _sample(self, payload: Bytes, place: Place, number: int, name: str) -> EncodedSample:
        data, target = self._images.take(payload, place, number)
        return EncodedSample(data, target, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.paths)} shards, {self._images})"

"""RecordIOSource and RecordIOShards: MXNet's .rec files of images, by index or streamed.

A part of a record is uint32 magic, uint32 (kind << 29 | length), the bytes, and zeros up to a
multiple of 4; all little-endian. A record is usually one part of kind 0. If its bytes contain the
magic at a multiple of 4, it is split there into parts of kinds 1, 2, ..., 2, 3, and that magic is
left out (dmlc-core's ``recordio.cc``). There are no checksums.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.datasets.framed import (
    AnyPaths,
    FramedShards,
    FramedSource,
    Offsets,
    Place,
    read_indices,
)
from stateful_gpu_loader.datasets.sharded import Counts
from stateful_gpu_loader.datasets.storage.failures import INDEX_REMEDY
from stateful_gpu_loader.datasets.storage.memory import Bytes
from stateful_gpu_loader.datasets.storage.paths import AnyPath
from stateful_gpu_loader.datasets.storage.streams import Lookahead, Read, read_up_to
from stateful_gpu_loader.datasets.target_choice import Target, TargetChoice


class RecordIOSource(FramedSource):
    """Encoded images and their labels in RecordIO files, local or by URL, in the files' order.

    DALI's reader has the same order. The format has no checksums, so only the decoder can find
    damage inside an image.

    Args:
        paths: one file or several, as for ``as_paths``.
        target: a field, several for a tuple, a dict of new names for a dict, None for the index.
            ``"class"`` is the label as an int, and an error if it is not integral. ``"label"`` is
            the stored float32, or float32 [n] for a record with n labels. ``"id"`` and ``"id2"``
            are the ints beside it.
        index_paths: an .idx for each file, as ``im2rec`` and ``rec2idx`` write them; or one for all
            files, with offsets that continue from file to file, as for DALI. None builds an index
            from the records' headers and keeps it.
        cache_dir: directory for built indices; None is beside the files.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: a file is damaged, compressed or unlike its index, or no file has a record.

    >>> import os, struct, tempfile
    >>> payload = struct.pack("<IfQQ", 0, 7.0, 0, 0) + b"jpeg"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "train.rec")
    ...     with open(path, "wb") as file:
    ...         _ = file.write(struct.pack("<II", 0xCED7230A, len(payload)) + payload)
    ...     source = RecordIOSource(path)
    ...     data, target = source[0]
    ...     len(source), bytes(data.numpy()), target, source.record(0)["id"]
    (1, b'jpeg', 7, 0)
    """

    suits_processes = True

    def __init__(
        self,
        paths: AnyPaths,
        *,
        target: Target = "class",
        index_paths: AnyPaths | None = None,
        cache_dir: AnyPath | None = None,
    ) -> None:
        framing, images = RecordIOFraming(), RecordIOImages(target)
        super().__init__(paths, framing, images, index_paths=index_paths, cache_dir=cache_dir)


class RecordIOShards(FramedShards):
    """Encoded images and their labels, streamed from RecordIO files without an index.

    Args:
        paths: local or URLs, as for ``as_paths``; compressed if named .gz, .zst, .bz2 or .xz.
        target: as for RecordIOSource; None is the record's offset in bytes, or its number in a
            compressed file.
        counts: number of samples of each shard, by name or in order; None is unknown.
        num_lanes, shuffle_buffer: as in :class:`ShardedDataset`.

    Raises:
        ValueError: no path, a repeated path, or counts that do not fit the shards.

    >>> import os, struct, tempfile
    >>> payload = struct.pack("<IfQQ", 0, 7.0, 0, 0) + b"jpeg"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "train.rec")
    ...     with open(path, "wb") as file:
    ...         _ = file.write(struct.pack("<II", 0xCED7230A, len(payload)) + payload)
    ...     [(bytes(data.numpy()), target) for data, target in RecordIOShards(path)]
    [(b'jpeg', 7)]
    """

    def __init__(
        self,
        paths: AnyPaths,
        *,
        target: Target = "class",
        counts: Counts = None,
        num_lanes: int | None = None,
        shuffle_buffer: int = FramedShards.shuffle_buffer,
    ) -> None:
        framing, images = RecordIOFraming(), RecordIOImages(target)
        super().__init__(paths, framing, images, counts, num_lanes, shuffle_buffer)


def _divided(offsets: Offsets, sizes: list[int], path: str) -> list[Offsets]:
    """Split offsets that continue from file to file into the offsets inside each file."""
    ends = np.cumsum(sizes)
    if len(offsets) and offsets[-1] >= ends[-1]:
        raise ValueError(
            f"{path!r}: a record begins at byte {offsets[-1]}, and the {len(sizes)} files have "
            f"{ends[-1]} bytes together. Remedy: give an index for each file, or one for all"
        )
    starts = ends - sizes
    return [
        offsets[(offsets >= start) & (offsets < end)] - start
        for start, end in zip(starts, ends, strict=True)
    ]


def _with_end(offsets: Offsets, size: int, path: str) -> Offsets:
    """Return int64 [n + 1]: the beginnings of the records, and the end of the last one."""
    if not len(offsets) and not size:
        return np.zeros(1, dtype=np.int64)
    if not len(offsets) or offsets[0] != 0 or offsets[-1] >= size:
        there = f"at byte {offsets[0]} to {offsets[-1]}" if len(offsets) else "nowhere"
        raise ValueError(
            f"{path!r}: its records begin {there}, and those of a file of {size} bytes begin at "
            "byte 0 and before its end. Remedy: make the index again with rec2idx, or leave "
            "index_paths out"
        )
    return np.append(offsets, size)


FIELDS = ("class", "label", "id", "id2")
"""Fields for the target."""

_IMAGE_HEADER = Struct("<IfQQ")


class ImageRecord(NamedTuple):
    """The contents of a record, packed by MXNet's ``recordio.pack``."""

    label: np.float32 | npt.NDArray[np.float32]
    """One number, or float32 [flag] if flag > 0."""
    id: int
    id2: int
    """64 bits each, unsigned; id2 is usually 0."""
    image: Bytes
    """uint8 [n]: the encoded image, a view of the record."""


def unpack(payload: Bytes, place: Place) -> ImageRecord:
    """Unpack the label and the image of a record.

    Raises:
        ValueError: the record is shorter than its header says.

    >>> payload = np.frombuffer(_IMAGE_HEADER.pack(0, 3.0, 7, 0) + b"jpeg", dtype=np.uint8)
    >>> record = unpack(payload, Place("a.rec", 0, 0))
    >>> float(record.label), record.id, bytes(record.image)
    (3.0, 7, b'jpeg')
    """
    if len(payload) < _IMAGE_HEADER.size:
        raise place.damaged(
            f"it has {len(payload)} bytes, and the header of an image takes {_IMAGE_HEADER.size}"
        )
    flag, number, first_id, second_id = _IMAGE_HEADER.unpack_from(payload.data)
    if not flag:
        image = payload[_IMAGE_HEADER.size :]
        return ImageRecord(np.float32(number), first_id, second_id, image)
    end = _IMAGE_HEADER.size + 4 * flag
    if end > len(payload):
        raise place.damaged(f"it has {len(payload)} bytes, and its {flag} labels end at byte {end}")
    labels = np.frombuffer(payload[_IMAGE_HEADER.size : end].tobytes(), dtype="<f4")
    return ImageRecord(labels.astype(np.float32), first_id, second_id, payload[end:])


class RecordIOImages:
    """Extracts image and target from the records of a RecordIO file.

    Args:
        target: ``"class"`` is the label as an int; ``"label"`` is the stored float32, or float32
            [n] for records with n labels; ``"id"`` and ``"id2"`` are the ints beside it.

    Raises:
        ValueError: ``target`` names another field.

    >>> RecordIOImages("class")
    target='class'
    """

    def __init__(self, target: Target) -> None:
        self._target = TargetChoice(target)
        if unknown := set(self._target.names) - set(FIELDS):
            raise ValueError(
                f"{target = } names {sorted(unknown)}. Remedy: name fields of {FIELDS}"
            )

    def take(self, payload: Bytes, place: Place, number: int) -> tuple[torch.Tensor, Any]:
        """Implement ``ImageRecords.take``; the image shares the record's memory."""
        record = unpack(payload, place)
        target = self._target.make(lambda name: _value(record, name, place), number)
        return torch.from_numpy(record.image), target

    def record(self, payload: Bytes, place: Place) -> dict[str, Any]:
        """Return the record: ``image`` as bytes, ``label`` float32 or [n], ``id`` and ``id2``.

        Raises:
            ValueError: the record is malformed.
        """
        record = unpack(payload, place)
        return {**record._asdict(), "image": record.image.tobytes()}

    def __repr__(self) -> str:
        return f"target={self._target!r}"


def _value(record: ImageRecord, name: str, place: Place) -> Any:
    if name != "class":
        return getattr(record, name)
    label = record.label
    if np.size(label) == 1:
        number = float(np.ravel(label)[0])
        if number.is_integer():
            return int(number)
    raise place.damaged(f"its label is {label}, not a class", "pass target='label'")


MAGIC = 0xCED7230A

_HEADER = Struct("<II")
_LENGTH_BITS = 29
_NUMBER = re.compile(rb"[0-9]{1,20}")
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_MAGIC_BYTES = np.frombuffer(MAGIC.to_bytes(4, "little"), dtype=np.uint8)


@dataclass(frozen=True)
class RecordIOFraming:
    """The framing of RecordIO files; the methods are those of ``Framing``.

    >>> import io
    >>> file = bytes.fromhex("0a23d7ce" "03000000" "61626300")
    >>> [(bytes(payload), end) for payload, end in
    ...  RecordIOFraming().stream(io.BytesIO(file), Place("a.rec", 0, 0))]
    [(b'abc', 12)]
    """

    kind = "recordio-1"
    header_size = _HEADER.size
    shards = "RecordIOShards"

    def offsets(self, index_paths: list[str], paths: list[str], sizes: list[int]) -> list[Offsets]:
        if len(index_paths) == 1 < len(paths):
            (offsets,) = read_indices(index_paths, index_paths, parse_index)
            found = _divided(offsets, sizes, index_paths[0])
        else:
            found = read_indices(index_paths, paths, parse_index)
        return [
            _with_end(offsets, size, path)
            for offsets, size, path in zip(found, sizes, index_paths * len(paths), strict=False)
        ]

    def walk(self, path: str, size: int, read: Read, *, window: int) -> Offsets:
        ahead = Lookahead(read, size, window=window)
        offsets, at = array("q", [0]), 0
        while at < size:
            at = _end_of_record(ahead, size, Place(path, len(offsets) - 1, at, INDEX_REMEDY))
            offsets.append(at)
        return np.array(offsets, dtype=np.int64)

    def check_extent(self, header: bytes, size: int, place: Place) -> None:
        if len(header) < _HEADER.size:
            raise _foreign(place, _HEADER.size, size)
        kind, length = _part(header, place, is_first=True)
        part = _HEADER.size + _padded(length)
        if part > size or (kind == _WHOLE and part < size):
            raise _foreign(place, part, size)

    def payload(self, framed: Bytes, place: Place) -> Bytes:
        at = 0

        def take(size: int) -> Bytes:
            nonlocal at
            at += size
            if at > len(framed):
                raise _foreign(place, at, len(framed))
            return framed[at - size : at]

        payload = _joined(take(_HEADER.size), take, place)
        if at < len(framed):
            raise _foreign(place, at, len(framed))
        return payload

    def stream(self, stream: IO[bytes], place: Place) -> Iterator[tuple[Bytes, int]]:
        done = 0

        def take(size: int) -> Bytes:
            nonlocal done
            data = read_up_to(stream, size)
            done += len(data)
            if len(data) < size and done:
                raise _cut(place, done, done - len(data) + size)
            return data

        while len(header := take(_HEADER.size)):
            payload = _joined(header, take, place)
            place, done = place.following(place.offset + done), 0
            yield payload, place.offset


def parse_index(text: bytes, path: str) -> Offsets:
    """Parse an index into the offsets of records, int64 [n], ascending.

    Args:
        text: one ``key offset`` a line, as MXNet's ``im2rec`` and DALI's ``rec2idx`` write them.
            Keys are ignored and offsets are sorted, as in DALI's reader.

    Raises:
        ValueError: a line is malformed, or two records have the same offset.

    >>> parse_index(b"0\\t0\\n2\\t96\\n1\\t48\\n", "a.idx").tolist()
    [0, 48, 96]
    """
    offsets = array("q")
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.rsplit(None, 1)
        if len(words) != 2 or not _NUMBER.fullmatch(words[1]) or int(words[1]) >= 2**63:
            raise ValueError(
                f"{path!r}, line {number}: {line[:80]!r} is not a key and an offset. Remedy: make "
                "the index again with rec2idx, or leave index_paths out"
            )
        offsets.append(int(words[1]))
    found = np.sort(np.array(offsets, dtype=np.int64))
    twice = np.flatnonzero(found[1:] == found[:-1])
    if len(twice):
        raise ValueError(
            f"{path!r}: two records begin at byte {found[twice[0]]}. Remedy: make the index again "
            "with rec2idx, or leave index_paths out"
        )
    return found


def _end_of_record(ahead: Lookahead, size: int, place: Place) -> int:
    at, is_first = place.offset, True
    while True:
        end = at + _HEADER.size
        if end <= size:
            kind, length = _part(ahead.at(at, _HEADER.size), place, is_first=is_first)
            end += _padded(length)
        if end > size:
            raise _cut(place, size - place.offset, end - place.offset)
        if kind in (_WHOLE, _LAST):
            return end
        at, is_first = end, False


def _joined(header: Bytes, take: Callable[[int], Bytes], place: Place) -> Bytes:
    """Return the bytes of a record: its only part, or its parts joined by the magic."""
    parts: list[Bytes] = []
    while True:
        kind, length = _part(header.tobytes(), place, is_first=not parts)
        if parts:
            parts.append(_MAGIC_BYTES)
        parts.append(take(_padded(length))[:length])
        if kind in (_WHOLE, _LAST):
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
        header = take(_HEADER.size)


def _part(header: bytes, place: Place, *, is_first: bool) -> tuple[int, int]:
    magic, packed = _HEADER.unpack(header)
    if magic != MAGIC:
        raise place.damaged(f"a part begins with {magic:#010x} instead of the magic {MAGIC:#x}")
    kind = packed >> _LENGTH_BITS
    allowed = (_WHOLE, _FIRST) if is_first else (_MIDDLE, _LAST)
    if kind not in allowed:
        raise place.damaged(f"a part of kind {kind}, expected one of {allowed}")
    return kind, packed & ((1 << _LENGTH_BITS) - 1)


def _padded(length: int) -> int:
    return (length + 3) & ~3


def _cut(place: Place, there: int, wanted: int) -> ValueError:
    return place.damaged(f"the file is cut off: it has {there} of at least {wanted} bytes")


def _foreign(place: Place, wanted: int, size: int) -> ValueError:
    return place.damaged(
        f"it takes {wanted} bytes or more, and the index says {size}"
        if wanted > size
        else f"it takes {wanted} bytes, and the index says {size}",
        "the index is of another file or lacks records: make it again",
    )

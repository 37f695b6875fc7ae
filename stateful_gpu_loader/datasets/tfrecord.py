"""TFRecordSource and TFRecordShards: TFRecord files of tf.train.Example, without TensorFlow.

A record is uint64 length, uint32 masked CRC-32C of the length, the bytes, uint32 masked CRC-32C of
the bytes; all little-endian (https://www.tensorflow.org/tutorials/load_data/tfrecord). A file has
no header and no end mark.
"""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import IO, Any

import numpy as np
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
from stateful_gpu_loader.datasets.tf_example import Values, features_of, values_of
from stateful_gpu_loader.errors import MissingDependency


class TFRecordSource(FramedSource):
    """Encoded images and their labels in TFRecord files, local or by URL.

    The index is built once, from each record's header, and kept; or index files are given.

    Args:
        paths: one file or several, as for ``as_paths``.
        image: feature with the encoded image; of several names the first that a record has.
        target: feature that is the target, several for a tuple, a dict of new names for a dict,
            None for the index. A single value is the stored int, float32 or bytes; several values
            are int64 [n], float32 [n] or a list of bytes.
        variable_length: features of the target that are arrays (or lists) even if a record has one
            value, such as ``"image/object/bbox/xmin"``.
        index_paths: an index for each file, as written by DALI's ``tfrecord2idx``.
        cache_dir: directory for built indices; None is beside the files.
        check_crc: check both checksums of a record when it is read; needs google-crc32c.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: a file is damaged, compressed or unlike its index, or no file has a record.
        MissingDependency: google-crc32c is not installed, and ``check_crc`` is on.

    >>> import os, tempfile
    >>> feature = bytes.fromhex("0a04") + b"jpeg"
    >>> entries = b"".join(
    ...     bytes([10, len(entry)]) + entry for entry in (
    ...         bytes([10, 13]) + b"image/encoded" + bytes([18, 8, 10, 6]) + feature,
    ...         bytes([10, 17]) + b"image/class/label" + bytes([18, 5, 26, 3, 10, 1, 7])))
    >>> example = bytes([10, len(entries)]) + entries
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "train.tfrecord")
    ...     with open(path, "wb") as file:
    ...         _ = file.write(len(example).to_bytes(8, "little") + bytes(4) + example + bytes(4))
    ...     source = TFRecordSource(path, check_crc=False)
    ...     data, target = source[0]
    ...     len(source), bytes(data.numpy()), target, sorted(source.record(0))
    (1, b'jpeg', 7, ['image/class/label', 'image/encoded'])
    """

    suits_processes = True

    def __init__(
        self,
        paths: AnyPaths,
        *,
        image: str | Sequence[str] = "image/encoded",
        target: Target = "image/class/label",
        variable_length: str | Sequence[str] = (),
        index_paths: AnyPaths | None = None,
        cache_dir: AnyPath | None = None,
        check_crc: bool = True,
    ) -> None:
        framing = TFRecordFraming(check_crc=check_crc)
        images = ExampleImages(image, target, variable_length)
        super().__init__(paths, framing, images, index_paths=index_paths, cache_dir=cache_dir)


class TFRecordShards(FramedShards):
    """Encoded images and their labels, streamed from TFRecord files without an index.

    Args:
        paths: local or URLs, as for ``as_paths``; compressed if named .gz, .zst, .bz2 or .xz.
        image: feature with the encoded image; of several names the first that a record has.
        target: as for TFRecordSource; None is the record's offset in bytes, or its number in a
            compressed file.
        variable_length: features of the target that are arrays (or lists) even if a record has one
            value.
        check_crc: check both checksums of each record; needs google-crc32c.
        counts: number of samples of each shard, by name or in order; None is unknown.
        num_lanes, shuffle_buffer: as in :class:`ShardedDataset`.

    Raises:
        ValueError: no path, a repeated path, or counts that do not fit the shards.
        MissingDependency: google-crc32c is not installed, and ``check_crc`` is on.

    >>> import os, tempfile
    >>> feature = bytes.fromhex("0a04") + b"jpeg"
    >>> entry = bytes([10, 13]) + b"image/encoded" + bytes([18, 8, 10, 6]) + feature
    >>> example = bytes([10, len(entry) + 2, 10, len(entry)]) + entry
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "train.tfrecord")
    ...     with open(path, "wb") as file:
    ...         _ = file.write(len(example).to_bytes(8, "little") + bytes(4) + example + bytes(4))
    ...     shards = TFRecordShards(path, target=None, check_crc=False)
    ...     [(bytes(data.numpy()), target) for data, target in shards]
    [(b'jpeg', 0)]
    """

    def __init__(
        self,
        paths: AnyPaths,
        *,
        image: str | Sequence[str] = "image/encoded",
        target: Target = "image/class/label",
        variable_length: str | Sequence[str] = (),
        check_crc: bool = True,
        counts: Counts = None,
        num_lanes: int | None = None,
        shuffle_buffer: int = FramedShards.shuffle_buffer,
    ) -> None:
        framing = TFRecordFraming(check_crc=check_crc)
        images = ExampleImages(image, target, variable_length)
        super().__init__(paths, framing, images, counts, num_lanes, shuffle_buffer)


class ExampleImages:
    """Extracts image and target from the records of a TFRecord file.

    Args:
        image: feature with the encoded image, or several names: the first that a record has.
        target: the feature, or features, that become the target.
        variable_length: features of the target that are always arrays; others are single values if
            a record has one value.

    >>> choice = ExampleImages("image", "label", ())
    >>> choice
    image='image', target='label'
    """

    def __init__(
        self, image: str | Sequence[str], target: Target, variable_length: str | Sequence[str]
    ) -> None:
        self._image = (image,) if isinstance(image, str) else tuple(image)
        self._target = TargetChoice(target)
        names = (variable_length,) if isinstance(variable_length, str) else tuple(variable_length)
        if not self._image:
            raise ValueError(f"{image = } names no feature. Remedy: name one, or several")
        if unknown := set(names) - set(self._target.names):
            raise ValueError(
                f"variable_length names {sorted(unknown)}, which {target = } does not. Remedy: "
                "name features of the target"
            )
        self._variable_length = frozenset(names)

    def take(self, payload: Bytes, place: Place, number: int) -> tuple[torch.Tensor, Any]:
        """Implement ``ImageRecords.take``; the image shares the record's memory."""
        try:
            features = features_of(payload.data)
            image = self._find_image(features)
            target = self._target.make(lambda name: self._value(features, name), number)
        except ValueError as error:
            raise place.damaged(str(error)) from error
        return torch.from_numpy(np.frombuffer(image, dtype=np.uint8)), target

    def record(self, payload: Bytes, place: Place) -> dict[str, Any]:
        """Return all features of a record: lists of bytes, float32 [n] and int64 [n].

        Raises:
            ValueError: the record is not an Example.
        """
        record: dict[str, Any] = {}
        try:
            for name, feature in features_of(payload.data).items():
                values = values_of(feature)
                if isinstance(values, list):
                    record[name] = [bytes(value) for value in values]
                else:
                    record[name] = [] if values is None else values
        except ValueError as error:
            raise place.damaged(str(error)) from error
        return record

    def _find_image(self, features: dict[str, memoryview]) -> memoryview:
        name = next((name for name in self._image if name in features), self._image[0])
        values = _values(features, name)
        if not isinstance(values, list) or len(values) != 1:
            raise ValueError(f"the feature {name!r} is {_kind(values)}, not one encoded image")
        return values[0]

    def _value(self, features: dict[str, memoryview], name: str) -> Any:
        values = _values(features, name)
        is_single = len(values) == 1 and name not in self._variable_length
        if isinstance(values, list):
            return bytes(values[0]) if is_single else [bytes(value) for value in values]
        if not is_single:
            return values
        # A single float stays float32, as in an array.
        return values[0] if values.dtype == np.float32 else int(values[0])

    def __repr__(self) -> str:
        image = self._image[0] if len(self._image) == 1 else self._image
        kept = sorted(self._variable_length)
        return f"{image=}, target={self._target!r}" + (f", variable_length={kept}" if kept else "")


def _values(features: dict[str, memoryview], name: str) -> Values:
    values = values_of(features[name]) if name in features else None
    if values is None:
        there = ", ".join(repr(found) for found in sorted(features)[:20])
        raise ValueError(f"it has no feature {name!r}; its features are {there or 'none'}")
    return values


def _kind(values: Values) -> str:
    kind = "bytes" if isinstance(values, list) else values.dtype.name
    return f"{len(values)} values of {kind}"


_HEADER = Struct("<QI")
_FOOTER = Struct("<I")
_FRAME = _HEADER.size + _FOOTER.size
_GZIP = b"\x1f\x8b"
_MASK_DELTA = 0xA282EAD8
_NUMBER = re.compile(rb"[0-9]{1,20}")
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


@dataclass(frozen=True)
class TFRecordFraming:
    """The framing of TFRecord files; the methods are those of ``Framing``.

    >>> import io
    >>> file = bytes.fromhex("1800000000000000a37f4b22" "090000c025dd75d541")
    >>> file += bytes.fromhex("1a0d") + b"brain.Event:1" + bytes.fromhex("ecf3328d")
    >>> for payload, end in TFRecordFraming().stream(io.BytesIO(file), Place("events", 0, 0)):
    ...     print(bytes(payload)[-13:], end)
    b'brain.Event:1' 40
    """

    check_crc: bool = True
    """Whether both checksums of each record are checked; needs google-crc32c."""

    kind = "tfrecord-1"
    header_size = _HEADER.size
    shards = "TFRecordShards"

    def __post_init__(self) -> None:
        if self.check_crc:
            _load()

    def offsets(self, index_paths: list[str], paths: list[str], sizes: list[int]) -> list[Offsets]:
        return read_indices(index_paths, paths, parse_index)

    def walk(self, path: str, size: int, read: Read, *, window: int) -> Offsets:
        ahead = Lookahead(read, size, window=window)
        offsets, at = array("q", [0]), 0
        while at < size:
            place = Place(path, len(offsets) - 1, at, INDEX_REMEDY)
            if size - at < _HEADER.size:
                raise _cut(place, f"{size - at} of the {_HEADER.size} bytes of its header")
            length = self._length(ahead.at(at, _HEADER.size), place)
            at += _FRAME + length
            if at > size:
                raise _cut(place, f"{size - place.offset} of its {at - place.offset} bytes")
            offsets.append(at)
        return np.array(offsets, dtype=np.int64)

    def check_extent(self, header: bytes, size: int, place: Place) -> None:
        self._check_size(self._length(header, place), size, place)

    def payload(self, framed: Bytes, place: Place) -> Bytes:
        if len(framed) < _FRAME:
            raise _cut(place, f"{len(framed)} of at least {_FRAME} bytes")
        length = self._length(framed[: _HEADER.size].tobytes(), place)
        self._check_size(length, len(framed), place)
        self._check_data(framed[_HEADER.size :], length, place)
        return framed[_HEADER.size : -_FOOTER.size]

    def stream(self, stream: IO[bytes], place: Place) -> Iterator[tuple[Bytes, int]]:
        while True:
            header = read_up_to(stream, _HEADER.size)
            if not len(header):
                return
            if len(header) < _HEADER.size:
                raise _cut(place, f"{len(header)} of the {_HEADER.size} bytes of its header")
            length = self._length(header.tobytes(), place)
            rest = read_up_to(stream, length + _FOOTER.size)
            if len(rest) < length + _FOOTER.size:
                raise _cut(place, f"{_HEADER.size + len(rest)} of its {_FRAME + length} bytes")
            self._check_data(rest, length, place)
            after = place.offset + _FRAME + length
            yield rest[:length], after
            place = place.following(after)

    def _length(self, header: bytes, place: Place) -> int:
        length: int
        length, crc = _HEADER.unpack(header)
        if self.check_crc and crc != masked_crc32c(header[:8]):
            raise _no_record(place, header, "the checksum of its length differs")
        if length >> 62:
            raise _no_record(place, header, f"it claims {length} bytes")
        return length

    def _check_size(self, length: int, size: int, place: Place) -> None:
        if length + _FRAME != size:
            raise place.damaged(
                f"it takes {length + _FRAME} bytes, and the index says {size}",
                "the index is of another file: make it again",
            )

    def _check_data(self, data: Bytes, length: int, place: Place) -> None:
        """Check the checksum that follows the record's bytes in ``data``."""
        if self.check_crc and _FOOTER.unpack_from(data.data, length)[0] != masked_crc32c(
            data[:length]
        ):
            raise place.damaged("the checksum of its data differs")


def parse_index(text: bytes, path: str) -> Offsets:
    """Parse the text of an index into the offsets of ``walk``, int64 [n + 1].

    Args:
        text: one ``offset size`` a line, as written by DALI's ``tfrecord2idx``.

    Raises:
        ValueError: a line is malformed, or a record does not begin at the end of the previous one.

    >>> parse_index(b"0 20\\n20 36\\n", "a.idx").tolist()
    [0, 20, 56]
    """
    offsets = array("q", [0])
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if len(words) != 2 or not all(map(_NUMBER.fullmatch, words)):
            raise ValueError(
                f"{path!r}, line {number}: {line[:80]!r} is not an offset and a size. Remedy: make "
                "the index again with tfrecord2idx, or leave index_paths out"
            )
        offset, size = int(words[0]), int(words[1])
        if offset != offsets[-1] or size < _FRAME or offset + size >= 2**63:
            raise ValueError(
                f"{path!r}, line {number}: a record of {size} bytes at byte {offset} does not "
                f"follow one that ends at byte {offsets[-1]}. Remedy: make the index again with "
                "tfrecord2idx, or leave index_paths out"
            )
        offsets.append(offset + size)
    return np.array(offsets, dtype=np.int64)


def masked_crc32c(data: bytes | Bytes) -> int:
    """Return the CRC-32C (Castagnoli) of the bytes as stored in TFRecord, 0 <= crc < 2**32.

    TensorFlow's ``tsl/lib/hash/crc32c.h`` rotates the CRC right by 15 bits and adds a constant.

    Args:
        data: bytes, or contiguous uint8 [n], which is not copied.

    Raises:
        MissingDependency: google-crc32c is not installed.

    >>> f"{masked_crc32c((24).to_bytes(8, 'little')):08x}"
    '224b7fa3'
    """
    crc = _load()(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


@functools.cache
def _load() -> Callable[[bytes | Bytes], int]:
    try:
        import google_crc32c
    except ImportError:
        raise MissingDependency(
            "google-crc32c",
            needed_for="checking the checksums of TFRecord files (check_crc=True)",
            extra="tfrecord",
        ) from None
    value: Callable[[bytes | Bytes], int] = google_crc32c.value
    return value


def _cut(place: Place, what: str) -> ValueError:
    return place.damaged(f"the file is cut off: it has {what}")


def _no_record(place: Place, header: bytes, what: str) -> ValueError:
    if place.offset == 0 and (header[:2] == _GZIP or header[:2] in _ZLIB):
        kind = "gzip" if header[:2] == _GZIP else "zlib"
        return place.damaged(
            f"{what}; the file begins as one that is compressed by {kind}",
            "decompress it; or end its name in .gz and read it with TFRecordShards"
            if kind == "gzip"
            else "decompress it, or write it without compression",
        )
    return place.damaged(what)

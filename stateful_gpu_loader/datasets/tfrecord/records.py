"""TFRecord: records of bytes, each with its length and two checksums.

uint64 length, uint32 masked CRC-32C of the length, the bytes, uint32 masked CRC-32C of the bytes;
all little-endian (https://www.tensorflow.org/tutorials/load_data/tfrecord). No header, no end mark.
"""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import IO

import numpy as np

from stateful_gpu_loader.datasets.damage import INDEX_REMEDY
from stateful_gpu_loader.datasets.framed.framing import (
    Bytes,
    Lookahead,
    Offsets,
    Place,
    Read,
    read_up_to,
)
from stateful_gpu_loader.errors import MissingDependency

_HEADER = Struct("<QI")
_FOOTER = Struct("<I")
_FRAME = _HEADER.size + _FOOTER.size
_GZIP = b"\x1f\x8b"
_MASK_DELTA = 0xA282EAD8
_NUMBER = re.compile(rb"[0-9]{1,20}")
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


@dataclass(frozen=True)
class TFRecordFraming:
    """The frames of a TFRecord file; the methods are those of ``Framing``.

    >>> import io
    >>> file = bytes.fromhex("1800000000000000a37f4b22" "090000c025dd75d541")
    >>> file += bytes.fromhex("1a0d") + b"brain.Event:1" + bytes.fromhex("ecf3328d")
    >>> for payload, end in TFRecordFraming().stream(io.BytesIO(file), Place("events", 0, 0)):
    ...     print(bytes(payload)[-13:], end)
    b'brain.Event:1' 40
    """

    check_crc: bool = True
    """Whether both checksums of each record are checked; that needs google-crc32c."""

    kind = "tfrecord-1"
    header_size = _HEADER.size

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
            header = read_up_to(stream, _HEADER.size, place)
            if not len(header):
                return
            if len(header) < _HEADER.size:
                raise _cut(place, f"{len(header)} of the {_HEADER.size} bytes of its header")
            length = self._length(header.tobytes(), place)
            rest = read_up_to(stream, length + _FOOTER.size, place)
            if len(rest) < length + _FOOTER.size:
                raise _cut(place, f"{_HEADER.size + len(rest)} of its {_FRAME + length} bytes")
            self._check_data(rest, length, place)
            after = place.offset + _FRAME + length
            yield rest[:length], after
            number = None if place.record is None else place.record + 1
            place = Place(place.path, number, after)

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
                "the index is of another file: make it anew",
            )

    def _check_data(self, data: Bytes, length: int, place: Place) -> None:
        """``data`` is the record's bytes and their checksum."""
        if self.check_crc and _FOOTER.unpack_from(data.data, length)[0] != masked_crc32c(
            data[:length]
        ):
            raise place.damaged("the checksum of its data differs")


def parse_index(text: bytes, path: str) -> Offsets:
    """int64 [n + 1]: offsets as ``walk`` gives them, from the text of an index.

    Args:
        text: one ``offset size`` a line, as DALI's tool ``tfrecord2idx`` writes them.
        path: of the index, for errors.

    Raises:
        ValueError: a line is something else, or a record does not begin where the one before it
            ends.

    >>> parse_index(b"0 20\\n20 36\\n", "a.idx").tolist()
    [0, 20, 56]
    """
    offsets = array("q", [0])
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if len(words) != 2 or not all(map(_NUMBER.fullmatch, words)):
            raise ValueError(
                f"{path!r}, line {number}: {line[:80]!r} is not an offset and a size. Remedy: make "
                "the index anew with tfrecord2idx, or leave index_paths out"
            )
        offset, size = int(words[0]), int(words[1])
        if offset != offsets[-1] or size < _FRAME or offset + size >= 2**63:
            raise ValueError(
                f"{path!r}, line {number}: a record of {size} bytes at byte {offset} does not "
                f"follow one that ends at byte {offsets[-1]}. Remedy: make the index anew with "
                "tfrecord2idx, or leave index_paths out"
            )
        offsets.append(offset + size)
    return np.array(offsets, dtype=np.int64)


def masked_crc32c(data: bytes | Bytes) -> int:
    """The CRC-32C (Castagnoli) of the bytes as TFRecord stores it, 0 <= crc < 2**32.

    TensorFlow's ``tsl/lib/hash/crc32c.h`` rotates it right by 15 bits and adds a constant.

    Args:
        data: bytes, or contiguous uint8 [n], which is not copied.

    Raises:
        MissingDependency: google-crc32c is not installed.

    >>> f"{masked_crc32c((24).to_bytes(8, 'little')):08x}"
    '224b7fa3'
    """
    crc = _load()(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def require_crc32c() -> None:
    """Check that checksums can be computed, before a file is opened.

    Raises:
        MissingDependency: google-crc32c is not installed.
    """
    _load()


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

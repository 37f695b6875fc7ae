"""MXNet's RecordIO: records between magic numbers.

A part is uint32 magic, uint32 (kind << 29 | length), the bytes, zeros up to a multiple of 4; all
little-endian. A record is one part of kind 0; where its bytes hold the magic at a multiple of 4, it
is cut there into parts of kinds 1, 2, ..., 2, 3, and that magic is left out (dmlc-core's
``recordio.cc``). There are no checksums.
"""

from __future__ import annotations

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

MAGIC = 0xCED7230A

_HEADER = Struct("<II")
_LENGTH_BITS = 29
_NUMBER = re.compile(rb"[0-9]{1,20}")
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_MAGIC_BYTES = np.frombuffer(MAGIC.to_bytes(4, "little"), dtype=np.uint8)


@dataclass(frozen=True)
class RecordIOFraming:
    """The frames of a RecordIO file; the methods are those of ``Framing``.

    >>> import io
    >>> file = bytes.fromhex("0a23d7ce" "03000000" "61626300")
    >>> [(bytes(payload), end) for payload, end in
    ...  RecordIOFraming().stream(io.BytesIO(file), Place("a.rec", 0, 0))]
    [(b'abc', 12)]
    """

    kind = "recordio-1"
    header_size = _HEADER.size

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
            data = read_up_to(stream, size, place)
            done += len(data)
            if len(data) < size and done:
                raise _cut(place, done, done - len(data) + size)
            return data

        while len(header := take(_HEADER.size)):
            payload = _joined(header, take, place)
            number = None if place.record is None else place.record + 1
            place, done = Place(place.path, number, place.offset + done), 0
            yield payload, place.offset


def parse_index(text: bytes, path: str) -> Offsets:
    """int64 [n]: where the records begin, ascending, from the text of an index.

    Args:
        text: one ``key offset`` a line, as MXNet's ``im2rec`` and DALI's ``rec2idx`` write them.
            The keys are not looked at, and the offsets are sorted, as DALI's reader does.
        path: of the index, for errors.

    Raises:
        ValueError: a line is something else, or two records begin at one place.

    >>> parse_index(b"0\\t0\\n2\\t96\\n1\\t48\\n", "a.idx").tolist()
    [0, 48, 96]
    """
    offsets = array("q")
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.rsplit(None, 1)
        if len(words) != 2 or not _NUMBER.fullmatch(words[1]) or int(words[1]) >= 2**63:
            raise ValueError(
                f"{path!r}, line {number}: {line[:80]!r} is not a key and an offset. Remedy: make "
                "the index anew with rec2idx, or leave index_paths out"
            )
        offsets.append(int(words[1]))
    found = np.sort(np.array(offsets, dtype=np.int64))
    twice = np.flatnonzero(found[1:] == found[:-1])
    if len(twice):
        raise ValueError(
            f"{path!r}: two records begin at byte {found[twice[0]]}. Remedy: make the index anew "
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
    """The bytes of a record: its one part as it is, or its parts with the magic between them."""
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
    """Kind and length of a part."""
    magic, packed = _HEADER.unpack(header)
    if magic != MAGIC:
        raise place.damaged(f"a part begins with {magic:#010x} instead of the magic {MAGIC:#x}")
    kind = packed >> _LENGTH_BITS
    allowed = (_WHOLE, _FIRST) if is_first else (_MIDDLE, _LAST)
    if kind not in allowed:
        raise place.damaged(f"a part of kind {kind} where one of {allowed} belongs")
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
        "the index is of another file or leaves records out: make it anew",
    )

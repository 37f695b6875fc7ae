"""RecordStore: records by index, in a folder that many processes fill and read at the same time.

The folder has segments, files of which each process appends to one of its own. A record is a
prepared image: a binary PPM, and the target as JSON after it. A target that is the number of a
class is in the index instead, so that it costs no reading and no parsing.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import struct
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from stateful_gpu_loader.datasets.source import Size
from stateful_gpu_loader.datasets.storage.kept_files import KeptFile, Owners, owners_for_folder
from stateful_gpu_loader.datasets.storage.memory import Bytes, Memory, new_memory
from stateful_gpu_loader.datasets.storage.open_files import (
    OpenFiles,
    forget_in_children,
    unfilled,
)
from stateful_gpu_loader.state import typed_json

logger = logging.getLogger(__name__)

_ENTRY = struct.Struct("<8I")
"""The fields of an :class:`Entry`; a checksum of these follows."""
_CHECKSUM = struct.Struct("<I")
ENTRY_BYTES = _ENTRY.size + _CHECKSUM.size
_OPEN_FILES = 256
INDEX_FILE = "index.bin"
"""An entry for each index; zeros where none was written."""


class Entry(NamedTuple):
    """What the index says of a record; each number is below 2**32."""

    segment: int
    checksum: int
    """Of the record."""
    offset: int
    """Of the record in its segment, in bytes."""
    num_bytes: int
    """Of the record."""
    json_bytes: int
    """Of the target at its end."""
    json_checksum: int
    """Of these."""
    height: int
    """Pixels of the image that the record was made from."""
    width: int
    """Pixels of the image that the record was made from."""
    label: int | None = None
    """The target, if it is the number of a class. The record has no JSON then."""


_LABEL = (1 << 32) - 1
"""Length of JSON that no record has: the JSON's checksum is the target itself."""


class RecordStore:
    """Records, each stored once under an index, and found again or not at all.

    An index file has an entry of 36 bytes for each index, which is written when the record lies in
    its segment. An entry has a checksum, so that one that was half written is none, and the record
    has another: whatever a crash, a full disk or a damaged file leaves, a record comes back as it
    was put or is missing. Both are compared at each reading.

    Nothing here waits until the disk has something, and no process waits for another one. (The
    system makes a writer wait whose disk has fallen behind by all of its cache.)

    Args:
        folder: of the files; it exists.
        key: makes entries of another store invalid.
        segment_bytes: size of a segment at most, and so of a record.
        max_segments: number of segments at most; None is without limit.
    """

    def __init__(
        self,
        folder: Path,
        *,
        key: bytes,
        segment_bytes: int,
        max_segments: int | None,
    ) -> None:
        self._given = (folder, key, segment_bytes, max_segments)
        self._key = key
        self._index_path = str(folder / INDEX_FILE)
        self._owners = owners_for_folder(folder)
        self._segments = Segments(
            folder, segment_bytes=segment_bytes, limit=max_segments, owners=self._owners
        )
        self._files = OpenFiles(limit=_OPEN_FILES, owners=self._owners)
        self._is_closed = False
        self._index: KeptFile | None = None

    def record(self, index: int, entry: Entry, memory: Memory) -> Bytes | None:
        """The bytes of a record, in ``memory``: the PPM, and JSON at the end if it has any.

        None, and a warning, where it is damaged.
        """
        record = self._read(index, entry, memory(entry.num_bytes), entry.offset)
        if record is None:
            return None
        head, rest = record[:HEAD_BYTES].tobytes(), record[HEAD_BYTES:]
        if checksum(head, rest, len(rest) - entry.json_bytes) == entry.checksum:
            return record
        self._tell_of_damage(index, entry, "its checksum is another one")
        return None

    def json(self, index: int, entry: Entry) -> bytes | None:
        """A record's target, as :meth:`record`; the pixels are neither read nor checked."""
        if not entry.json_bytes:
            return b""
        offset = entry.offset + entry.num_bytes - entry.json_bytes
        read = self._read(index, entry, new_memory(entry.json_bytes), offset)
        if read is None:
            return None
        json = read.tobytes()
        if zlib.crc32(json) == entry.json_checksum:
            return json
        self._tell_of_damage(index, entry, "the checksum of its target is another one")
        return None

    def put(self, index: int, record: Record, original: Size) -> bool:
        """Store a record, and the size of the image it was made from; return whether it is stored.

        It is not where no segment has room, or the folder cannot be written. The latter is warned
        of once, and then nothing is stored any more by this process.
        """
        if self._is_closed:
            return False
        try:
            place = self._segments.append(record)
            if place is None:
                return False
            segment, offset = place
            target = (
                (len(record.json), zlib.crc32(record.json))
                if record.label is None
                else (_LABEL, record.label)
            )
            sizes = offset, record.num_bytes, *target, *original
            fields = _ENTRY.pack(segment, record.checksum(), *sizes)
            entry = fields + self._checksum(index, fields)
            os.pwrite(self._index_file(), entry, ENTRY_BYTES * index)
        except OSError as error:
            self._is_closed = True
            logger.warning(
                "no more images are kept in %r: %s. Training goes on with what is there. Remedy: "
                "make room, or give max_bytes",
                os.path.dirname(self._index_path),
                error,
            )
            return False
        return True

    def entry(self, index: int) -> Entry | None:
        """What the index says of a record, which is not read; None where none is stored."""
        try:
            entry = os.pread(self._index_file(), ENTRY_BYTES, ENTRY_BYTES * index)
        except OSError:
            return None
        fields = entry[: _ENTRY.size]
        if entry[_ENTRY.size :] != self._checksum(index, fields):
            return None
        found = Entry(*_ENTRY.unpack(fields))
        if found.json_bytes == _LABEL:
            return found._replace(json_bytes=0, label=found.json_checksum)
        return found

    def _read(self, index: int, entry: Entry, memory: Bytes, offset: int) -> Bytes | None:
        """Fill the memory from an offset of a record's segment on; None if that cannot be read."""
        try:
            self._files.fill(self._segments.path(entry.segment), offset, [memory.data])
        except (OSError, ValueError) as error:
            self._tell_of_damage(index, entry, str(error))
            return None
        return memory

    def _tell_of_damage(self, index: int, entry: Entry, what: str) -> None:
        logger.warning(
            "prepared record %d, %d bytes at byte %d of %r, is damaged and is made anew: %s",
            index,
            entry.num_bytes,
            entry.offset,
            self._segments.path(entry.segment),
            what,
        )

    def _checksum(self, index: int, fields: bytes) -> bytes:
        return _CHECKSUM.pack(zlib.crc32(b"%s %d %s" % (self._key, index, fields)))

    def _index_file(self) -> int:
        """The descriptor of the index file, which forked children share."""
        if self._index is None:
            try:
                self._index = KeptFile(self._index_path, os.O_RDWR, self._owners)
            except OSError:  # a folder that can be read alone
                self._index = KeptFile(self._index_path, os.O_RDONLY, self._owners)
        return self._index.number

    def __reduce__(self) -> tuple[object, ...]:
        return _store, self._given


def _store(folder: Path, key: bytes, segment_bytes: int, max_segments: int | None) -> RecordStore:
    return RecordStore(folder, key=key, segment_bytes=segment_bytes, max_segments=max_segments)


_TRIES_APART = 100
"""Appends that are passed over where there was no segment with room, before it is tried again."""


class Segments:
    """Numbered files of at most ``segment_bytes``, of which a process holds one to append to.

    Who appends to a file holds a lock on it, which ends with the process, however it ends; the
    next one goes on behind what was written.

    Args:
        folder: where the files lie.
        segment_bytes: of a file, at most.
        limit: number of files, at most; None is without limit.
        owners: trusted users.
    """

    def __init__(
        self, folder: Path, *, segment_bytes: int, limit: int | None, owners: Owners
    ) -> None:
        self._prefix = f"{folder}/pixels-"
        self._segment_bytes = segment_bytes
        self._limit = limit
        self._owners = owners
        self._held: _Held | None = None
        self._end = 0
        self._passed_over = 0
        self._lock = threading.Lock()
        forget_in_children(self)

    def path(self, number: int) -> str:
        """Where a segment lies."""
        return f"{self._prefix}{number:06d}.bin"

    def append(self, record: Record) -> tuple[int, int] | None:
        """Write a record behind those of this process's segment.

        Returns: the segment's number and the offset in bytes; None where no segment has room.

        Raises:
            OSError: the disk is full, the folder cannot be written or has no locks, or a file in it
                is not trusted. Nothing refers to what was written then.
        """
        size = record.num_bytes
        with self._lock:
            if self._held is None or self._end + size > self._segment_bytes:
                self._held = self._next(size)
            if self._held is None:
                return None
            segment, offset = self._held, self._end
            self._end += size
        parts = [memoryview(record.head), record.pixels.data, memoryview(record.json)]
        done = 0
        while done < size:
            left = unfilled(parts, done) if done else parts
            done += os.pwritev(segment.file.number, left, offset + done)
        return segment.number, offset

    def _next(self, size: int) -> _Held | None:
        """Hold the first segment that has room and is not held by another process."""
        self._held = None
        if size > self._segment_bytes or self._passed_over:
            self._passed_over = max(self._passed_over - 1, 0)
            return None
        number = 0
        while self._limit is None or number < self._limit:
            held = _Held(number, self.path(number), self._owners)
            if held.is_locked:
                self._end = os.fstat(held.file.number).st_size
                if self._end + size <= self._segment_bytes:
                    return held
            number += 1
        self._passed_over = _TRIES_APART
        return None

    def forget(self) -> None:
        """Hold nothing; a forked child begins with this, as its parent's segment is not its own."""
        self._held = None
        self._lock = threading.Lock()


class _Held:
    """An open segment, locked if nobody else holds it."""

    def __init__(self, number: int, path: str, owners: Owners) -> None:
        self.number = number
        self.file = KeptFile(path, os.O_RDWR | os.O_CREAT, owners)
        try:
            fcntl.flock(self.file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.is_locked = True
        except BlockingIOError:
            self.is_locked = False


HEAD_BYTES = 32
"""Bytes before the pixels."""
_PAGE = 4096
_LITTLE_ENDIAN = np.dtype("<u8")
_SMALLEST_MASKS = 4096
"""Bytes of a tensor that is kept as bits, at least."""


@dataclass(frozen=True, slots=True)
class Record:
    """An image and its target, in three parts that follow each other.

    >>> record = Record.of(torch.zeros(3, 2, 4, dtype=torch.uint8), "cat")
    >>> record.head, record.num_bytes, record.json
    (b'P6\\n4 2                     \\n255\\n', 67, b'["cat", {}]')
    """

    head: bytes
    """A PPM's text, :data:`HEAD_BYTES` long."""
    pixels: Bytes
    """uint8 [height * width * 3], the colours of a pixel side by side."""
    json: bytes
    """The target in typed JSON, masks as bits; empty if it has no form, or a larger one than the
    pixels, or is the label."""
    label: int | None = None
    """The target, if it is the number of a class: an int from 0 to 2**32 - 1."""

    @classmethod
    def of(cls, image: torch.Tensor, target: Any) -> Record:
        """The record of an image, whose memory it shares if that is interleaved.

        Args:
            image: uint8 [3, height, width] on the CPU, of any strides.
            target: of the image, as its source gives it.
        """
        label = target if type(target) is int and 0 <= target < 1 << 32 else None
        json = _json_of(target) if label is None else b""
        if len(json) > image.numel():
            json = b""
        _, height, width = image.shape
        head = b"P6\n%-24b\n255\n" % (b"%d %d" % (width, height))
        pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy()).reshape(-1)
        return cls(head, pixels, json, label)

    @property
    def num_bytes(self) -> int:
        """Of the three parts."""
        return len(self.head) + len(self.pixels) + len(self.json)

    def ppm(self, memory: Memory) -> Bytes:
        """The image as a file, in ``memory``."""
        file = memory(len(self.head) + len(self.pixels))
        file[:HEAD_BYTES] = np.frombuffer(self.head, dtype=np.uint8)
        file[HEAD_BYTES:] = self.pixels
        return file

    def checksum(self) -> int:
        """Return what :func:`checksum` returns for the three parts behind each other.

        >>> white, longer = (torch.zeros(3, n, 1000, dtype=torch.uint8) for n in (2, 3))
        >>> Record.of(white, 7).checksum() == Record.of(longer, 7).checksum()
        False
        """
        return zlib.crc32(self.json, checksum(self.head, self.pixels, len(self.pixels)))


def checksum(head: bytes, rest: Bytes, num_pixels: int) -> int:
    """Return a CRC of 32 bits: of the sums of each 4 KiB of pixels, and of everything else.

    It takes a tenth of the time of a CRC of everything. It tells a page that is missing, of another
    record or in another place, and any change within 8 bytes.

    Args:
        head: bytes before the pixels.
        rest: pixels, and what follows them.
        num_pixels: length of the pixels in bytes.
    """
    num_pages = num_pixels // _PAGE
    end = num_pages * _PAGE
    pages = rest[:end].view(np.uint64).reshape(num_pages, _PAGE // 8)
    sums = np.add.reduce(pages, axis=1).astype(_LITTLE_ENDIAN, copy=False)
    return zlib.crc32(rest[end:].data, zlib.crc32(sums, zlib.crc32(head)))


def _json_of(target: Any) -> bytes:
    """The target as JSON; empty if it has no form."""
    try:
        return typed_json.write(typed_json.encode(_with_bits(target))).encode()
    except TypeError:
        return b""


def target_in(json: bytes) -> Any:
    """The target of a record, made anew at each call; ``json`` is not empty."""
    target, bits = typed_json.decode(typed_json.parse(json))
    for name, (shape, data) in bits.items():
        packed = np.frombuffer(zlib.decompress(data), dtype=np.uint8)
        masks = np.unpackbits(packed, count=math.prod(shape))
        target[name] = torch.from_numpy(masks).view(shape)
    return target


def _with_bits(target: Any) -> list[Any]:
    """A target, and its masks: name, shape and compressed bits of each.

    Masks are mostly larger than the pixels. As compressed bits they are some kilobytes, and are
    there again in an eighth of the time in which they are drawn from their outlines.
    """
    if type(target) is not dict:
        return [target, {}]
    masks = {name: value.cpu() for name, value in target.items() if _are_masks(value)}
    bits = {
        name: (list(value.shape), zlib.compress(np.packbits(value.numpy()).tobytes(), 1))
        for name, value in masks.items()
    }
    return [{**target, **dict.fromkeys(masks)}, bits]


def _are_masks(value: Any) -> bool:
    return (
        type(value) is torch.Tensor
        and value.dtype is torch.uint8
        and value.layout is torch.strided
        and value.numel() >= _SMALLEST_MASKS
        and int(value.max()) <= 1
    )

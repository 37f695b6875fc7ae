"""RecordStore: records by index, in a folder shared by many processes.

The folder has segments, files to which one process each appends. A record is a prepared image: a
binary PPM, then the target as JSON. A class number is kept in the index instead.
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
"""The fields of an :class:`Entry`; their checksum follows."""
_CHECKSUM = struct.Struct("<I")
ENTRY_BYTES = _ENTRY.size + _CHECKSUM.size
_OPEN_FILES = 256
INDEX_FILE = "index.bin"
"""An entry for each index; zeros for missing entries."""


class Entry(NamedTuple):
    """Index entry of a record; each number is below 2**32."""

    segment: int
    checksum: int
    offset: int
    """Offset of the record in its segment in bytes."""
    num_bytes: int
    """Size of the record in bytes."""
    json_bytes: int
    """Size of the target at the record's end in bytes."""
    json_checksum: int
    """Checksum of the target's bytes."""
    height: int
    """Height of the original image in pixels."""
    width: int
    """Width of the original image in pixels."""
    label: int | None = None
    """The target, if it is a class number; the record then has no JSON."""


_LABEL = (1 << 32) - 1
"""Value of ``json_bytes`` for a label, which then replaces the JSON's checksum."""


class RecordStore:
    """Records, each stored once under an index, and returned intact or not at all.

    The index file has an entry of 36 bytes for each index, which is written after the record. Both
    have a checksum, compared at each read. So after a crash or on a full disk, a record is either
    intact or missing.

    Nothing waits for another process or, until the page cache is full, for the disk.

    Args:
        key: identifies the store; entries with another key are invalid.
        segment_bytes: largest size of a segment, and so of a record.
        max_segments: largest number of segments; None is unlimited.
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
        """Return a record in ``memory``: the PPM, then the JSON if it has any.

        A damaged record gives None and a warning.
        """
        record = self._read(index, entry, memory(entry.num_bytes), entry.offset)
        if record is None:
            return None
        head, rest = record[:HEAD_BYTES].tobytes(), record[HEAD_BYTES:]
        if checksum(head, rest, len(rest) - entry.json_bytes) == entry.checksum:
            return record
        self._tell_of_damage(index, entry, "its checksum differs")
        return None

    def json(self, index: int, entry: Entry) -> bytes | None:
        """Return a record's target as :meth:`record` does, without reading the pixels."""
        if not entry.json_bytes:
            return b""
        offset = entry.offset + entry.num_bytes - entry.json_bytes
        read = self._read(index, entry, new_memory(entry.json_bytes), offset)
        if read is None:
            return None
        json = read.tobytes()
        if zlib.crc32(json) == entry.json_checksum:
            return json
        self._tell_of_damage(index, entry, "the checksum of its target differs")
        return None

    def put(self, index: int, record: Record, original: Size) -> bool:
        """Store a record and the size of its original image; return whether it is stored.

        It is not stored if no segment has room. If the folder cannot be written, this process warns
        once and stores nothing more.
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
                "no more images are kept in %r: %s. Training goes on without keeping more. Remedy: "
                "make room, or give max_bytes",
                os.path.dirname(self._index_path),
                error,
            )
            return False
        return True

    def entry(self, index: int) -> Entry | None:
        """Return the index's entry for a record; None if nothing is stored."""
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
        """Fill ``memory`` from an offset in a record's segment; return None if that fails."""
        try:
            self._files.fill(self._segments.path(entry.segment), offset, [memory.data])
        except (OSError, ValueError) as error:
            self._tell_of_damage(index, entry, str(error))
            return None
        return memory

    def _tell_of_damage(self, index: int, entry: Entry, what: str) -> None:
        logger.warning(
            "prepared record %d, %d bytes at byte %d of %r, is damaged and is made again: %s",
            index,
            entry.num_bytes,
            entry.offset,
            self._segments.path(entry.segment),
            what,
        )

    def _checksum(self, index: int, fields: bytes) -> bytes:
        return _CHECKSUM.pack(zlib.crc32(b"%s %d %s" % (self._key, index, fields)))

    def _index_file(self) -> int:
        """Return the descriptor of the index file, which forked children share."""
        if self._index is None:
            try:
                self._index = KeptFile(self._index_path, os.O_RDWR, self._owners)
            except OSError:  # a read-only folder
                self._index = KeptFile(self._index_path, os.O_RDONLY, self._owners)
        return self._index.number

    def __reduce__(self) -> tuple[object, ...]:
        return _store, self._given


def _store(folder: Path, key: bytes, segment_bytes: int, max_segments: int | None) -> RecordStore:
    return RecordStore(folder, key=key, segment_bytes=segment_bytes, max_segments=max_segments)


_TRIES_APART = 100
"""Number of appends that are skipped after no segment had room, before the next attempt."""


class Segments:
    """Numbered files of at most ``segment_bytes``; a process holds one of them to append to.

    The process locks its file. The lock ends with the process, and the next process appends after
    the existing bytes.

    Args:
        segment_bytes: largest size of a file.
        limit: largest number of files; None is unlimited.
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
        return f"{self._prefix}{number:06d}.bin"

    def append(self, record: Record) -> tuple[int, int] | None:
        """Append a record to this process's segment.

        Returns: the segment's number and the offset in bytes; None if no segment has room.

        Raises:
            OSError: the disk is full, the folder cannot be written or does not support locks, or a
                file in it is not trusted.
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
        """Hold the first segment that has room and that no other process holds."""
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
        """Release the segment; called in a forked child, whose parent owns the segment."""
        self._held = None
        self._lock = threading.Lock()


class _Held:
    """An open segment, locked unless another process holds it."""

    def __init__(self, number: int, path: str, owners: Owners) -> None:
        self.number = number
        self.file = KeptFile(path, os.O_RDWR | os.O_CREAT, owners)
        try:
            fcntl.flock(self.file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.is_locked = True
        except BlockingIOError:
            self.is_locked = False


HEAD_BYTES = 32
"""Number of bytes before the pixels."""
_PAGE = 4096
_LITTLE_ENDIAN = np.dtype("<u8")
_SMALLEST_MASKS = 4096
"""Smallest size in bytes of a tensor that is stored as bits."""


@dataclass(frozen=True, slots=True)
class Record:
    """An image and its target, in three consecutive parts.

    >>> record = Record.of(torch.zeros(3, 2, 4, dtype=torch.uint8), "cat")
    >>> record.head, record.num_bytes, record.json
    (b'P6\\n4 2                     \\n255\\n', 67, b'["cat", {}]')
    """

    head: bytes
    """Header of a PPM, :data:`HEAD_BYTES` long."""
    pixels: Bytes
    """uint8 [height * width * 3], interleaved."""
    json: bytes
    """The target in typed JSON, masks as bits; empty if the target is the label, cannot be written
    as JSON, or would be larger than the pixels."""
    label: int | None = None
    """The target, if it is a class number: an int from 0 to 2**32 - 1."""

    @classmethod
    def of(cls, image: torch.Tensor, target: Any) -> Record:
        """Return the record of an image; it shares the image's memory if that is interleaved.

        Args:
            image: uint8 [3, height, width] on the CPU, with any strides.
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
        return len(self.head) + len(self.pixels) + len(self.json)

    def ppm(self, memory: Memory) -> Bytes:
        file = memory(len(self.head) + len(self.pixels))
        file[:HEAD_BYTES] = np.frombuffer(self.head, dtype=np.uint8)
        file[HEAD_BYTES:] = self.pixels
        return file

    def checksum(self) -> int:
        """Return the :func:`checksum` of the three parts, concatenated.

        >>> white, longer = (torch.zeros(3, n, 1000, dtype=torch.uint8) for n in (2, 3))
        >>> Record.of(white, 7).checksum() == Record.of(longer, 7).checksum()
        False
        """
        return zlib.crc32(self.json, checksum(self.head, self.pixels, len(self.pixels)))


def checksum(head: bytes, rest: Bytes, num_pixels: int) -> int:
    """Return a 32-bit CRC over the sums of each 4 KiB of pixels, and over everything else.

    It takes a tenth of a full CRC's time. It detects a wrong or misplaced page, and any change
    within 8 bytes.

    Args:
        head: bytes before the pixels.
        rest: pixels, and the bytes after them.
        num_pixels: size of the pixels in bytes.
    """
    num_pages = num_pixels // _PAGE
    end = num_pages * _PAGE
    pages = rest[:end].view(np.uint64).reshape(num_pages, _PAGE // 8)
    sums = np.add.reduce(pages, axis=1).astype(_LITTLE_ENDIAN, copy=False)
    return zlib.crc32(rest[end:].data, zlib.crc32(sums, zlib.crc32(head)))


def _json_of(target: Any) -> bytes:
    """Return the target as JSON; empty if it cannot be written as JSON."""
    try:
        return typed_json.write(typed_json.encode(_with_bits(target))).encode()
    except TypeError:
        return b""


def target_in(json: bytes) -> Any:
    """Return the target of a record, as a new object; ``json`` is not empty."""
    target, bits = typed_json.decode(typed_json.parse(json))
    for name, (shape, data) in bits.items():
        packed = np.frombuffer(zlib.decompress(data), dtype=np.uint8)
        masks = np.unpackbits(packed, count=math.prod(shape))
        target[name] = torch.from_numpy(masks).view(shape)
    return target


def _with_bits(target: Any) -> list[Any]:
    """Return a target without its masks, and name, shape and compressed bits of each mask.

    Compressed bits of masks take some kilobytes, and an eighth of the time of drawing outlines.
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

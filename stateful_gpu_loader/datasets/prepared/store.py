"""RecordStore: bytes by index, in a folder that many processes fill and read at the same time."""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stateful_gpu_loader.datasets.prepared.segments import Segments
from stateful_gpu_loader.datasets.storage.descriptor import Descriptor
from stateful_gpu_loader.datasets.storage.memory import Bytes
from stateful_gpu_loader.datasets.storage.open_files import OpenFiles

logger = logging.getLogger(__name__)

_ENTRY = struct.Struct("<IIQQ4x")
"""Segment, checksum of the record, its offset and size in bytes; a checksum of these follows."""
_CHECKSUM = struct.Struct("<I")
ENTRY_BYTES = _ENTRY.size + _CHECKSUM.size
_OPEN_FILES = 256
_PAGE = 4096
INDEX_FILE = "index.bin"
"""An entry for each index; zeros where none was written."""


def checksum_of(record: Bytes) -> int:
    """A checksum of 32 bits: a CRC of the sums of each 4 KiB, a tenth of the time of a CRC of all.

    It tells a page that is missing, of another record or in another place, and any change within
    8 bytes.

    Args:
        record: uint8 [num_bytes], contiguous.

    >>> checksum_of(np.zeros(5000, dtype=np.uint8)) == checksum_of(np.zeros(5001, dtype=np.uint8))
    False
    """
    whole = len(record) - len(record) % _PAGE
    sums = record[:whole].view(np.uint64).reshape(-1, _PAGE // 8).sum(axis=1)
    return zlib.crc32(record[whole:].data, zlib.crc32(sums.astype("<u8").data))


class RecordStore:
    """Records of bytes, each stored once under an index, and found again or not at all.

    An index file has an entry of 32 bytes for each index, which is written when the record lies in
    its segment. An entry has a checksum, so that one that was half written is none, and the record
    has another: whatever a crash, a full disk or a damaged file leaves, a record comes back as it
    was put or is missing. Both are compared at each reading.

    Nothing here waits for the disk, and no process waits for another one.

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
        self._segments = Segments(folder, segment_bytes=segment_bytes, limit=max_segments)
        self._files = OpenFiles(limit=_OPEN_FILES)
        self._is_closed = False
        self._index: Descriptor | None = None

    def has(self, index: int) -> bool:
        """Whether a record is stored, as its entry says; the record itself is not read."""
        return self._entry(index) is not None

    def get(self, index: int) -> Bytes | None:
        """The record, uint8 [num_bytes], or None where none is stored, or a damaged one."""
        entry = self._entry(index)
        if entry is None:
            return None
        segment, checksum, offset, size = entry
        path = self._segments.path(segment)
        try:
            record = self._files.read(path, offset, size)
            if checksum_of(record) == checksum:
                return record
            what = f"{size} bytes at byte {offset} fail their checksum"
        except (OSError, ValueError) as error:
            what = str(error)
        logger.warning(
            "prepared record %d of %r is damaged and is made anew: %s", index, path, what
        )
        return None

    def fetch_ahead(self, indices: Sequence[int]) -> None:
        """Say that the records of these, where they are stored, are read next."""
        entries = [entry for index in indices if (entry := self._entry(index)) is not None]
        self._files.fetch_ahead(
            (self._segments.path(segment), offset, size) for segment, _, offset, size in entries
        )

    def put(self, index: int, record: Bytes) -> bool:
        """Store a record; return whether it is stored.

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
            fields = _ENTRY.pack(segment, checksum_of(record), offset, len(record))
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

    def _entry(self, index: int) -> tuple[int, int, int, int] | None:
        """Segment, checksum, offset and size of a record that is stored."""
        try:
            entry = os.pread(self._index_file(), ENTRY_BYTES, ENTRY_BYTES * index)
        except OSError:
            return None
        fields = entry[: _ENTRY.size]
        if entry[_ENTRY.size :] != self._checksum(index, fields):
            return None
        segment, checksum, offset, size = _ENTRY.unpack(fields)
        return segment, checksum, offset, size

    def _checksum(self, index: int, fields: bytes) -> bytes:
        return _CHECKSUM.pack(zlib.crc32(b"%s %d %s" % (self._key, index, fields)))

    def _index_file(self) -> int:
        """The descriptor of the index file, which forked children share."""
        if self._index is None:
            try:
                self._index = Descriptor(self._index_path, os.O_RDWR)
            except OSError:  # a folder that can be read alone
                self._index = Descriptor(self._index_path, os.O_RDONLY)
        return self._index.number

    def __reduce__(self) -> tuple[object, ...]:
        return _store, self._given


def _store(folder: Path, key: bytes, segment_bytes: int, max_segments: int | None) -> RecordStore:
    return RecordStore(folder, key=key, segment_bytes=segment_bytes, max_segments=max_segments)

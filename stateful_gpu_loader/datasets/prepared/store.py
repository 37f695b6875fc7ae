"""RecordStore: records by index, in a folder that many processes fill and read at the same time."""

from __future__ import annotations

import logging
import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from stateful_gpu_loader.datasets.prepared.record import Record
from stateful_gpu_loader.datasets.prepared.segments import Segments
from stateful_gpu_loader.datasets.source import Size
from stateful_gpu_loader.datasets.storage.kept_files import KeptFile, owners_for_folder
from stateful_gpu_loader.datasets.storage.memory import Bytes, Memory, new_memory
from stateful_gpu_loader.datasets.storage.open_files import OpenFiles

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

    def record(self, index: int, entry: Entry, memory: Memory) -> tuple[Bytes, Record] | None:
        """The bytes of a record, in ``memory``, and the record, which shares them.

        None, and a warning, where it is damaged.
        """
        joined = self._read(index, entry, memory(entry.num_bytes), entry.offset)
        if joined is None:
            return None
        record = Record.taken_apart(joined, entry.json_bytes)
        if record.checksum() == entry.checksum:
            return joined, record
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
            target = len(record.json), zlib.crc32(record.json)
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
        return Entry(*_ENTRY.unpack(fields))

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

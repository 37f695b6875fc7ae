"""TFRecord and RecordIO files as bytes, read in the three ways that each format has."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np

from stateful_gpu_loader.datasets.framed import Framing, Place
from stateful_gpu_loader.datasets.recordio import RecordIOFraming
from stateful_gpu_loader.datasets.storage.memory import Bytes
from stateful_gpu_loader.datasets.tfrecord import TFRecordFraming

START = Place("a.file", 0, 0)


@dataclass(frozen=True)
class Frames:
    """The framing of a file of bytes."""

    framing: Framing

    def streamed(self, file: bytes) -> list[tuple[bytes, int]]:
        """Return each payload, and the offset at which its record ends."""
        found = self.framing.stream(io.BytesIO(file), START)
        return [(bytes(payload), end) for payload, end in found]

    def walked(self, file: bytes, window: int = 1) -> list[int]:
        """Return the offsets at which records begin, and the end of the last record."""

        def read(offset: int, size: int) -> Bytes:
            assert offset >= 0
            assert offset + size <= len(file)
            return array_of(file[offset : offset + size])

        return self.framing.walk(START.path, len(file), read, window=window).tolist()

    def unframed(self, framed: bytes) -> bytes:
        """Return the payload of one record."""
        return bytes(self.framing.payload(array_of(framed), START))


TFRECORD = Frames(TFRecordFraming())
UNCHECKED_TFRECORD = Frames(TFRecordFraming(check_crc=False))
RECORDIO = Frames(RecordIOFraming())


def array_of(data: bytes) -> Bytes:
    return np.frombuffer(bytearray(data), dtype=np.uint8)

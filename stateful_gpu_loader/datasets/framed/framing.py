"""Framing: how records that carry their own lengths follow each other in a file.

:class:`Framing` and :class:`ImageRecords` are what a format defines; the rest serves all formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.datasets.damage import REMEDY, damaged
from stateful_gpu_loader.datasets.storage.streams import damage_errors

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Read = Callable[[int, int], Bytes]
"""Of an offset and a size: the bytes there; ValueError where the file ends before."""

_LARGEST_STEP = 1 << 26
"""Bytes that are reserved at once for a record, whose length may be damaged."""
_LARGEST_WINDOW = 1 << 23
"""Bytes that :class:`Lookahead` reads at once."""


class Place(NamedTuple):
    """Where a record lies, for error messages."""

    path: str
    record: int | None
    """Its number in the file, counted from 0; None where records before it were not counted."""
    offset: int
    """In bytes from the beginning of the file's (decompressed) content."""
    remedy: str = REMEDY
    """Remedy for a damaged record."""

    def damaged(self, what: str, remedy: str | None = None) -> ValueError:
        """The ValueError of a record that will be malformed at every retry."""
        remedy = remedy or self.remedy
        return damaged(self.path, what, record=self.record, offset=self.offset, remedy=remedy)


class Framing(Protocol):
    """What a format of framed records defines."""

    @property
    def kind(self) -> str:
        """Name and version of its index."""

    @property
    def header_size(self) -> int:
        """Bytes at the beginning of a record that hold its length."""

    def walk(self, path: str, size: int, read: Read, *, window: int) -> Offsets:
        """int64 [n + 1]: where each record begins, and where the last one ends.

        Args:
            path: for errors.
            size: of the file, in bytes.
            read: reads it.
            window: the least number of bytes that are read at a time.

        Raises:
            ValueError: the file is not whole records from its beginning to its end.
        """

    def check_extent(self, header: bytes, size: int, place: Place) -> None:
        """Raises ValueError if the header is not that of a record of ``size`` bytes in all."""

    def payload(self, framed: Bytes, place: Place) -> Bytes:
        """uint8 [n]: what the whole record holds, checked; a view where it can be.

        Raises:
            ValueError: it is not exactly one whole record.
        """

    def stream(self, stream: IO[bytes], place: Place) -> Iterator[tuple[Bytes, int]]:
        """The payload of each record, and the offset after it.

        Args:
            stream: stands at the beginning of a record.
            place: where that is.

        Raises:
            ValueError: the bytes from here on are no whole record; those before have come.
            OSError: the stream cannot be read.
        """


class ImageRecords(Protocol):
    """What a format makes of the bytes of a record; its ``repr`` is part of fingerprints."""

    def take(self, payload: Bytes, place: Place, number: int) -> tuple[torch.Tensor, Any]:
        """The encoded image, uint8 [num_bytes], and the target.

        Args:
            payload: the record, as ``Framing.payload`` gives it.
            place: where it lies.
            number: the target where no field is asked for.

        Raises:
            ValueError: the record is malformed, or lacks what is asked for.
        """

    def record(self, payload: Bytes, place: Place) -> dict[str, Any]:
        """All that the record holds, by name.

        Raises:
            ValueError: the record is malformed.
        """


def read_up_to(stream: IO[bytes], size: int, place: Place) -> Bytes:
    """uint8 [size], or fewer at the stream's end.

    Raises:
        OSError: the storage failed.
        ValueError: the compressed bytes are damaged.

    >>> import io
    >>> bytes(read_up_to(io.BytesIO(b"abc"), 5, Place("a.gz", None, 0)))
    b'abc'
    """
    # A damaged length may be anything, so memory is reserved as bytes come.
    data = np.empty(min(size, _LARGEST_STEP), dtype=np.uint8)
    done = 0
    while done < size:
        if done == len(data):
            data = np.concatenate([data, np.empty(min(size - done, done), dtype=np.uint8)])
        try:
            got: int = stream.readinto(data[done:])  # type: ignore[attr-defined]
        except damage_errors() as error:
            raise place.damaged(
                f"its compressed bytes are damaged ({type(error).__name__}: {error})"
            ) from error
        if not got:
            return data[:done]
        done += got
    return data


class Lookahead:
    """Reads small pieces of a file in ascending order, in windows of a size that suits.

    Pieces that are near each other are read together; what lies between far ones is skipped.

    Args:
        read: reads the file.
        end: of the file, in bytes.
        window: the smallest that is read at a time; it grows where it holds many pieces.

    >>> import numpy as np
    >>> file = np.arange(100, dtype=np.uint8)
    >>> pieces = Lookahead(lambda offset, size: file[offset : offset + size], 100, window=10)
    >>> pieces.at(3, 2), pieces.at(97, 3)
    (b'\\x03\\x04', b'abc')
    """

    def __init__(self, read: Read, end: int, *, window: int) -> None:
        self._read = read
        self._end = end
        self._smallest = window
        self._window_size = window
        self._window = b""
        self._start = 0
        self._served = 0

    def at(self, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset``, which is not before that of the call before.

        Raises:
            OSError: the storage failed.
            ValueError: the file ends before.
        """
        start = offset - self._start
        if start + size > len(self._window):
            self._refill(offset, size)
            start = 0
        self._served += 1
        return self._window[start : start + size]

    def _refill(self, offset: int, size: int) -> None:
        if self._served > 1:
            self._window_size = min(self._window_size * 4, _LARGEST_WINDOW)
        else:
            self._window_size = max(self._window_size // 4, self._smallest)
        length = max(size, min(self._window_size, self._end - offset))
        self._window = self._read(offset, length).tobytes()
        self._start = offset
        self._served = 0

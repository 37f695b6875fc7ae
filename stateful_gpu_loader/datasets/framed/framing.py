"""Framing: how records that carry their own lengths follow each other in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.damage import damaged
from stateful_gpu_loader.datasets.storage.streams import damage_errors

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Read = Callable[[int, int], Bytes]
"""The bytes at an offset, so many; ValueError where the file ends before."""

_LARGEST_STEP = 1 << 26


class Place(NamedTuple):
    """Where a record lies, for error messages."""

    path: str
    record: int | None
    """Its number in the file, counted from 0; None where records before it were not counted."""
    offset: int
    """In bytes from the beginning of the file's (decompressed) content."""

    def damaged(self, what: str, remedy: str | None = None) -> ValueError:
        """The ValueError of a record that will be malformed at every retry."""
        if remedy is None:
            return damaged(self.path, what, record=self.record, offset=self.offset)
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
            window: at least so many bytes are read at a time.

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
        """The payload of each record, and the offset behind it.

        Args:
            stream: stands at the beginning of a record.
            place: where that is.

        Raises:
            ValueError: the bytes from here on are no whole record; those before have come.
            OSError: the stream cannot be read.
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
    # A length that is damaged may be anything: memory is taken as bytes come.
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

"""A file from its beginning to its end, whole or in pieces, decompressed where its name says so."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from typing import IO, Any, cast

import numpy as np

from stateful_gpu_loader.datasets.storage.memory import Bytes
from stateful_gpu_loader.datasets.storage.paths import is_url, without_query
from stateful_gpu_loader.datasets.storage.remote import open_remote
from stateful_gpu_loader.errors import MissingDependency

COMPRESSED = (".gz", ".tgz", ".zst", ".bz2", ".xz")
"""Endings of names whose files are decompressed: these can be read from the beginning only."""

Read = Callable[[int, int], Bytes]
"""Reads so many bytes from an offset on; raises ValueError if the file ends before."""

_BUFFER = 1 << 20
_CHUNK = 1 << 16
_LARGEST_STEP = 1 << 26
"""Bytes that are reserved at once for a record, whose length may be damaged."""
_LARGEST_WINDOW = 1 << 23
"""Bytes that :class:`Lookahead` reads at once."""
_CORRUPT = "Invalid data stream"


def is_compressed(path: str) -> bool:
    """Whether the file's name says that it is compressed.

    >>> is_compressed("a.tar.gz"), is_compressed("a.tar")
    (True, False)
    """
    return without_query(path).lower().endswith(COMPRESSED)


def open_stream(path: str, offset: int = 0) -> IO[bytes]:
    """The file's content, decompressed, from ``offset`` on, buffered by 1 MiB.

    Args:
        path: local, or a URL.
        offset: in bytes; of a compressed file only 0.

    Raises:
        OSError: it cannot be opened. Reading raises OSError as well, also where a client of remote
            files raises another kind; where compressed bytes are damaged or cut off it raises
            one of :func:`damage_errors`.
        ValueError: an offset in a compressed file.
        MissingDependency: zstandard, or what a URL needs, is not installed.
    """
    ending = without_query(path).lower().rpartition(".")[2]
    if is_compressed(path) and offset:
        raise ValueError(
            f"{path!r} is compressed: it cannot be read from byte {offset} on. Remedy: "
            "decompress it"
        )
    decompressor = _zstandard(path).ZstdDecompressor() if ending == "zst" else None
    raw = open_remote(path, offset) if is_url(path) else _open_local(path, offset)
    if not is_compressed(path):
        return raw
    content: Any
    if ending in ("gz", "tgz"):
        content = gzip.GzipFile(fileobj=raw, mode="rb")
    elif ending == "bz2":
        content = bz2.BZ2File(raw)
    elif ending == "xz":
        content = lzma.LZMAFile(raw)  # noqa: SIM115
    else:
        content = _Zstandard(raw, decompressor)
    return cast("IO[bytes]", io.BufferedReader(_Decompressed(content, raw), _BUFFER))


def damage_errors() -> tuple[type[Exception], ...]:
    """What reading a stream of :func:`open_stream` raises where compressed bytes are damaged."""
    errors = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, CorruptStream)
    try:
        import zstandard
    except ImportError:
        return errors
    return *errors, zstandard.ZstdError


def read_up_to(stream: IO[bytes], size: int) -> Bytes:
    """uint8 [size], in memory of its own, or fewer at the stream's end; raises as reading does.

    >>> bytes(read_up_to(io.BytesIO(b"abc"), 5))
    b'abc'
    """
    # A damaged length may be anything, so memory is reserved as bytes come.
    data = np.empty(min(size, _LARGEST_STEP), dtype=np.uint8)
    done = 0
    while done < size:
        if done == len(data):
            data = np.concatenate([data, np.empty(min(size - done, done), dtype=np.uint8)])
        got: int = stream.readinto(data[done:])  # type: ignore[attr-defined]
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
        largest: the largest window.

    >>> file = np.arange(100, dtype=np.uint8)
    >>> pieces = Lookahead(lambda offset, size: file[offset : offset + size], 100, window=10)
    >>> pieces.at(3, 2), pieces.at(97, 3)
    (b'\\x03\\x04', b'abc')
    """

    def __init__(
        self, read: Read, end: int, *, window: int, largest: int = _LARGEST_WINDOW
    ) -> None:
        self._read = read
        self._largest = largest
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
            self._window_size = min(self._window_size * 4, self._largest)
        else:
            self._window_size = max(self._window_size // 4, self._smallest)
        length = max(size, min(self._window_size, self._end - offset))
        self._window = self._read(offset, length).tobytes()
        self._start = offset
        self._served = 0


class CorruptStream(ValueError):
    """The bytes of a .bz2 file are damaged: the standard library raises a plain OSError there."""


class _Decompressed(io.RawIOBase):
    """Also closes the compressed file, which the standard library's classes leave open."""

    def __init__(self, content: Any, raw: IO[bytes]) -> None:
        self._content = content
        self._raw = raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return int(self._content.readinto(buffer))
        except OSError as error:
            if isinstance(self._content, bz2.BZ2File) and str(error) == _CORRUPT:
                raise CorruptStream(str(error)) from error
            raise

    def close(self) -> None:
        if not self.closed:
            self._content.close()
            self._raw.close()
        super().close()


class _Zstandard:
    """Decompresses frame after frame.

    The package's own reader takes the place where a file was cut off for its end.
    """

    def __init__(self, raw: IO[bytes], decompressor: Any) -> None:
        self._raw = raw
        self._decompressor = decompressor
        self._frame: Any = None
        self._rest = b""
        self._ready = memoryview(b"")

    def readinto(self, buffer: Any) -> int:
        while not self._ready and self._more():
            pass
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _more(self) -> bool:
        """Decompress another chunk; False at the end of the file."""
        chunk = self._rest or self._raw.read(_CHUNK)
        self._rest = b""
        if not chunk:
            if self._frame is not None:
                raise EOFError("the file ends in the middle of a zstandard frame")
            return False
        if self._frame is None:
            self._frame = self._decompressor.decompressobj()
        self._ready = memoryview(self._frame.decompress(chunk))
        if self._frame.eof:
            self._rest = self._frame.unused_data
            self._frame = None
        return True

    def close(self) -> None:
        self._ready = memoryview(b"")


def _open_local(path: str, offset: int) -> IO[bytes]:
    stream = io.BufferedReader(io.FileIO(path), _BUFFER)
    stream.seek(offset)
    return stream


def _zstandard(path: str) -> Any:
    try:
        import zstandard
    except ImportError:
        raise MissingDependency(
            "zstandard", needed_for=f"decompressing {path!r}", extra="tar"
        ) from None
    return zstandard

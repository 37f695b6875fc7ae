"""Sequential reading of a file, decompressed if its name says so."""

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
"""Name endings of compressed files, which can be read only from the beginning."""

Read = Callable[[int, int], Bytes]
"""Reads (offset, size) in bytes; raises ValueError if the file ends too early."""

_BUFFER = 1 << 20
_CHUNK = 1 << 16
_LARGEST_STEP = 1 << 26
"""Maximum number of bytes allocated at once for a record, whose length may be damaged."""
_LARGEST_WINDOW = 1 << 23
"""Maximum number of bytes that :class:`Lookahead` reads at once."""
_CORRUPT = "Invalid data stream"


def is_compressed(path: str) -> bool:
    """Return whether the file's name says that it is compressed.

    >>> is_compressed("a.tar.gz"), is_compressed("a.tar")
    (True, False)
    """
    return without_query(path).lower().endswith(COMPRESSED)


def open_stream(path: str, offset: int = 0) -> IO[bytes]:
    """Return the decompressed content from ``offset`` on, with a buffer of 1 MiB.

    Args:
        path: a local path or a URL.
        offset: in bytes; must be 0 for a compressed file.

    Raises:
        OSError: the file cannot be opened. Reading raises OSError too, even for errors of remote
            clients. Damaged or truncated compressed bytes raise one of :func:`damage_errors`.
        ValueError: a non-zero offset in a compressed file.
        MissingDependency: zstandard, or a package for the URL, is not installed.
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
    """Return the exceptions that :func:`open_stream`'s streams raise for damaged compression."""
    errors = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, CorruptStream)
    try:
        import zstandard
    except ImportError:
        return errors
    return *errors, zstandard.ZstdError


def read_up_to(stream: IO[bytes], size: int) -> Bytes:
    """Return newly allocated uint8 [size], or fewer at the end; raises as the stream does.

    >>> bytes(read_up_to(io.BytesIO(b"abc"), 5))
    b'abc'
    """
    # A damaged length may be huge, so memory grows with the bytes read.
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
    """Reads small pieces of a file in ascending order, in windows of adaptive size.

    Nearby pieces are read together; the bytes between distant pieces are skipped.

    Args:
        end: size of the file in bytes.
        window: smallest window in bytes; it grows while a window serves many pieces.
        largest: largest window in bytes.

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
        """Return ``size`` bytes from ``offset``; offsets must ascend from call to call.

        Raises:
            OSError: the storage failed.
            ValueError: the file ends too early.
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
    """Damaged bytes in a .bz2 file, for which the standard library raises a plain OSError."""


class _Decompressed(io.RawIOBase):
    """A decompressed stream that also closes the compressed file; the standard classes do not."""

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

    zstandard's reader does not notice truncated files.
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
        """Decompress another chunk; return False at the end of the file."""
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

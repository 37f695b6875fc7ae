"""A file from its beginning to its end, decompressed where its name says so."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from typing import IO, Any, cast

from stateful_gpu_loader.errors import MissingDependency
from stateful_gpu_loader.storage.paths import is_url
from stateful_gpu_loader.storage.remote import open_remote

COMPRESSED = (".gz", ".tgz", ".zst", ".bz2", ".xz")
"""Endings of names whose files are decompressed: these can be read from the beginning only."""


_BUFFER = 1 << 20


def is_compressed(path: str) -> bool:
    """Whether the file's name says that it is compressed.

    >>> is_compressed("a.tar.gz"), is_compressed("a.tar")
    (True, False)
    """
    return path.lower().endswith(COMPRESSED)


def open_stream(path: str, offset: int = 0) -> IO[bytes]:
    """The file's content, decompressed, from ``offset`` on.

    Args:
        path: local, or a URL.
        offset: in bytes; of a compressed file only 0.

    Raises:
        OSError: it cannot be opened. Reading raises OSError as well, or EOFError, zlib.error,
            lzma.LZMAError or zstandard.ZstdError where compressed bytes are damaged: see
            :func:`damage_errors`.
        ValueError: an offset in a compressed file.
        MissingDependency: zstandard, or what a URL needs, is not installed.
    """
    ending = path.lower().rpartition(".")[2]
    if is_compressed(path) and offset:
        raise ValueError(f"{path!r} is compressed: it cannot be read from byte {offset} on")
    raw = open_remote(path, offset) if is_url(path) else _open_local(path, offset)
    if ending in ("gz", "tgz"):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw, mode="rb"))
    if ending == "bz2":
        return cast("IO[bytes]", bz2.BZ2File(raw))
    if ending == "xz":
        return cast("IO[bytes]", lzma.LZMAFile(raw))
    if ending == "zst":
        return _zstandard(path).ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    return raw


def _open_local(path: str, offset: int) -> IO[bytes]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.fdopen(descriptor, "rb", _BUFFER)


def damage_errors() -> tuple[type[Exception], ...]:
    """What reading a stream of :func:`open_stream` raises where compressed bytes are damaged."""
    import zlib

    try:
        import zstandard
    except ImportError:
        return EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile
    return EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zstandard.ZstdError


def _zstandard(path: str) -> Any:
    try:
        import zstandard
    except ImportError:
        raise MissingDependency(
            "zstandard", needed_for=f"decompressing {path!r}", extra="tar"
        ) from None
    return zstandard

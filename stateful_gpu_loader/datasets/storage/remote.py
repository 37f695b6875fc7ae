"""Files by URL, through fsspec: the one file that imports it."""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import IO, Any, cast

from stateful_gpu_loader.datasets.storage.background import in_background
from stateful_gpu_loader.errors import MissingDependency

_BUFFER = 1 << 20
_PART = 4 << 20
"""Bytes of a request by a stream, which holds two of them: a rank reads many lanes at a time."""
_REMEMBERED = 256
"""URLs; fsspec itself keeps the file systems."""

_systems: dict[str, tuple[Any, str]] = {}
_owner = os.getpid()
_lock = threading.Lock()


def read_remote(url: str, offset: int, size: int) -> bytes:
    """``size`` bytes from ``offset``, or fewer at the file's end.

    Raises:
        OSError: the file system's failure, of whatever type it was.
        MissingDependency: fsspec, or what it needs for the URL, is not installed.
    """
    system, path = _system_of(url)
    with _as_oserror(url):
        content: bytes = system.cat_file(path, start=offset, end=offset + size) if size else b""
    if len(content) > size:
        raise OSError(
            f"{url!r}: asked for {size} bytes from {offset}, got {len(content)}: the server does "
            "not give ranges. Remedy: copy the file, or use another server"
        )
    return content


def open_remote(url: str, offset: int) -> IO[bytes]:
    """A stream of the file from ``offset`` on; errors as :func:`read_remote`, of reading too."""
    system, path = _system_of(url)
    # Such clients are those of object storage and of web servers, where each request takes long.
    if getattr(system, "async_impl", False):
        first = in_background(lambda: read_remote(url, offset, _PART))
        with _as_oserror(url):
            known = system.info(path)
        if known["size"] is not None and known.get("partial", True):
            ahead = _StreamAhead(url, offset, int(known["size"]), first)
            return cast("IO[bytes]", io.BufferedReader(ahead, _BUFFER))
    with _as_oserror(url):
        file = system.open(path, "rb")
        stream = _RemoteStream(url, file)
        if offset:
            file.seek(offset)
    return cast("IO[bytes]", io.BufferedReader(stream, _BUFFER))


class _StreamAhead(io.RawIOBase):
    """Reads a file in parts, of which the next one is fetched while one is read.

    A part that failed is asked for again by the next read, as are all that follow a failure.

    Args:
        url: of a file whose server gives ranges.
        offset: where to begin.
        size: of the file.
        first: the part from the offset on, as far as the file has it.
    """

    def __init__(self, url: str, offset: int, size: int, first: Future[bytes]) -> None:
        self._url = url
        self._size = size
        self._position = offset
        self._part = memoryview(b"")
        """What is left of the present part."""
        self._next: Future[bytes] | None = first

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._part and self._position < self._size:
            self._part = memoryview(self._fetched())
        count = min(len(buffer), len(self._part))
        buffer[:count], self._part = self._part[:count], self._part[count:]
        self._position += count
        return count

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
        self._next, self._part = None, memoryview(b"")
        super().close()

    def _fetched(self) -> bytes:
        coming = self._next or self._begin(self._position)
        self._next = None
        content = coming.result()
        following = self._position + len(content)
        if len(content) < min(_PART, self._size - self._position):
            raise OSError(
                f"{self._url!r} ends at byte {following} of {self._size}: it was cut off while it "
                "was read. Remedy: leave files unchanged while they are read"
            )
        if following < self._size:
            self._next = self._begin(following)
        return content

    def _begin(self, start: int) -> Future[bytes]:
        return in_background(lambda: read_remote(self._url, start, min(_PART, self._size - start)))


class _RemoteStream(io.RawIOBase):
    """Reads a client's file, and closes it; what the client raises becomes an OSError."""

    def __init__(self, url: str, file: Any) -> None:
        self._url = url
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _as_oserror(self._url):
            content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def glob_remote(pattern: str) -> list[str]:
    """URLs of the files that match, sorted; errors as :func:`read_remote`."""
    system, path = _system_of(pattern)
    with _as_oserror(pattern):
        return sorted(system.unstrip_protocol(found) for found in system.glob(path))


def remote_identity(url: str) -> tuple[int, str]:
    """Size in bytes, and a text that changes with the content where the file system has one."""
    system, path = _system_of(url)
    with _as_oserror(url):
        known = system.info(path)
    marks = (known.get(key) for key in ("ETag", "etag", "mtime", "created", "LastModified"))
    return int(known["size"]), next((str(mark) for mark in marks if mark is not None), "")


def _system_of(url: str) -> tuple[Any, str]:
    """The file system and the path in it; a forked child makes its own."""
    global _owner
    with _lock:
        if _owner != os.getpid():
            _systems.clear()
            _owner = os.getpid()
        if url not in _systems:
            while len(_systems) >= _REMEMBERED:
                _systems.pop(next(iter(_systems)))
            _systems[url] = _open_system(url)
        return _systems[url]


def _open_system(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError:
        raise MissingDependency("fsspec", needed_for=f"reading {url!r}", extra="remote") from None
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        # fsspec says "Install s3fs to access S3", or the like.
        named = re.search(r"[Ii]nstall ([\w.-]+)", str(error))
        raise MissingDependency(
            named[1] if named else str(error),
            needed_for=f"reading {url!r} ({error})",
            extra="remote",
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{url!r} cannot be read: {error}. Remedy: use a protocol that fsspec knows"
        ) from error
    return system, path


@contextmanager
def _as_oserror(url: str) -> Iterator[None]:
    """Turn a client's own exceptions into OSErrors, which the loader retries."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise
        # What clients raise themselves often names no file, or only a part of the URL.
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else OSError
        raise kind(f"{url!r} cannot be read: {error}") from error
    except Exception as error:
        raise OSError(f"{url!r} cannot be read: {type(error).__name__}: {error}") from error


def _forget_lock() -> None:
    """A thread of the parent may have held it when the child was forked."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)

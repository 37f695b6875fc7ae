"""Files by URL, read through fsspec. Only this module imports it.

A request to object storage takes 20 to 100 ms, for any size up to some megabytes. So upcoming
ranges are requested ahead, nearby ones together, and kept until they are read. This affects speed
alone: a range that is missing or failed is read when needed.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import IO, Any, cast

from stateful_gpu_loader.errors import MissingDependency

_BUFFER = 1 << 20
_PART = 4 << 20
"""Bytes of one request of a stream, which holds two."""
_REMEMBERED = 256
"""Number of URLs remembered."""

_systems: dict[str, tuple[Any, str]] = {}
_owner = os.getpid()
_lock = threading.Lock()


def read_remote(url: str, offset: int, size: int) -> bytes:
    """Return ``size`` bytes from ``offset``, or fewer at the end of the file.

    Raises:
        OSError: the file system failed; exceptions of other types are converted.
        MissingDependency: fsspec, or a package it needs for the URL, is not installed.
    """
    system, path = _system_of(url)
    with _as_oserror(url):
        content: bytes = system.cat_file(path, start=offset, end=offset + size) if size else b""
    if len(content) > size:
        raise OSError(
            f"{url!r}: asked for {size} bytes from {offset}, got {len(content)}: the server does "
            "not support ranges. Remedy: copy the file, or use another server"
        )
    return content


def open_remote(url: str, offset: int) -> IO[bytes]:
    """Return a stream from ``offset`` on. Opening and reading raise as :func:`read_remote`."""
    system, path = _system_of(url)
    # Async clients serve object storage and web servers, where each request is slow.
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
    """Reads a file in parts, and fetches the next part meanwhile.

    After a failure the next read requests the part again.

    Args:
        url: URL of a file whose server supports ranges.
        first: the part at ``offset``, cut at the end of the file.
    """

    def __init__(self, url: str, offset: int, size: int, first: Future[bytes]) -> None:
        self._url = url
        self._size = size
        self._position = offset
        self._part = memoryview(b"")
        """Unread rest of the current part."""
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
                f"{self._url!r} ends at byte {following} of {self._size}: it was truncated while "
                "it was read. Remedy: do not change files while they are read"
            )
        if following < self._size:
            self._next = self._begin(following)
        return content

    def _begin(self, start: int) -> Future[bytes]:
        return in_background(lambda: read_remote(self._url, start, min(_PART, self._size - start)))


class _RemoteStream(io.RawIOBase):
    """Reads and closes a client's file; the client's exceptions become OSErrors."""

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
    """Return the sorted URLs of the matching files; raises as :func:`read_remote`."""
    system, path = _system_of(pattern)
    with _as_oserror(pattern):
        return sorted(system.unstrip_protocol(found) for found in system.glob(path))


def remote_identity(url: str) -> tuple[int, str]:
    """Return the size in bytes, and a version mark of the content, empty if there is none."""
    system, path = _system_of(url)
    with _as_oserror(url):
        known = system.info(path)
    marks = (known.get(key) for key in ("ETag", "etag", "mtime", "created", "LastModified"))
    return int(known["size"]), next((str(mark) for mark in marks if mark is not None), "")


def _system_of(url: str) -> tuple[Any, str]:
    """Return the file system and the path in it; a forked child opens its own file system."""
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
        # fsspec says "Install s3fs to access S3" or similar.
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
    """Convert a client's exceptions to OSErrors, which the loader retries."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise
        # Clients' messages often lack the URL.
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else OSError
        raise kind(f"{url!r} cannot be read: {error}") from error
    except Exception as error:
        raise OSError(f"{url!r} cannot be read: {type(error).__name__}: {error}") from error


def _forget_lock() -> None:
    """Replace the lock in a forked child: a thread of the parent may have held it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)


LARGEST_REQUEST = 8 << 20
"""Largest request in bytes that joins several ranges; a longer range is requested alone."""
MOST_BYTES = 2 << 30
"""Maximum number of bytes kept; beyond it the oldest are dropped."""
_GAP = 64 << 10
"""Largest gap in bytes between two ranges that are joined; the gap is fetched as well."""

Range = tuple[str, int, int]
"""URL, first byte, and last byte + 1."""


class ReadAhead:
    """Bytes fetched ahead of their reads; threads share it.

    Args:
        read: reads ``size`` bytes of a URL from an offset on.

    >>> ahead = ReadAhead(read=lambda url, offset, size: b"0123456789"[offset : offset + size])
    >>> ahead.expect([("memory://a", 2, 4), ("memory://a", 5, 7)])
    >>> bytes(ahead.take("memory://a", 5, 2)), ahead.take("memory://a", 5, 2)
    (b'56', None)
    """

    def __init__(
        self,
        most_bytes: int = MOST_BYTES,
        read: Callable[[str, int, int], bytes] = read_remote,
    ) -> None:
        self._most_bytes = most_bytes
        self._read = read
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._ranges: dict[Range, _Part] = {}
        self._parts: OrderedDict[int, _Part] = OrderedDict()
        """Requests by ``id``, oldest first."""
        self.num_bytes = 0
        """Number of bytes kept or being fetched."""

    def has_room(self, num_bytes: int) -> bool:
        """Return whether ``num_bytes`` can be kept while as many are being read."""
        return num_bytes <= self._most_bytes // 2

    def forget(self) -> None:
        """Drop all expected ranges, without waiting for requests in progress."""
        with self._lock:
            for part in list(self._parts.values()):
                self._forget(part)
                part.content.cancel()

    def expect(self, ranges: Iterable[Range]) -> None:
        """Begin to fetch ranges that will each be read once; pending ranges are skipped."""
        with self._lock:
            for part in _joined(sorted({*ranges} - self._ranges.keys())):
                self._ranges.update(dict.fromkeys(part.ranges, part))
                self._parts[id(part)] = part
                self.num_bytes += part.end - part.begin
                part.content = in_background(
                    partial(self._read, part.url, part.begin, part.end - part.begin)
                )
            while self.num_bytes > self._most_bytes:
                oldest = next(iter(self._parts.values()))
                self._forget(oldest)
                oldest.content.cancel()

    def take(self, url: str, offset: int, size: int) -> memoryview | None:
        """Return an expected range, once; None if it was not expected or could not be fetched."""
        key = url, offset, offset + size
        with self._lock:
            part = self._ranges.pop(key, None)
            if part is None:
                return None
            part.ranges.discard(key)
            if not part.ranges:
                self._forget(part)
        try:
            content = part.content.result()
        except Exception:
            return None  # the caller reads it again, and gets a persistent error
        if len(content) < part.end - part.begin:
            return None
        return memoryview(content)[offset - part.begin :][:size]

    def __del__(self) -> None:
        if self._owner != os.getpid():
            return  # a forked child has no requests, and their locks may stay locked
        for part in self._parts.values():
            part.content.cancel()

    def _forget(self, part: _Part) -> None:
        del self._parts[id(part)]
        self.num_bytes -= part.end - part.begin
        for key in part.ranges:
            del self._ranges[key]


@dataclass(eq=False)
class _Part:
    """One request."""

    url: str
    begin: int
    end: int
    ranges: set[Range]
    """Ranges not read yet."""
    content: Future[bytes] = field(default_factory=Future)


def _joined(ranges: list[Range]) -> list[_Part]:
    """Join neighbouring ranges of a sorted list.

    >>> parts = _joined([("a", 0, 5), ("a", 9, 12), ("a", 10**6, 10**7)])
    >>> [(part.begin, part.end) for part in parts]
    [(0, 12), (1000000, 10000000)]
    """
    parts: list[_Part] = []
    for url, begin, end in ranges:
        last = parts[-1] if parts else None
        if (
            last is not None
            and last.url == url
            and begin <= last.end + _GAP
            and max(end, last.end) - last.begin <= LARGEST_REQUEST
        ):
            last.end = max(end, last.end)
            last.ranges.add((url, begin, end))
        else:
            parts.append(_Part(url, begin, end, {(url, begin, end)}))
    return parts


REQUESTS = 64
"""Maximum number of requests in progress in one process."""


class _Background:
    """Daemon threads, started as needed.

    At interpreter exit an executor would wait for queued calls.
    """

    def __init__(self) -> None:
        self._waiting: SimpleQueue[tuple[Future[bytes], Callable[[], bytes]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._num_threads = 0
        self._num_idle = 0

    def submit(self, call: Callable[[], bytes]) -> Future[bytes]:
        future: Future[bytes] = Future()
        self._waiting.put((future, call))
        with self._lock:
            if self._num_idle:
                self._num_idle -= 1
            elif self._num_threads < REQUESTS:
                self._num_threads += 1
                name = f"stateful_gpu_loader fetch {self._num_threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            future, call = self._waiting.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            del future, call  # keep nothing alive while waiting
            with self._lock:
                self._num_idle += 1


_background = _Background()


def in_background(call: Callable[[], bytes]) -> Future[bytes]:
    """Run a call in one of the :data:`REQUESTS` threads that all URLs share."""
    return _background.submit(call)


def _begin_in_child() -> None:
    """Create new threads in a forked child, which has none of its parent's."""
    global _background
    _background = _Background()


os.register_at_fork(after_in_child=_begin_in_child)

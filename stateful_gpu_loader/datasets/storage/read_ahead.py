"""ReadAhead: ranges of files by URL are fetched before they are read, many requests at a time.

A request to object storage takes some 20 to 100 ms, whatever its size up to some megabytes. So what
will be read is asked for ahead, in requests that join what lies together, and kept until it is
read. Nothing depends on it but time: what was not asked for, or failed, is read when it is needed.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from stateful_gpu_loader.datasets.storage.background import in_background
from stateful_gpu_loader.datasets.storage.remote import read_remote

LARGEST_REQUEST = 8 << 20
"""Bytes of a request that joins several ranges; a longer one is asked for as it is."""
MOST_BYTES = 2 << 30
"""Bytes that are kept at a time; of what is more, the oldest is forgotten."""
_GAP = 64 << 10
"""Bytes between two ranges that are read along, where that saves a request."""

Range = tuple[str, int, int]
"""URL, first byte, and the byte behind the last."""


class ReadAhead:
    """Bytes that will be read; threads share it.

    Args:
        most_bytes: that are kept at a time.
        read: reads so many bytes of a URL from an offset on.

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
        """By their identity, the oldest first."""
        self.num_bytes = 0
        """Bytes that are kept, or under way."""

    def has_room(self, num_bytes: int) -> bool:
        """Whether so many bytes can be kept beside as many that are being read."""
        return num_bytes <= self._most_bytes // 2

    def forget(self) -> None:
        """Forget all that was expected; what is under way is not waited for."""
        with self._lock:
            for part in list(self._parts.values()):
                self._forget(part)
                part.content.cancel()

    def expect(self, ranges: Iterable[Range]) -> None:
        """Begin to fetch ranges that will be read, each once; those asked for already are not."""
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
        """Return a range that was expected, once; None if it was not, or could not be fetched."""
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
            return None  # whoever reads it now meets the error, if it is still there
        if len(content) < part.end - part.begin:
            return None
        return memoryview(content)[offset - part.begin :][:size]

    def __del__(self) -> None:
        if self._owner != os.getpid():
            return  # a forked child has none of the requests, and their locks may be held for ever
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
    """What was not read yet."""
    content: Future[bytes] = field(default_factory=Future)


def _joined(ranges: list[Range]) -> list[_Part]:
    """Join ranges in order that lie together.

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

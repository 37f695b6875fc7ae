"""Turns: threads read images one at a time, as long as reading is quick.

Reading a file from the page cache is Python code between short system calls. After each call a
thread waits for Python's lock, so many threads delay each other and the thread that decodes. On a
machine with an H100 and 16 cores, one thread reads 13,000 images a second, and 16 threads read
7,000. Threads that wait for storage, or that work without Python's lock, read more side by side.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stateful_gpu_loader.state.forks import fork_safe

_QUICK = 200e-6
"""Most seconds an image of quick reading. Side by side, threads are hardly faster than this."""
_JUDGED = 0.25
"""Seconds in turns after which the reading is judged. Waiting threads look as rarely."""
_SIDE_BY_SIDE = 256
"""Number of requests that are read side by side after slow reading, before the next turns."""


class Turns:
    """Turns of the threads that share a maker. They change when a batch is read, never what is.

    Args:
        clock: returns seconds.

    >>> turns = Turns()
    >>> with turns.take(num_images=2):
    ...     pass
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        # An exception of a signal handler may leave it locked; that thread can still take it.
        self._lock = fork_safe(threading.RLock())
        self._left = 0
        """Number of requests still to be read without a turn; threads may miscount it."""
        self._beside: set[object] = set()
        """Requests that are being read without a turn."""
        self._slow_at = float("inf")
        """Moment from which on the present turn is slow."""
        self._seconds = 0.0
        """Time of the turns that are not judged yet."""
        self._images = 0
        """Number of images read in that time."""

    def __reduce__(self) -> Any:
        # Another process that receives the maker has threads of its own.
        return Turns, ()

    @contextmanager
    def take(self, num_images: int) -> Iterator[None]:
        """Wait for a turn to read one request; after slow reading, go on without one."""
        if self._wait():
            try:
                yield from self._read(num_images)
            finally:
                self._lock.release()
            return
        request = object()
        self._beside.add(request)
        try:
            yield
        finally:
            self._beside.discard(request)

    def _wait(self) -> bool:
        """Wait for the lock; return False if the request is to be read without it."""
        while self._left <= 0:
            if self._lock.acquire(timeout=_JUDGED):
                return True
            if self._clock() > self._slow_at:
                self._left = _SIDE_BY_SIDE
        self._left -= 1
        return False

    def _read(self, num_images: int) -> Iterator[None]:
        """Let the request be read, and judge the reading."""
        # Reads beside the turn would delay it.
        is_alone = not self._beside
        started = self._clock()
        self._slow_at = started + max(_JUDGED, num_images * _QUICK)
        yield
        if not is_alone:
            return
        self._seconds += self._clock() - started
        self._images += num_images
        if self._seconds >= _JUDGED:
            if self._seconds > self._images * _QUICK:
                self._left = _SIDE_BY_SIDE
            self._seconds, self._images = 0.0, 0

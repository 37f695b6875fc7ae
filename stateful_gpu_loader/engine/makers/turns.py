"""Turns: threads read images one at a time, as long as reading is quick.

Reading a file from the page cache is Python code between short system calls, after each of which a
thread waits for the GIL. On a machine with an H100 and 16 cores, one thread reads 21,000 images a
second, and 16 threads read 7,000. Threads that wait for storage read more side by side.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stateful_gpu_loader.state.forks import fork_safe

_QUICK = 200e-6
"""Most seconds an image of quick reading."""
_JUDGED = 0.25
"""Seconds in turns after which the reading is judged."""
_BESIDE = 80
"""Length of the reading side by side, as a multiple of the time after which a turn is slow.

The ratio bounds what turns cost on storage that is always slow.
"""


class Turns:
    """Turns of the threads that share a maker, which change only the time of reading.

    Args:
        clock: returns seconds.

    >>> turns = Turns()
    >>> with turns.take(num_images=2):
    ...     pass
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        # Re-entrant, because a signal handler's exception may leave it locked.
        self._lock = fork_safe(threading.RLock())
        self._slow_at = math.inf
        """Moment from which on the present turn is slow; infinite between turns."""
        self._beside_until = -math.inf
        """Moment until which requests are read without a turn."""
        self._beside: dict[object, float] = {}
        """Requests being read without a turn, each with its beginning."""
        self._seconds = 0.0
        """Time of the turns that are not judged yet."""
        self._images = 0
        """Number of images read in that time."""

    def __reduce__(self) -> Any:
        # Another process has its own threads.
        return Turns, ()

    @contextmanager
    def take(self, num_images: int) -> Iterator[None]:
        """Wait for a turn to read one request; after slow reading, go on without one."""
        # The first turn after reading side by side takes longer.
        most = max(_JUDGED, 2 * num_images * _QUICK)
        if self._wait(most):
            try:
                yield from self._read(num_images, most)
            finally:
                self._slow_at = math.inf
                self._lock.release()
            return
        request = object()
        self._beside[request] = self._clock()
        try:
            yield
        finally:
            del self._beside[request]

    def _wait(self, most: float) -> bool:
        """Wait for the lock; return False to read the request without it.

        Args:
            most: seconds after which a turn with the request is slow.
        """
        while (now := self._clock()) >= self._beside_until:
            if self._lock.acquire(timeout=min(max(0.0, self._slow_at - now), most)):
                return True
            if (now := self._clock()) >= self._slow_at:
                self._beside_until = now + _BESIDE * most
        return False

    def _read(self, num_images: int, most: float) -> Iterator[None]:
        """Let the request be read, and judge the reading."""
        started = self._clock()
        self._slow_at = started + most
        is_alone = self._is_alone(started, most)
        yield
        if not is_alone:
            return
        self._seconds += self._clock() - started
        self._images += num_images
        if self._seconds >= _JUDGED:
            if self._seconds > self._images * _QUICK:
                self._beside_until = self._clock() + _BESIDE * most
            self._seconds, self._images = 0.0, 0

    def _is_alone(self, now: float, most: float) -> bool:
        """Whether no request is read beside the turn, which would delay it.

        A request that may hang does not count.
        """
        return all(began + _BESIDE * most <= now for began in list(self._beside.values()))

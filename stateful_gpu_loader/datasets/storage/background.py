"""Requests to remote files that are made in the background, in threads that all files share."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

REQUESTS = 64
"""Requests under way at a time, in one process."""


class _Background:
    """Threads that are begun as they are needed, and end with the process without being waited for.

    An executor's threads would be waited for at the interpreter's exit, with all that is queued.
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
    """Begin a call in one of the :data:`REQUESTS` threads that all files by URL share."""
    return _background.submit(call)


def _begin_anew() -> None:
    """A forked child has none of its parent's threads."""
    global _background
    _background = _Background()


os.register_at_fork(after_in_child=_begin_anew)

"""Stage: the one thread that finishes batches on a device."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from stateful_gpu_loader.engine.device.nested import tensors_of
from stateful_gpu_loader.engine.device.place import Place
from stateful_gpu_loader.engine.pipelines.intraop import limit_this_thread

_JOIN_SECONDS = 5.0


class Task:
    """One batch that the stage is asked for."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make: Callable[[], Any] | None = make
        self._done = threading.Event()
        self._result: Any = None
        self._mark: Any = None
        self._error: BaseException | None = None

    def run(self, place: Place) -> None:
        """In the stage's thread, unless it was cancelled."""
        make, self._make = self._make, None
        if make is None:
            return
        try:
            with place.working(), torch.no_grad():
                self._result = make()
                self._mark = place.mark()
        except BaseException as error:
            # Whatever it is, somebody waits for this batch.
            self._error = error
        self._done.set()

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self._make = self._result = self._error = None

    def wait(self, timeout: float) -> bool:
        """Whether it is done, after at most so many seconds; 0 waits for ever."""
        return self._done.wait(timeout or None)

    def take(self, place: Place) -> Any:
        """The finished batch, safe to be used by the calling thread's work on the device.

        Raises:
            BaseException: what the making of it raised.
        """
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del self, error  # the traceback holds this frame
        result, self._result = self._result, None
        place.receive(self._mark, tensors_of(result))
        return result


class Stage:
    """Finishes batches one after the other, in a thread of its own, on a private stream.

    The thread begins with the first task and lives as long as the stage. Tasks of several passes
    of one loader follow each other.

    Args:
        place: the device; used by nobody else.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.is_abandoned = False
        """Whether its thread hangs: whoever goes on needs another stage."""
        self._queue = _Queue()
        self._owner = 0
        self._end: weakref.finalize[..., Any] | None = None
        self._lock = threading.RLock()

    def submit(self, make: Callable[[], Any]) -> Task:
        """Have a batch made; ``make`` runs in the stage's thread, and may raise."""
        task = Task(make)
        with self._lock:
            if self._owner != os.getpid():
                self._begin()
            self._queue.put(task)
        return task

    def pause(self) -> None:
        """Wait until nothing is under way, a few seconds at most: a process is about to fork."""
        if self._owner == os.getpid():
            self.submit(_nothing).wait(_JOIN_SECONDS)

    def abandon(self) -> None:
        """Its thread hangs, and nothing can end it: nobody waits for it any more."""
        self.is_abandoned = True
        if self._end is not None:
            self._end.detach()
        self._queue.close()

    def _begin(self) -> None:
        """A forked child has the object, and not the thread."""
        queue, owner = _Queue(), os.getpid()
        thread = threading.Thread(
            target=_work,
            args=(self.place, queue),
            name="stateful_gpu_loader device stage",
            daemon=True,
        )
        thread.start()
        self._end = weakref.finalize(self, _end_thread, queue, thread, owner)
        self._queue, self._owner = queue, owner


class _Queue:
    """Knows nothing of the stage, so that its thread does not keep that alive."""

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()
        # Re-entrant: the garbage collector may end a stage while its lock is held.
        self._changed = threading.Condition(threading.RLock())
        self._closed = False

    def put(self, task: Task) -> None:
        with self._changed:
            self._tasks.append(task)
            self._changed.notify()

    def take(self) -> Task | None:
        with self._changed:
            while not (self._tasks or self._closed):
                self._changed.wait()
            return None if self._closed else self._tasks.popleft()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            while self._tasks:
                self._tasks.popleft().cancel()
            self._changed.notify_all()


def _nothing() -> None:
    """A task that is done as soon as those before it are."""


def _work(place: Place, queue: _Queue) -> None:
    limit_this_thread()
    while (task := queue.take()) is not None:
        task.run(place)
        del task  # a waiting thread holds no batch


def _end_thread(queue: _Queue, thread: threading.Thread, pid: int) -> None:
    """A thread that outlasts the timeout is abandoned: nothing can end it."""
    if os.getpid() != pid:
        return
    queue.close()
    if threading.current_thread() is not thread:
        thread.join(_JOIN_SECONDS)

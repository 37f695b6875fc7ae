"""Stage: the threads that make batches on a device, one step each.

Two batches are in it at a time: while one is augmented the next is decoded, each by a thread and on
a private stream of its own, so that the JPEG engines wait neither for Python nor for a kernel. Its
waits for the device, and why each is there:

- before a batch is decoded, for the decoding stream (:meth:`Place.settle`, in ``images.py``): the
  engines write when they are called, into memory that this stream's work may still use;
- after it, for the same: the encoded bytes are about to be freed, and may still be read;
- after a batch is augmented, for the augmenting stream: its decoded pixels are about to be freed,
  and the engines may be given their memory at once. The next batch is decoded meanwhile;
- before a batch is decoded, on the host, until the one before is being augmented: pixels of two
  batches are in memory, and never of more.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from stateful_gpu_loader.engine.device.moving import tensors_of
from stateful_gpu_loader.engine.device.place import Place
from stateful_gpu_loader.engine.isolation import limit_this_thread

_JOIN_SECONDS = 5.0


class Task:
    """One batch that the stage is asked for."""

    def __init__(
        self, first: Callable[[], Any], last: Callable[[Any], Any] | None, queue: _Queue | None
    ) -> None:
        self._first: Callable[[], Any] | None = first
        self._last = last
        self._queue = queue
        """Of the thread that takes the last step."""
        self._done = threading.Event()
        self._result: Any = None
        self._mark: Any = None
        self._error: BaseException | None = None

    def run(self, place: Place, stream: int) -> None:
        """The next step, in the thread of that stream."""
        step = self._begin if stream == 0 else self._end
        try:
            with place.working(stream), torch.no_grad():
                step(place)
        except BaseException as error:
            # Whatever it is, somebody waits for this batch.
            self._error, self._result = error, None
        if stream == 0 and self._queue is not None and self._error is None:
            self._queue.put(self)
        else:
            self._done.set()

    def _begin(self, place: Place) -> None:
        if self._queue is not None:
            self._queue.wait_until_empty()
        first, self._first = self._first, None
        if first is not None:
            self._result = first()
            self._mark = place.mark()
            if self._queue is not None and self._last is None:
                self._result = None  # it was cancelled meanwhile

    def _end(self, place: Place) -> None:
        last, self._last = self._last, None
        begun, self._result = self._result, None
        if last is not None:
            place.receive(self._mark, [])
            try:
                self._result = last(begun)
                self._mark = place.mark()
            finally:
                # What was begun is freed now, and may be written by hand, past any stream.
                place.settle()

    def cancel(self) -> None:
        """Nobody waits for it any more: no further step is taken."""
        self._first = self._last = self._result = self._error = None

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
    """Makes batches one after the other, each in one step or two, in threads of its own.

    A thread begins with the first task that needs it and lives as long as the stage. Tasks of
    several passes of one loader follow each other.

    Args:
        place: the device; used by nobody else.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.is_abandoned = False
        """Whether a thread hangs: whoever goes on needs another stage."""
        self._threads = [_StepThread(place, stream) for stream in (0, 1)]
        self._lock = threading.RLock()

    def submit(self, first: Callable[[], Any], last: Callable[[Any], Any] | None = None) -> Task:
        """Have a batch made; either step may raise.

        Args:
            first: runs in the first thread, after those of the tasks before.
            last: gets what the first gave, in the second thread, which meanwhile goes on with the
                next task's; None if there is one step.
        """
        with self._lock:
            task = Task(first, last, None if last is None else self._threads[1].queue())
            self._threads[0].queue().put(task)
        return task

    def pause(self) -> None:
        """Wait until nothing is under way, a few seconds at most: a process is about to fork."""
        if self._threads[0].is_alive():
            last = _no_step if self._threads[1].is_alive() else None
            self.submit(_nothing, last).wait(_JOIN_SECONDS)

    def abandon(self) -> None:
        """A thread hangs, and nothing can end it: nobody waits for it any more."""
        self.is_abandoned = True
        for thread in self._threads:
            thread.abandon()


class _StepThread:
    """The thread of one step, begun when it is needed.

    Args:
        place: the device.
        stream: of the place; the first step's is 0.
    """

    def __init__(self, place: Place, stream: int) -> None:
        self._place = place
        self._stream = stream
        self._queue = _Queue()
        self._owner = 0
        self._end: weakref.finalize[..., Any] | None = None

    def queue(self) -> _Queue:
        """What the thread takes its tasks from; a forked child has the object, and no thread."""
        if self._owner != os.getpid():
            self._begin()
        return self._queue

    def is_alive(self) -> bool:
        return self._owner == os.getpid()

    def abandon(self) -> None:
        if self._end is not None:
            self._end.detach()
        self._queue.close()

    def _begin(self) -> None:
        queue, owner = _Queue(), os.getpid()
        thread = threading.Thread(
            target=_work,
            args=(self._place, self._stream, queue),
            name=f"stateful_gpu_loader device stage {self._stream}",
            daemon=True,
        )
        thread.start()
        self._end = weakref.finalize(self, _end_thread, queue, thread, owner)
        self._queue, self._owner = queue, owner


class _Queue:
    """Knows nothing of the stage, so that its threads do not keep that alive."""

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()
        # Re-entrant: the garbage collector may end a stage while its lock is held.
        self._changed = threading.Condition(threading.RLock())
        self._closed = False

    def put(self, task: Task) -> None:
        with self._changed:
            if self._closed:
                task.cancel()
            else:
                self._tasks.append(task)
            self._changed.notify_all()

    def take(self) -> Task | None:
        with self._changed:
            while not (self._tasks or self._closed):
                self._changed.wait()
            self._changed.notify_all()
            return None if self._closed else self._tasks.popleft()

    def wait_until_empty(self) -> None:
        with self._changed:
            while self._tasks and not self._closed:
                self._changed.wait()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            while self._tasks:
                self._tasks.popleft().cancel()
            self._changed.notify_all()


def _nothing() -> None:
    """A task that is done as soon as those before it are."""


def _no_step(begun: Any) -> None:
    """The same, of its last step."""


def _work(place: Place, stream: int, queue: _Queue) -> None:
    limit_this_thread()
    while (task := queue.take()) is not None:
        task.run(place, stream)
        del task  # a waiting thread holds no batch


def _end_thread(queue: _Queue, thread: threading.Thread, pid: int) -> None:
    """A thread that outlasts the timeout is abandoned: nothing can end it."""
    if os.getpid() != pid:
        return
    queue.close()
    if threading.current_thread() is not thread:
        thread.join(_JOIN_SECONDS)

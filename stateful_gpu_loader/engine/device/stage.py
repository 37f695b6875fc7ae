"""Stage: two threads that finish batches on a device, one for each of two steps.

One batch is augmented while the next is decoded, each in its own thread and on its own private
stream, so the JPEG engines wait neither for Python nor for kernels. The stage waits for the device
in these places:

- Before a batch is decoded, for the decoding stream (:meth:`Place.synchronize`, in ``images.py``).
  The engines write into memory that this stream's work may still use.
- After it is decoded, for the same stream. The encoded bytes may still be read.
- After a batch is augmented, for the augmenting stream. The engines may get the memory of its
  decoded pixels at once. The next batch is decoded meanwhile.
- Before a batch is decoded, on the host, until the previous batch is being augmented. So at most
  two batches' pixels are in memory.
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
from stateful_gpu_loader.engine.makers.encoded import ExpectedBytes
from stateful_gpu_loader.engine.stats import StageTimes, stage
from stateful_gpu_loader.state.forks import ForkGate, fork_safe

_JOIN_SECONDS = 5.0

DECODING, AUGMENTING = 0, 1
"""Numbers of the streams of the two steps."""

_GATE = ForkGate()
"""Delays forks while a step uses the device: torch's allocator has a lock."""


class Task:
    """A batch that the stage makes."""

    def __init__(
        self, first: Callable[[], Any], last: Callable[[Any], Any] | None, queue: _Queue | None
    ) -> None:
        self._first: Callable[[], Any] | None = first
        self._last = last
        self._queue = queue
        """Queue of the thread that takes the last step; None if there is one step."""
        self._done = threading.Event()
        self._result: Any = None
        self._mark: Any = None
        self._error: BaseException | None = None

    def await_turn(self, stream: int) -> None:
        """Wait, before the first of two steps, until the previous batch takes the second."""
        if stream == DECODING and self._queue is not None:
            self._queue.wait_until_empty()

    def run(self, place: Place, stream: int) -> None:
        """Take the next step, in the thread of that stream."""
        is_first = stream == DECODING
        step = self._begin if is_first else self._end
        try:
            with place.working(stream), torch.no_grad():
                step(place)
        except BaseException as error:
            # A thread waits for the task, so any exception ends it.
            self._error, self._result = error, None
        if is_first and self._queue is not None and self._error is None:
            self._queue.put(self)
        else:
            self._done.set()

    def _begin(self, place: Place) -> None:
        first, self._first = self._first, None
        if first is not None:
            with stage("transfer" if self._queue is None else "decode"):
                self._result = first()
            self._mark = place.mark()
            if self._queue is not None and self._last is None:
                self._result = None  # the task was cancelled meanwhile

    def _end(self, place: Place) -> None:
        last, self._last = self._last, None
        result, self._result = self._result, None
        if last is not None:
            place.receive(self._mark, [])
            with stage("augment"):
                try:
                    self._result = last(result)
                    self._mark = place.mark()
                finally:
                    # The decoded pixels are freed now, for the JPEG engines.
                    place.synchronize()

    @property
    def is_done(self) -> bool:
        """Whether :meth:`take` would return without waiting."""
        return self._done.is_set()

    def cancel(self) -> None:
        """Take no further step: the result is no longer needed."""
        self._first = self._last = self._result = self._error = None

    def wait(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds, 0 for no limit; return whether the task is done."""
        return self._done.wait(timeout or None)

    def take(self, place: Place) -> Any:
        """Return the finished batch, safe for the calling thread's work on the device.

        Raises:
            BaseException: exception raised while making the batch.
        """
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del self, error  # the traceback refers to this frame
        result, self._result = self._result, None
        place.receive(self._mark, tensors_of(result))
        return result


class Stage:
    """Makes batches in sequence, each in one or two steps, in its own threads.

    A thread starts with its first task and lives as long as the stage.

    Args:
        place: the device; not shared with another stage.
        times: receives the seconds of the steps.
    """

    def __init__(self, place: Place, times: StageTimes | None = None) -> None:
        self.place = place
        self.is_abandoned = False
        """Whether a thread hangs, so that another stage is needed."""
        self.has_finished = False
        """Whether a batch was finished; the first one compiles kernels."""
        self.expected = ExpectedBytes()
        """Size of the batches that workers read, from one pass to the next."""
        times = times or StageTimes()
        self._decoding, self._augmenting = (
            _StepThread(place, stream, times) for stream in (DECODING, AUGMENTING)
        )
        self._lock = fork_safe(threading.RLock())

    def submit(self, first: Callable[[], Any], last: Callable[[Any], Any] | None = None) -> Task:
        """Queue a batch to be made; either step may raise.

        Args:
            first: first step; runs in the decoding thread, after those of earlier tasks.
            last: second step, called with the result of ``first``; runs in the augmenting thread.
                None if there is one step.
        """
        with self._lock:
            task = Task(first, last, None if last is None else self._augmenting.queue())
            self._decoding.queue().put(task)
        return task

    def pause(self) -> None:
        """Wait, only a few seconds, until nothing is running."""
        if self._decoding.is_alive():
            last = _no_step if self._augmenting.is_alive() else None
            self.submit(_nothing, last).wait(_JOIN_SECONDS)

    def abandon(self) -> None:
        """Stop waiting for a thread that hangs; nothing can end it."""
        self.is_abandoned = True
        for thread in (self._decoding, self._augmenting):
            thread.abandon()


class _StepThread:
    """The thread of one step, started on demand.

    Args:
        times: receives the seconds of the step.
    """

    def __init__(self, place: Place, stream: int, times: StageTimes) -> None:
        self._place = place
        self._stream = stream
        self._times = times
        self._queue = _Queue()
        self._owner = 0
        self._end: weakref.finalize[..., Any] | None = None

    def queue(self) -> _Queue:
        """Return the queue of the thread, which is started if this process has no such thread."""
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
            args=(self._place, self._stream, queue, self._times),
            name=f"stateful_gpu_loader device stage {self._stream}",
            daemon=True,
        )
        thread.start()
        self._end = weakref.finalize(self, _end_thread, queue, thread, owner)
        self._queue, self._owner = queue, owner


class _Queue:
    """A queue of tasks, without a reference to the stage, which threads must not keep alive."""

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()
        # Re-entrant, because the garbage collector may end a stage within it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closed = False

    def put(self, task: Task) -> None:
        with self._lock:
            if self._closed:
                task.cancel()
            else:
                self._tasks.append(task)
            self._changed.notify_all()

    def take(self) -> Task | None:
        """Wait for a task; return None at the end."""
        with self._lock:
            while not (self._tasks or self._closed):
                self._changed.wait()
            self._changed.notify_all()
            return None if self._closed else self._tasks.popleft()

    def wait_until_empty(self) -> None:
        """Wait until the thread has taken all tasks."""
        with self._lock:
            while self._tasks and not self._closed:
                self._changed.wait()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            while self._tasks:
                self._tasks.popleft().cancel()
            self._changed.notify_all()


def _nothing() -> None:
    """Do nothing, after all earlier first steps."""


def _no_step(result: Any) -> None:
    """Do nothing, as a second step."""


def _work(place: Place, stream: int, queue: _Queue, times: StageTimes) -> None:
    limit_this_thread()
    with times.working():
        while (task := queue.take()) is not None:
            task.await_turn(stream)
            with _GATE.work():
                task.run(place, stream)
                del task  # keep no batch alive while waiting


def _end_thread(queue: _Queue, thread: threading.Thread, pid: int) -> None:
    """End a thread, or abandon it after the timeout."""
    if os.getpid() != pid:
        return
    queue.close()
    if threading.current_thread() is not thread:
        thread.join(_JOIN_SECONDS)

"""ThreadPipeline: executes requests in threads of this process, for work that releases the GIL."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from stateful_gpu_loader.engine.isolation import limit_this_thread
from stateful_gpu_loader.engine.pipeline import Failure, Maker, Stopped, WorkersDied, execute
from stateful_gpu_loader.engine.stages import waiting
from stateful_gpu_loader.engine.stats import StageTimes
from stateful_gpu_loader.engine.workers.window import Window
from stateful_gpu_loader.records import WorkerStart

_JOIN_SECONDS = 5.0


class ThreadPipeline:
    """A fixed number of daemon threads that keep a bounded number of batches ahead.

    Args:
        maker: shared by the threads; has no state and does not use the global generators.
        num_workers: number of threads.
        prefetch_factor: number of batches in flight for each thread.
        timeout: seconds that ``next()`` waits at most; 0 means no limit.
        in_order: deliver in the order of the requests, otherwise in that of the answers.
        times: where the seconds of each stage are noted.
    """

    def __init__(
        self,
        maker: Maker,
        *,
        num_workers: int,
        prefetch_factor: int,
        timeout: float,
        in_order: bool = True,
        times: StageTimes | None = None,
    ) -> None:
        self._maker = maker
        self._times = times or StageTimes()
        self._num_workers = num_workers
        self._limit = num_workers * prefetch_factor
        self._timeout = timeout
        self._in_order = in_order
        self._exchange: _Exchange | None = None
        self._end: weakref.finalize[..., Any] | None = None

    @property
    def is_whole(self) -> bool:
        return self._exchange is not None and self._exchange.is_whole

    def launch(self) -> None:
        """Do nothing: threads need not be started ahead of their pass."""

    def start(
        self,
        requests: Iterator[Any],
        starts: Sequence[WorkerStart] | None = None,
        *,
        one_at_a_time: bool = False,
    ) -> None:
        if starts is not None:
            raise ValueError("threads share one maker, which therefore cannot have state")
        self.close()
        limit = 1 if one_at_a_time else self._limit
        exchange = _Exchange(Window(requests, limit=limit, in_order=self._in_order))
        threads = [
            threading.Thread(
                target=_work,
                args=(self._maker, exchange, self._times),
                name=f"stateful_gpu_loader worker {number}",
                daemon=True,
            )
            for number in range(self._num_workers)
        ]
        self._exchange = exchange
        self._end = weakref.finalize(self, _end_threads, exchange, threads, os.getpid())
        for thread in threads:
            thread.start()
        exchange.fill()

    def __next__(self) -> tuple[Any, Any]:
        if self._exchange is None:
            raise StopIteration
        return self._exchange.next_answer(self._timeout)

    def is_ready(self) -> bool:
        return self._exchange is not None and self._exchange.is_ready()

    def depth(self) -> tuple[int, int]:
        return (0, 0) if self._exchange is None else self._exchange.depth()

    def close(self) -> None:
        if self._end is not None:
            self._end()


class _Exchange:
    """Hands requests to threads and takes their answers; has no reference to the pipeline."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._at_work: dict[int, threading.Thread] = {}
        self._hung: frozenset[threading.Thread] = frozenset()
        self._lost: WorkersDied | None = None
        self._waiting: deque[tuple[int, Any]] = deque()
        """Requests that were issued and not taken by a thread."""
        self._numbers = itertools.count()
        # Re-entrant: the garbage collector may drop an iterator, and end its threads, within
        # take().
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._answered = threading.Condition(self._lock)
        self.stopped = False
        self.is_whole = False

    def fill(self) -> None:
        """Issue requests until enough batches are in flight; called in the user's own thread."""
        while (request := self._window.draw()) is not None:
            with self._lock:
                number = next(self._numbers)
                self._window.issue(number, request)
                self._waiting.append((number, request))
                self._work.notify()
        if self._window.is_exhausted:
            with self._lock:
                self._wake_all()

    def take(self) -> tuple[int, Any] | None:
        """Wait for a request and return its number and itself; None at the end."""
        with self._lock:
            while not self._waiting:
                if self._window.is_exhausted:
                    return None
                self._work.wait()
            number, request = self._waiting.popleft()
            self._at_work[number] = threading.current_thread()
            return number, request

    def answer(self, number: int, answer: Any) -> None:
        with self._lock:
            self._at_work.pop(number, None)
            self._window.answer(number, answer)
            if self._window.is_ready():
                self._answered.notify_all()

    def next_answer(self, timeout: float) -> tuple[Any, Any]:
        self.fill()
        with self._lock:
            self.is_whole = True
            has_come = self._lost is None and self._answered.wait_for(
                self._is_ready, timeout or None
            )
            if not has_come:
                raise self._given_up(timeout)
            self.is_whole = False
            if not self._window.is_ready():
                # After an exception of the requests nothing tells whether one was lost with it.
                self._window.end()
            answered = self._window.deliver()
            self.fill()
            return answered

    def is_ready(self) -> bool:
        self.fill()
        with self._lock:
            return self._is_ready()

    def depth(self) -> tuple[int, int]:
        with self._lock:
            return self._window.depth()

    def stop(self) -> None:
        with self._lock:
            self.stopped = True
            self._window.clear()
            self._waiting.clear()
            self._wake_all()

    def check(self) -> None:
        if self.stopped:
            raise Stopped

    @property
    def hung(self) -> frozenset[threading.Thread]:
        """Threads that were working when the timeout expired; they are not waited for any more."""
        return self._hung

    def _given_up(self, timeout: float) -> WorkersDied:
        self._hung |= frozenset(self._at_work.values())
        self._lost = WorkersDied(
            f"DataLoader timed out after {timeout} seconds", self._window.oldest
        )
        return self._lost

    def _is_ready(self) -> bool:
        return self._window.is_ready() or self._window.is_over

    def _wake_all(self) -> None:
        self._work.notify_all()
        self._answered.notify_all()


def _work(maker: Maker, exchange: _Exchange, times: StageTimes) -> None:
    limit_this_thread()
    with times.working():
        while (taken := _taken(exchange)) is not None:
            number, request = taken
            try:
                answer = execute(maker, request, exchange.check, Failure)
            except Stopped:
                return
            except BaseException as error:
                # Any exception becomes an answer, as the request is waited for.
                answer = Failure(error)
            exchange.answer(number, answer)
            del answer, request, taken  # keep no batch alive while waiting


def _taken(exchange: _Exchange) -> tuple[int, Any] | None:
    with waiting("idle"):
        return exchange.take()


def _end_threads(exchange: _Exchange, threads: list[threading.Thread], pid: int) -> None:
    """Stop at the next sample and wait, as torch aborts if threads are inside it at exit.

    A thread that exceeded the timeout is abandoned, as nothing can end it.
    """
    if os.getpid() != pid:
        return  # a forked child has the objects, but none of the threads
    exchange.stop()
    if threading.current_thread() in threads:
        # the garbage collector ran in one of them, which holds the lock that the others need
        return
    deadline = time.monotonic() + _JOIN_SECONDS
    for thread in threads:
        if thread not in exchange.hung and thread.ident is not None:
            thread.join(max(0.0, deadline - time.monotonic()))

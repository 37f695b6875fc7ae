"""Requests executed by threads of this process, for work that releases the GIL."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

from stateful_gpu_loader.engine.pipeline import Executor, Failure, Stopped
from stateful_gpu_loader.engine.pipelines.intraop import limit_this_thread
from stateful_gpu_loader.records import Request

_JOIN_SECONDS = 5.0


class ThreadPipeline:
    """A fixed number of daemon threads that keep a bounded number of batches ahead.

    Args:
        executor: shared by the threads; must not use the global generators.
        num_workers: threads.
        prefetch_factor: batches in flight for each thread.
        timeout: seconds that ``next()`` waits at most; 0 waits for ever.
    """

    def __init__(
        self, executor: Executor, *, num_workers: int, prefetch_factor: int, timeout: float
    ) -> None:
        self._executor = executor
        self._num_workers = num_workers
        self._limit = num_workers * prefetch_factor
        self._timeout = timeout
        self._exchange: _Exchange | None = None
        self._end: weakref.finalize[..., Any] | None = None

    def start(self, requests: Iterator[Request]) -> None:
        self.close()
        exchange = _Exchange(requests, self._limit)
        threads = [
            threading.Thread(
                target=_work,
                args=(self._executor, exchange),
                name=f"stateful_gpu_loader worker {number}",
                daemon=True,
            )
            for number in range(self._num_workers)
        ]
        self._exchange = exchange
        self._end = weakref.finalize(self, _end_threads, exchange, threads, os.getpid())
        for thread in threads:
            thread.start()

    def __next__(self) -> tuple[Request, Any]:
        if self._exchange is None:
            raise StopIteration
        return self._exchange.next_answer(self._timeout)

    def close(self) -> None:
        if self._end is not None:
            self._end()


class _Exchange:
    """Where threads take requests and leave their answers; knows nothing of the pipeline."""

    def __init__(self, requests: Iterator[Request], limit: int) -> None:
        self._requests = requests
        self._limit = limit
        self._issued: deque[Request] = deque()
        self._answers: dict[int, Any] = {}
        self._exhausted = False
        self._order_failure: Exception | None = None
        # Re-entrant: the garbage collector may drop a run, and end its threads, within take().
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._answered = threading.Condition(self._lock)
        self.stopped = False

    def take(self) -> Request | None:
        """The next request as soon as there is room for its batch; None at the end."""
        with self._lock:
            while not self.stopped and not self._exhausted:
                if len(self._issued) >= self._limit or self._order_failure is not None:
                    self._room.wait()
                    continue
                try:
                    request = next(self._requests)
                except StopIteration:
                    self._exhaust()
                except Exception as error:
                    self._order_failure = error
                    self._answered.notify_all()
                else:
                    self._issued.append(request)
                    return request
        return None

    def answer(self, request: Request, answer: Any) -> None:
        with self._lock:
            self._answers[request.ordinal] = answer
            if self._issued and self._issued[0] is request:
                self._answered.notify_all()

    def next_answer(self, timeout: float) -> tuple[Request, Any]:
        with self._lock:
            if not self._answered.wait_for(self._is_ready, timeout or None):
                raise RuntimeError(f"DataLoader timed out after {timeout} seconds")
            self._room.notify_all()
            if self._issued:
                request = self._issued.popleft()
                return request, self._answers.pop(request.ordinal)
            error, self._order_failure = self._order_failure, None
            if error is None:
                raise StopIteration
            raise error  # and the order is asked again at the next call

    def stop(self) -> None:
        with self._lock:
            self.stopped = True
            self._exhaust()
            self._answers.clear()
            self._issued.clear()

    def check(self) -> None:
        if self.stopped:
            raise Stopped

    def _is_ready(self) -> bool:
        if self._issued:
            return self._issued[0].ordinal in self._answers
        return self._exhausted or self._order_failure is not None

    def _exhaust(self) -> None:
        self._exhausted = True
        self._room.notify_all()
        self._answered.notify_all()


def _work(executor: Executor, exchange: _Exchange) -> None:
    limit_this_thread()
    while (request := exchange.take()) is not None:
        try:
            answer = executor(request, exchange.check)
        except Stopped:
            return
        except BaseException as error:
            # Whatever it is, somebody waits for this request.
            answer = Failure(error)
        exchange.answer(request, answer)
        del answer, request  # a waiting thread holds no batch


def _end_threads(exchange: _Exchange, threads: list[threading.Thread], pid: int) -> None:
    """Stop at the next sample, and wait: torch aborts if threads are left inside it at exit."""
    if os.getpid() != pid:
        return  # a forked child has the objects, and none of the threads
    exchange.stop()
    if threading.current_thread() in threads:
        return  # the garbage collector ran in one of them, and holds the lock the others need
    deadline = time.monotonic() + _JOIN_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))

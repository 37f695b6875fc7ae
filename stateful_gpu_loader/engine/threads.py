"""Requests executed by threads of this process, for work that releases the GIL."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

from stateful_gpu_loader.engine.intraop import limit_this_thread
from stateful_gpu_loader.engine.pipeline import Executor, Failure, Stopped
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
        self._board = _Board(iter(()), self._limit)
        self._end = weakref.finalize(self, _end_threads, self._board, [])

    def start(self, requests: Iterator[Request]) -> None:
        self.close()
        self._board = _Board(requests, self._limit)
        threads = [
            threading.Thread(
                target=_work,
                args=(self._executor, self._board),
                name=f"stateful_gpu_loader worker {number}",
                daemon=True,
            )
            for number in range(self._num_workers)
        ]
        self._end = weakref.finalize(self, _end_threads, self._board, threads)
        for thread in threads:
            thread.start()

    def __next__(self) -> tuple[Request, Any]:
        return self._board.next_answer(self._timeout)

    def close(self) -> None:
        self._end()


class _Board:
    """Where threads take requests and pin their answers; knows nothing of the pipeline."""

    def __init__(self, requests: Iterator[Request], limit: int) -> None:
        self._requests = requests
        self._limit = limit
        self._issued: deque[Request] = deque()
        self._answers: dict[int, Any] = {}
        self._exhausted = False
        self._order_failure: Exception | None = None
        # Re-entrant: the garbage collector may drop a run, and stop its board, within take().
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._answered = threading.Condition(self._lock)
        self.stopped = False

    def take(self) -> Request | None:
        """The next request as soon as there is room for its batch; None at the end."""
        with self._lock:
            while not self.stopped and not self._exhausted:
                if len(self._issued) >= self._limit:
                    self._room.wait()
                    continue
                try:
                    request = next(self._requests)
                except StopIteration:
                    self._exhaust()
                except Exception as error:
                    self._order_failure = error
                    self._exhaust()
                else:
                    self._issued.append(request)
                    return request
        return None

    def answer(self, request: Request, answer: Any) -> None:
        with self._lock:
            self._answers[request.ordinal] = answer
            if self._issued and self._issued[0] is request:
                self._answered.notify()

    def next_answer(self, timeout: float) -> tuple[Request, Any]:
        with self._lock:
            if not self._answered.wait_for(self._is_ready, timeout or None):
                raise RuntimeError(f"DataLoader timed out after {timeout} seconds")
            if not self._issued:
                error, self._order_failure = self._order_failure, None
                raise StopIteration if error is None else error
            request = self._issued.popleft()
            self._room.notify()
            return request, self._answers.pop(request.ordinal)

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
        return self._exhausted

    def _exhaust(self) -> None:
        self._exhausted = True
        self._room.notify_all()
        self._answered.notify_all()


def _work(executor: Executor, board: _Board) -> None:
    limit_this_thread()
    while (request := board.take()) is not None:
        try:
            answer = executor(request, board.check)
        except Stopped:
            return
        except Exception as error:
            answer = Failure(error)
        board.answer(request, answer)
        del answer, request  # a waiting thread holds no batch


def _end_threads(board: _Board, threads: list[threading.Thread]) -> None:
    """Stop at the next sample, and wait: torch aborts if threads are left inside it at exit."""
    board.stop()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)

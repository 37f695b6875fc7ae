"""Which worker gets which request, and which answer is delivered next: the order of one pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stateful_gpu_loader.engine.pipeline import Answer, Failure
from stateful_gpu_loader.engine.workers.remote_failure import without_frames
from stateful_gpu_loader.records import WorkerStart


class Dispatch:
    """Requests on their way, each with a number that is unique over all passes.

    Args:
        requests: asked for one more whenever there is room. They may have ``is_open(worker)``: who
            can still serve one that is bound to no worker.
        starts: what each worker begins with, or None.
        num_workers: of them.
        limit: requests that are issued and not delivered, at most.
        in_order: deliver in the order of the requests, or else of the answers.
    """

    def __init__(
        self,
        requests: Iterator[Any],
        starts: Sequence[WorkerStart] | None,
        *,
        num_workers: int,
        limit: int,
        in_order: bool,
    ) -> None:
        self._requests = requests
        self._is_open: Callable[[int], bool] = getattr(requests, "is_open", _always)
        self._starts: list[WorkerStart | None] = [None] * num_workers
        if starts is not None:
            self._starts[:] = starts
        self._in_order = in_order
        self._limit = limit
        self._num_under_way = [0] * num_workers
        self._cycle = itertools.cycle(range(num_workers))
        self._issued: dict[int, tuple[Any, int]] = {}
        self._answers: dict[int, Any] = {}
        self._exhausted = False
        self._failure: Exception | None = None

    @property
    def num_under_way(self) -> int:
        """How many requests have no answer."""
        return len(self._issued) - len(self._answers)

    @property
    def oldest(self) -> Any:
        """The oldest request without an answer; None if there is none."""
        waiting = (one for number, (one, _) in self._issued.items() if number not in self._answers)
        return next(waiting, None)

    def issue(self, number: int, *, spare: int = 0) -> tuple[int, Any, WorkerStart | None] | None:
        """The next request under this number: its worker, itself, what the worker begins with.

        None if there is no room, or no request. An exception of the requests waits for its turn.

        Args:
            spare: places that are about to be free.
        """
        no_room = len(self._issued) - spare >= self._limit
        if no_room or self._exhausted or self._failure is not None:
            return None
        try:
            request = next(self._requests)
        except StopIteration:
            self._exhausted = True
            return None
        except Exception as error:
            self._failure = without_frames(error)
            return None
        worker = self._next_worker() if request.worker is None else request.worker
        self._issued[number] = request, worker
        self._num_under_way[worker] += 1
        start, self._starts[worker] = self._starts[worker], None
        return worker, request, start

    def answer(self, number: int, answer: Any) -> None:
        """An answer has come; that of a request of an earlier pass is dropped."""
        if number in self._issued:
            request, worker = self._issued[number]
            if isinstance(answer, Failure) and request.snapshot:
                # It could not be read, and the state in it is lost: the stream must know whose.
                answer = Answer(answer, worker=worker)
            self._answers[number] = answer
            self._num_under_way[worker] -= 1

    def is_ready(self) -> bool:
        """Whether an answer can be delivered."""
        return self._turn() in self._answers

    def deliver(self) -> tuple[Any, Any]:
        """The request and the answer whose turn it is."""
        number = self._turn()
        return self._issued.pop(number)[0], self._answers.pop(number)

    def end(self) -> None:
        """Nothing is under way, and no request is left: say why.

        Raises:
            StopIteration: they are exhausted.
            Exception: theirs; they will be asked again.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._exhausted:
            raise StopIteration

    def _turn(self) -> int:
        return next(iter(self._issued if self._in_order else self._answers), -1)

    def _next_worker(self) -> int:
        if self._in_order:
            return next(self._cycle)
        under_way = self._num_under_way
        fair_share = max(1, self._limit // len(under_way))
        for _ in under_way:
            worker = next(self._cycle)
            if under_way[worker] < fair_share and self._is_open(worker):
                return worker
        candidates = [worker for worker in range(len(under_way)) if self._is_open(worker)]
        return min(candidates or range(len(under_way)), key=under_way.__getitem__)


def _always(worker: int) -> bool:
    return True

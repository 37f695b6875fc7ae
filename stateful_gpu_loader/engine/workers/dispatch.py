"""Dispatch: a window over worker processes, each of which has its own queue."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stateful_gpu_loader.engine.pipeline import Answer, Failure
from stateful_gpu_loader.engine.workers.window import Window
from stateful_gpu_loader.records import WorkerStart


class Dispatch(Window):
    """Assigns requests to workers; their numbers are unique over all passes.

    Args:
        requests: as in :class:`Window`. They may have ``is_open(worker)``, which tells whether a
            worker can take requests that are not bound to a worker.
        starts: what each worker begins with, or None.
        num_workers: number of workers.
        limit, in_order: as in :class:`Window`.
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
        super().__init__(requests, limit=limit, in_order=in_order)
        self._is_open: Callable[[int], bool] = getattr(requests, "is_open", _always)
        self._starts: list[WorkerStart | None] = [None] * num_workers
        if starts is not None:
            self._starts[:] = starts
        self._fair_share = max(1, limit // num_workers)
        self._takes_turns = in_order
        self._cycle = itertools.cycle(range(num_workers))
        self._under_way: dict[int, tuple[Any, int]] = {}
        """Unanswered requests and their workers, by number."""

    def assign(self, number: int, *, spare: int = 0) -> tuple[int, Any, WorkerStart | None] | None:
        """Issue the next request; return its worker, the request, and what the worker begins with.

        None is returned if there is no room or no request.

        Args:
            spare: number of places that are about to be free.
        """
        request = self.draw(spare=spare)
        return None if request is None else self.place(number, request)

    def place(self, number: int, request: Any) -> tuple[int, Any, WorkerStart | None]:
        """Issue a drawn request; return its worker, itself, and what the worker begins with."""
        worker = self._next_worker() if request.worker is None else request.worker
        self.issue(number, request)
        self._under_way[number] = request, worker
        start, self._starts[worker] = self._starts[worker], None
        return worker, request, start

    def answer(self, number: int, answer: Any) -> bool:
        """Take an answer as :class:`Window` does; drop it if its request is of an earlier pass."""
        if number not in self._under_way:
            return False
        request, worker = self._under_way.pop(number)
        if isinstance(answer, Failure) and request.snapshot:
            # The answer could not be read and its state is lost, so the schedule must know the
            # worker.
            answer = Answer(answer, worker=worker)
        return super().answer(number, answer)

    def _next_worker(self) -> int:
        if self._takes_turns:
            return next(self._cycle)
        under_way = [0] * len(self._starts)
        for _, worker in self._under_way.values():
            under_way[worker] += 1
        for _ in under_way:
            worker = next(self._cycle)
            if under_way[worker] < self._fair_share and self._is_open(worker):
                return worker
        candidates = [worker for worker in range(len(under_way)) if self._is_open(worker)]
        return min(candidates or range(len(under_way)), key=under_way.__getitem__)


def _always(worker: int) -> bool:
    return True

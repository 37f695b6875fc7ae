"""ProcessPipeline: executes requests in worker processes, any of which may die at any time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from stateful_gpu_loader.engine.pipeline import WorkersDied
from stateful_gpu_loader.engine.workers.answer_pipe import WritersLost
from stateful_gpu_loader.engine.workers.dispatch import Dispatch
from stateful_gpu_loader.engine.workers.remote_failure import with_failure_rebuilt
from stateful_gpu_loader.engine.workers.torch_workers import InnerLoader, TorchWorkers
from stateful_gpu_loader.engine.workers.worker_main import WorkerMessage
from stateful_gpu_loader.records import WorkerStart


class ProcessPipeline:
    """Worker processes that get requests instead of indices.

    When a worker dies or exceeds the timeout, all others are ended. Batches that were answered
    before are still delivered; then ``start()`` or ``next()`` raises :class:`WorkersDied`. It is
    never raised in the user's own code, and no call waits for ever.

    Args:
        loader: starts the workers; its arguments apply here, too.
    """

    def __init__(self, loader: InnerLoader) -> None:
        self._loader = loader
        self._num_workers = loader.num_workers
        self._limit = loader.num_workers * (loader.prefetch_factor or 2)
        self._persistent = loader.persistent_workers
        self._in_order = loader.in_order
        self._numbers = itertools.count()
        self._dispatch = self._nothing_to_do()
        self._torch_workers: TorchWorkers | None = None
        self.workers: list[Any] = []
        """The worker processes, or the last ones."""
        self.is_whole = False
        self._is_fresh = False
        """Whether the workers were started and have not run a pass."""

    @property
    def torch_workers(self) -> TorchWorkers | None:
        """The living workers, as torch's own iterator over them; None without any."""
        return self._torch_workers

    def launch(self) -> None:
        self._launched()
        self._is_fresh = True

    def start(
        self,
        requests: Iterator[Any],
        starts: Sequence[WorkerStart] | None = None,
        *,
        one_at_a_time: bool = False,
    ) -> None:
        self.is_whole = False
        self._dispatch = self._nothing_to_do()
        if not (self._persistent or self._is_fresh):
            self.close()
        self._is_fresh = False
        torch_workers = self._torch_workers
        if torch_workers is None:
            torch_workers = self._launched()
        elif torch_workers.monitor.has_lost():
            raise torch_workers.loss(None)
        self._dispatch = Dispatch(
            requests,
            starts,
            num_workers=self._num_workers,
            limit=1 if one_at_a_time else self._limit,
            in_order=self._in_order,
        )
        self._send(torch_workers)

    def __next__(self) -> tuple[Any, Any]:
        torch_workers, dispatch = self._torch_workers, self._dispatch
        if torch_workers is None:
            raise StopIteration
        self.is_whole = False
        while not dispatch.is_ready():
            if not dispatch.num_under_way:
                self._send(torch_workers)
            if dispatch.num_under_way:
                self._receive(torch_workers)
                continue
            # After an exception of the requests nothing tells whether one of them was lost with it.
            try:
                dispatch.end()
            except StopIteration:
                self.is_whole = True
                if not self._persistent:
                    self.close()
                raise
        # Sent before the answer is taken, so that an exception of the requests does not lose it.
        self._send(torch_workers, spare=1)
        request, answer = dispatch.deliver()
        return request, with_failure_rebuilt(answer)

    def is_ready(self) -> bool:
        torch_workers, dispatch = self._torch_workers, self._dispatch
        while torch_workers is not None and not dispatch.is_ready() and torch_workers.has_answer():
            try:
                self._receive(torch_workers)
            except WorkersDied:
                return True
        return dispatch.is_ready()

    def depth(self) -> tuple[int, int]:
        return self._dispatch.depth()

    def close(self) -> None:
        torch_workers, self._torch_workers = self._torch_workers, None
        self._dispatch = self._nothing_to_do()
        if torch_workers is not None:
            torch_workers.end()

    def _launched(self) -> TorchWorkers:
        self._torch_workers = torch_workers = self._loader.launch()
        self.workers = torch_workers.workers
        return torch_workers

    def _send(self, torch_workers: TorchWorkers, spare: int = 0) -> None:
        """Send requests until the window is full."""
        dispatch = self._dispatch
        while True:
            number = next(self._numbers)
            issued = dispatch.assign(number, spare=spare)
            if issued is None:
                return
            worker, request, start = issued
            torch_workers.send(worker, number, WorkerMessage(request, start))

    def _receive(self, torch_workers: TorchWorkers) -> None:
        """Receive one answer.

        Raises:
            WorkersDied: no answer will come.
        """
        try:
            with torch_workers.monitor.waiting():
                self.is_whole = True
                torch_workers.wait()
                self.is_whole = False
                number, answer = torch_workers.receive()
        except WritersLost:
            torch_workers.monitor.has_lost(_SECONDS_TO_BE_TOLD)
            raise torch_workers.loss(self._dispatch.oldest) from None
        self._dispatch.answer(number, answer)

    def _nothing_to_do(self) -> Dispatch:
        return Dispatch(iter(()), None, num_workers=self._num_workers, limit=1, in_order=True)


_SECONDS_TO_BE_TOLD = 10.0
"""Seconds to wait for the monitor to know which worker died, which the pipe tells earlier."""

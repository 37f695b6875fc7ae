"""Requests executed in the user's own thread, inside ``next()``."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from stateful_gpu_loader.engine.pipeline import (
    BeginFailure,
    Executor,
    Failure,
    execute,
    never_stopped,
)
from stateful_gpu_loader.engine.pipelines.intraop import single_threaded
from stateful_gpu_loader.randomness import caller_generators_restored
from stateful_gpu_loader.records import WorkerStart

_ONE_AT_A_TIME = threading.RLock()
"""The global generators and the number of threads belong to the whole process."""


class InlinePipeline:
    """``num_workers=0``: no prefetch, and the caller's generators are put back (law 7)."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._requests: Iterator[Any] = iter(())
        self._start: WorkerStart | None = None
        self._interrupted: Any = None

    def start(
        self,
        requests: Iterator[Any],
        starts: Sequence[WorkerStart] | None = None,
        *,
        one_at_a_time: bool = False,
    ) -> None:
        self._requests = requests
        self._start = starts[0] if starts else None
        self._interrupted = None

    def __next__(self) -> tuple[Any, Any]:
        request = next(self._requests) if self._interrupted is None else self._interrupted
        # Offered again after a KeyboardInterrupt: nothing is lost by it.
        self._interrupted = request
        with _ONE_AT_A_TIME, ExitStack() as surroundings:
            _enter_a_workers_surroundings(surroundings)
            if self._executor.uses_global_generators:
                surroundings.enter_context(caller_generators_restored())
            answer = self._answer(request)
        self._interrupted = None
        return request, answer

    def close(self) -> None:
        self._requests = iter(())
        self._start = None
        self._interrupted = None

    def _answer(self, request: Any) -> Any:
        if self._start is not None:
            stateful: Any = self._executor
            try:
                stateful.begin(self._start)
            except Exception as error:
                return BeginFailure(error)
            self._start = None
        return execute(self._executor, request, never_stopped, Failure)


def _enter_a_workers_surroundings(stack: ExitStack) -> None:
    """What the user's loop has switched on would change a batch, and no worker has it (law 1)."""
    stack.enter_context(single_threaded())
    if torch.is_autocast_enabled("cpu"):
        stack.enter_context(torch.autocast("cpu", enabled=False))
    if torch.get_default_device().type != "cpu":
        stack.enter_context(torch.device("cpu"))

"""Requests executed in the user's own thread, inside ``next()``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from stateful_gpu_loader.engine.intraop import single_threaded
from stateful_gpu_loader.engine.pipeline import Executor, Failure, never_stopped
from stateful_gpu_loader.randomness import caller_generators_restored
from stateful_gpu_loader.records import Request


class InlinePipeline:
    """``num_workers=0``: no prefetch, and the caller's generators are put back (law 7)."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._requests: Iterator[Request] = iter(())

    def start(self, requests: Iterator[Request]) -> None:
        self._requests = requests

    def __next__(self) -> tuple[Request, Any]:
        request = next(self._requests)
        draws = self._executor.uses_global_generators
        with single_threaded(), caller_generators_restored() if draws else nullcontext():
            try:
                return request, self._executor(request, never_stopped)
            except Exception as error:
                return request, Failure(error)

    def close(self) -> None:
        self._requests = iter(())

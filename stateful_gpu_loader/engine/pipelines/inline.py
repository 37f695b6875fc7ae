"""Requests executed in the user's own thread, inside ``next()``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch

from stateful_gpu_loader.engine.pipeline import Executor, Failure, never_stopped
from stateful_gpu_loader.engine.pipelines.intraop import single_threaded
from stateful_gpu_loader.randomness import caller_generators_restored
from stateful_gpu_loader.records import Request

_ONE_AT_A_TIME = threading.RLock()
"""The global generators and the number of threads belong to the whole process."""


class InlinePipeline:
    """``num_workers=0``: no prefetch, and the caller's generators are put back (law 7)."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._requests: Iterator[Request] = iter(())
        self._interrupted: Request | None = None

    def start(self, requests: Iterator[Request]) -> None:
        self._requests = requests
        self._interrupted = None

    def __next__(self) -> tuple[Request, Any]:
        request = self._interrupted or next(self._requests)
        # Offered again after a KeyboardInterrupt: nothing is lost by it.
        self._interrupted = request
        with _ONE_AT_A_TIME, ExitStack() as surroundings:
            _enter_a_workers_surroundings(surroundings)
            if self._executor.uses_global_generators:
                surroundings.enter_context(caller_generators_restored())
            try:
                answer = self._executor(request, never_stopped)
            except Exception as error:
                answer = Failure(error)
        self._interrupted = None
        return request, answer

    def close(self) -> None:
        self._requests = iter(())
        self._interrupted = None


def _enter_a_workers_surroundings(stack: ExitStack) -> None:
    """What the user's loop has switched on would change a batch, and no worker has it (law 1)."""
    stack.enter_context(single_threaded())
    if torch.is_autocast_enabled("cpu"):
        stack.enter_context(torch.autocast("cpu", enabled=False))
    if torch.get_default_device().type != "cpu":
        stack.enter_context(torch.device("cpu"))

"""InlinePipeline: executes requests in the user's thread, inside ``next()``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stateful_gpu_loader.engine.isolation import isolated
from stateful_gpu_loader.engine.pipeline import (
    BeginFailure,
    Failure,
    Maker,
    execute,
    never_stopped,
)
from stateful_gpu_loader.engine.stats import PRESENT, StageTimes
from stateful_gpu_loader.records import WorkerStart


class InlinePipeline:
    """``num_workers=0``: no prefetching, and the caller's generators are restored.

    Args:
        times: receives the seconds of each stage.
    """

    def __init__(self, maker: Maker, times: StageTimes | None = None) -> None:
        self._maker = maker
        self._times = times or StageTimes()
        self._requests: Iterator[Any] = iter(())
        self._start: WorkerStart | None = None

    is_whole = False
    """Always False: it never waits."""
    is_collected = False
    """Always False: it has no workers."""

    @property
    def workers(self) -> list[Any]:
        return []

    def launch(self) -> None:
        """Do nothing: there are no workers."""

    def start(
        self,
        requests: Iterator[Any],
        starts: Sequence[WorkerStart] | None = None,
    ) -> None:
        self._requests = requests
        self._start = starts[0] if starts else None

    def __next__(self) -> tuple[Any, Any]:
        request = next(self._requests)
        before, PRESENT.work = PRESENT.work, self._times.own
        try:
            draws = self._maker.uses_global_generators
            answer = isolated(self._answer, request, draws=draws)
        finally:
            PRESENT.work = before
        return request, answer

    def is_ready(self) -> bool:
        return False

    def depth(self) -> tuple[int, int]:
        return 0, 0

    def close(self) -> None:
        self._requests = iter(())
        self._start = None

    def _answer(self, request: Any) -> Any:
        if self._start is not None:
            stateful: Any = self._maker
            try:
                stateful.begin(self._start)
            except Exception as error:
                return BeginFailure(error)
            self._start = None
        return execute(self._maker, request, never_stopped, Failure)

"""Run: the iterator that a loader hands out, one pass long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stateful_gpu_loader.engine.pipeline import Failure, Pipeline
from stateful_gpu_loader.passes import Pass, Passes

Begin = Callable[[], tuple[Pass, Pipeline]]
"""Take the next pass, and a pipeline started on its requests."""


class Run:
    """Delivers the batches of one pass in order, and tells :class:`Passes` of each.

    Nothing happens before the first ``next()`` (law 7). An exception of one batch leaves the
    others as they are: the next ``next()`` goes on behind it.

    Args:
        passes: the loader's.
        begin: called at the first ``next()``, and again if a state is loaded before the first
            batch is delivered.
        release: takes the pipeline back at the end of the pass, or when the run is dropped.
        finish: the last step on a batch, in the user's thread.
        length: of the iterator.
    """

    def __init__(
        self,
        passes: Passes,
        begin: Begin,
        release: Callable[[Pipeline], None],
        finish: Callable[[Any], Any],
        length: Callable[[], int],
    ) -> None:
        self._passes = passes
        self._begin = begin
        self._release = release
        self._finish = finish
        self._length = length
        self._pass: Pass | None = None
        self._pipeline: Pipeline | None = None
        self._ended = False

    def __iter__(self) -> Run:
        return self

    def __len__(self) -> int:
        return self._length()

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        current, pipeline = self._started()
        try:
            request, answer = next(pipeline)
        except StopIteration:
            self._end(current)
            raise
        if isinstance(answer, Failure):
            answer.reraise()
        batch = self._finish(answer)
        self._passes.deliver(current, request.end)
        return batch

    def __del__(self) -> None:
        self._stop()

    @property
    def _workers(self) -> list[Any]:
        """The worker processes, where programs that look into a torch iterator find them."""
        return list(getattr(self._pipeline, "workers", []))

    def _started(self) -> tuple[Pass, Pipeline]:
        current, pipeline = self._pass, self._pipeline
        if current is not None and pipeline is not None:
            overtaken = current.generation != self._passes.generation and not current.delivered
            if not overtaken:
                return current, pipeline
            self._stop()
        self._pass, self._pipeline = self._begin()
        return self._pass, self._pipeline

    def _end(self, current: Pass) -> None:
        self._ended = True
        self._stop()
        self._passes.end(current)

    def _stop(self) -> None:
        pipeline, self._pipeline = getattr(self, "_pipeline", None), None
        if pipeline is not None:
            self._release(pipeline)

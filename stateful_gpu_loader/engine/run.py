"""Run: the iterator that a loader hands out, one pass long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stateful_gpu_loader.engine.pipeline import Failure, Pipeline
from stateful_gpu_loader.passes import Pass, Passes


@dataclass(frozen=True)
class Begun:
    """A pass that has begun."""

    current: Pass
    pipeline: Pipeline
    """Started on the requests of the pass."""
    release: Callable[[], None]
    """Takes the pipeline back."""


class Run:
    """Delivers the batches of one pass in order, and tells :class:`Passes` of each.

    Nothing happens before the first ``next()`` (law 7). An exception of one batch leaves the
    others as they are: the next ``next()`` goes on behind it. Several threads may share a run.

    Args:
        passes: the loader's.
        begin: called at the first ``next()``, and again if a state is loaded before the first
            batch is delivered.
        finish: the last step on a batch, in the user's thread.
        length: of the iterator.
    """

    def __init__(
        self,
        passes: Passes,
        begin: Callable[[], Begun],
        finish: Callable[[Any], Any],
        length: Callable[[], int],
    ) -> None:
        self._passes = passes
        self._begin = begin
        self._finish = finish
        self._length = length
        self._begun: Begun | None = None
        self._ended = False
        self._lock = threading.RLock()

    def __iter__(self) -> Run:
        return self

    def __len__(self) -> int:
        return self._length()

    def __next__(self) -> Any:
        with self._lock:
            if self._ended:
                raise StopIteration
            begun = self._started()
            try:
                request, answer = next(begun.pipeline)
            except StopIteration:
                self._ended = True
                self._stop()
                self._passes.end(begun.current)
                raise
            if isinstance(answer, Failure):
                try:
                    answer.reraise()
                finally:
                    del self, begun, answer  # the traceback would keep the workers alive
            batch = self._finish(answer)
            self._passes.deliver(begun.current, request.end)
            return batch

    def __del__(self) -> None:
        self._stop()

    @property
    def _workers(self) -> list[Any]:
        """The worker processes, where programs that look into a torch iterator find them."""
        return [] if self._begun is None else list(getattr(self._begun.pipeline, "workers", []))

    def _started(self) -> Begun:
        begun = self._begun
        if begun is not None:
            current = begun.current
            if current.delivered or current.generation == self._passes.generation:
                return begun
            self._stop()
        self._begun = self._begin()
        return self._begun

    def _stop(self) -> None:
        begun, self._begun = getattr(self, "_begun", None), None
        if begun is not None:
            begun.release()

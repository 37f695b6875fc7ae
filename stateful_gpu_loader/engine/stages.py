"""Marks of the stages that a batch passes, for ``stats()`` and for profilers."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from torch.profiler import record_function

from stateful_gpu_loader.engine.stats import PRESENT, Work
from stateful_gpu_loader.engine.torch_names import is_profiling


class waiting:  # noqa: N801 - used like a function, in ``with``
    """Notes seconds as those of a wait, whatever stages the thread passes meanwhile.

    Args:
        name: name of the time in :class:`LoaderStats`, and of the profiler's range.
        work: whose wait it is; None for what the thread is working on.
    """

    __slots__ = ("_name", "_range", "_since", "_work")

    def __init__(self, name: str, work: Work | None = None) -> None:
        self._name = name
        self._work = PRESENT.work if work is None else work

    def __enter__(self) -> None:
        self._range = _range(self._name) if is_profiling() else None
        self._since = perf_counter()

    def __exit__(self, *error: object) -> None:
        self._work.seconds[self._name] += perf_counter() - self._since
        if self._range is not None:
            self._range.__exit__(*error)


class stage:  # noqa: N801 - used like a function, in ``with``
    """Notes seconds as those of a stage.

    A stage inside another one of the same work interrupts it, so that no second counts twice.

    Args:
        name: name of the time in :class:`LoaderStats`, and of the profiler's range.
        work: whose stage it is; None for what the thread is working on.
    """

    __slots__ = ("_name", "_outer", "_range", "_work")

    def __init__(self, name: str, work: Work | None = None) -> None:
        self._name = name
        self._work = PRESENT.work if work is None else work

    def __enter__(self) -> None:
        self._range = _range(self._name) if is_profiling() else None
        work, now = self._work, perf_counter()
        self._outer = outer = work.stage
        if outer is not None:
            work.seconds[outer] += now - work.since
        work.stage, work.since = self._name, now

    def __exit__(self, *error: object) -> None:
        work, now = self._work, perf_counter()
        work.seconds[self._name] += now - work.since
        work.stage, work.since = self._outer, now
        if self._range is not None:
            self._range.__exit__(*error)


def _range(name: str) -> Any:
    """Open a range that profilers show; with ``emit_nvtx()`` it is an NVTX range."""
    opened = record_function(f"stateful_gpu_loader.{name}")
    opened.__enter__()
    return opened

"""Statistics of a loader: counts, and seconds in each stage.

Workers add seconds to their loader's :class:`StageTimes`. :class:`stage` and :class:`waiting` mark
the stages, for profilers as well.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from torch.profiler import record_function

from stateful_gpu_loader.engine.torch_names import is_profiling
from stateful_gpu_loader.state.forks import fork_safe

SUMMED = ("read", "decode", "augment", "collate", "transfer", "wait", "idle")
"""Names of the accumulated times; fields of :class:`LoaderStats`."""

_MOMENTARY = ("under_way", "ready")


@dataclass(frozen=True, kw_only=True, repr=False)
class LoaderStats:
    """Counts and times since a loader was built; ``later - earlier`` covers the time in between.

    Counts cover delivered batches. Times are seconds, summed over all workers, and include batches
    made ahead. Each moment of a worker belongs to only one stage, so their sum divided by
    ``elapsed`` is the average number of busy workers. Work on a GPU counts while a thread waits for
    it.

    >>> from stateful_gpu_loader import StatefulGPULoader
    >>> loader = StatefulGPULoader(range(10), batch_size=4)
    >>> before = loader.stats()
    >>> for batch in loader:
    ...     pass
    >>> spent = loader.stats() - before
    >>> spent.batches, spent.samples, spent.epochs, spent.bad_samples
    (3, 10, 1, 0)
    >>> 0 < spent.read + spent.collate < spent.wait < spent.elapsed
    True
    """

    elapsed: float
    """Seconds since the loader was built, or between the two stats of a difference."""
    batches: int
    samples: int | None
    """Number of samples in these batches: items of the dataset.

    None if a user's function returns whole batches.
    """
    bad_samples: int
    """Number of times that a sample could not be used, again in each epoch."""
    epochs: int
    """Number of finished passes."""
    worker_restarts: int
    """Number of times that lost workers were replaced."""
    read: float
    """Seconds of reading: all of ``dataset[index]``, or a source's files and their headers."""
    decode: float
    """Seconds of decoding a source's images; with ``device=``, including the copy to the GPU."""
    augment: float
    """Seconds of ``transform`` and ``batch_transform``."""
    collate: float
    """Seconds of ``collate_fn``; images of a source are decoded straight into their batch."""
    transfer: float
    """Seconds of sending batches between processes, pinning them and copying them to a device."""
    wait: float
    """Seconds that the loop waited in ``next()``; without workers this includes all work."""
    idle: float
    """Seconds that workers were idle, because the loop had not taken enough batches."""
    under_way: int
    """Number of batches that are queued or being made by workers now."""
    ready: int
    """Number of finished batches that wait for the loop now.

    Batches that a process has sent count as ``under_way`` until ``next()`` receives them.
    """

    def __repr__(self) -> str:
        """Return all fields, with seconds rounded to milliseconds."""
        fields = [f"{name}={_rounded(value)}" for name, value in vars(self).items()]
        return f"{type(self).__name__}({', '.join(fields)})"

    def __sub__(self, earlier: LoaderStats) -> LoaderStats:
        """Return the difference; ``under_way`` and ``ready`` are those of the later stats."""
        differences = {
            field.name: _difference(getattr(self, field.name), getattr(earlier, field.name))
            for field in dataclasses.fields(self)
            if field.name not in _MOMENTARY
        }
        return dataclasses.replace(self, **differences)


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def _difference(later: Any, earlier: Any) -> Any:
    return None if later is None or earlier is None else later - earlier


class Work:
    """The work of one thread for one loader; no other thread adds to its seconds."""

    __slots__ = ("seconds", "since", "stage")

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(SUMMED, 0.0)
        self.stage: str | None = None
        self.since = 0.0
        """Time up to which the present stage is counted."""

    def add(self, seconds: Mapping[str, float]) -> None:
        _add(self.seconds, seconds)


class _Present(threading.local):
    def __init__(self) -> None:
        self.work = Work()


PRESENT = _Present()
"""Thread-local; the attribute ``work`` is the calling thread's present work."""


class StageTimes:
    """Seconds spent in each stage by all threads that work for a loader.

    Each thread adds to its own :class:`Work`. A copy or unpickled object starts at zero.
    """

    def __init__(self) -> None:
        self.own = Work()
        """The work of the thread that iterates the loader; there is one at a time."""
        self._works = [self.own]
        self._ended = dict.fromkeys(SUMMED, 0.0)
        self._lock = fork_safe(threading.RLock())  # a signal handler may call total() too

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Note the calling thread's work while the context is open."""
        work = Work()
        with self._lock:
            self._works.append(work)
        PRESENT.work = work
        try:
            yield
        finally:
            with self._lock:
                self._works.remove(work)
                _add(self._ended, work.seconds)

    def total(self) -> dict[str, float]:
        with self._lock:
            total = dict(self._ended)
            for work in self._works:
                _add(total, work.seconds)
        return total

    def take(self) -> dict[str, float]:
        """Return the non-zero seconds of :attr:`own`, and set them to zero."""
        taken = {name: seconds for name, seconds in self.own.seconds.items() if seconds}
        self.own.seconds.update(dict.fromkeys(taken, 0.0))
        return taken


def _add(total: dict[str, float], seconds: Mapping[str, float]) -> None:
    for name, more in seconds.items():
        total[name] += more


class Tally(StageTimes):
    """The times of one loader with the counts of its deliveries."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = self.samples = self.bad_samples = self.epochs = self.worker_restarts = 0
        self._built = perf_counter()
        self._run: weakref.ref[Any] | None = None
        """The pass that began last, while it is iterated."""
        self._owner = 0
        """Process in which that pass began."""

    def begin(self, run: Any) -> None:
        """Note the pass, which knows how many batches are in progress."""
        self._run, self._owner = weakref.ref(run), os.getpid()

    def deliver(self, request: Any, answer: Any) -> None:
        """Count a batch that is delivered to the loop."""
        self.batches += 1
        known = None if answer is None else answer.num_samples
        self.samples += len(request.indices) if known is None else known

    def stats(self, *, knows_samples: bool) -> LoaderStats:
        """Return the counts and times as a value.

        Args:
            knows_samples: whether the number of samples in a batch is known.
        """
        run = None if self._run is None or self._owner != os.getpid() else self._run()
        under_way, ready = (0, 0) if run is None else run.depth()
        return LoaderStats(
            elapsed=perf_counter() - self._built,
            batches=self.batches,
            samples=self.samples if knows_samples else None,
            bad_samples=self.bad_samples,
            epochs=self.epochs,
            worker_restarts=self.worker_restarts,
            under_way=under_way,
            ready=ready,
            **self.total(),
        )


class waiting:  # noqa: N801 - used like a function, in ``with``
    """Counts seconds as a wait, even within stages.

    Args:
        name: name of the time in :class:`LoaderStats`, and of the profiler's range.
        work: the work that waits; None for the thread's present work.
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
    """Counts seconds as a stage.

    An inner stage interrupts the outer one.

    Args:
        name: name of the time in :class:`LoaderStats`, and of the profiler's range.
        work: the work that enters the stage; None for the thread's present work.
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

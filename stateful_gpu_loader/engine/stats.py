"""What a loader has done so far: counts, seconds in each stage, and how far its workers are ahead.

Workers note seconds in the :class:`StageTimes` of their loader, once a batch or once an image. The
stages themselves are marked by :class:`stage` and :class:`waiting`, for profilers as well.
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
"""Names of the times that a loader adds up; fields of :class:`LoaderStats`."""

_MOMENTARY = ("under_way", "ready")


@dataclass(frozen=True, kw_only=True)
class LoaderStats:
    """What a loader has done since it was built; ``later - earlier`` is what it did in between.

    Counts are of what was delivered to the loop. Times are seconds, added up over all workers, and
    each moment of a worker belongs to one stage only, so their sum divided by ``elapsed`` says how
    many workers were busy on average. Batches that are made ahead of the loop are in the times
    before they are in the counts. Work on a GPU counts for as long as a thread waits for it.

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
    """Batches that were delivered."""
    samples: int | None
    """Samples in these batches: items of the dataset. None if only a user's function knows, which
    returns whole batches."""
    bad_samples: int
    """How often a sample could not be used; one that is met in each epoch counts in each."""
    epochs: int
    """Passes that came to their end."""
    worker_restarts: int
    """How often lost workers were replaced."""
    read: float
    """Seconds of reading: all of ``dataset[index]``, or a source's files and their headers."""
    decode: float
    """Seconds of decoding a source's images; with ``device=``, including their way to the GPU."""
    augment: float
    """Seconds of ``transform`` and ``batch_transform``."""
    collate: float
    """Seconds of ``collate_fn``; images of a source are decoded straight into their batch."""
    transfer: float
    """Seconds of sending batches between processes, pinning them and copying them to a device."""
    wait: float
    """Seconds that the loop waited in ``next()``, which includes all work if there are no
    workers."""
    idle: float
    """Seconds that workers had nothing to do, because the loop had not taken enough batches."""
    under_way: int
    """Batches that workers are to make or making at this moment."""
    ready: int
    """Batches that are made and wait for the loop at this moment. Those that a process has sent
    count as under way until ``next()`` receives them."""

    def __sub__(self, earlier: LoaderStats) -> LoaderStats:
        """Return what was done in between; ``under_way`` and ``ready`` are those of the later."""
        differences = {
            field.name: _difference(getattr(self, field.name), getattr(earlier, field.name))
            for field in dataclasses.fields(self)
            if field.name not in _MOMENTARY
        }
        return dataclasses.replace(self, **differences)


def _difference(later: Any, earlier: Any) -> Any:
    return None if later is None or earlier is None else later - earlier


class Work:
    """The work of one thread for one loader; no other thread adds to its seconds."""

    __slots__ = ("seconds", "since", "stage")

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(SUMMED, 0.0)
        self.stage: str | None = None
        """The stage it is in."""
        self.since = 0.0
        """Time up to which that stage's seconds are noted."""

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add what was taken from the times of another process."""
        _add(self.seconds, seconds)


class _Present(threading.local):
    def __init__(self) -> None:
        self.work = Work()


PRESENT = _Present()
"""Whose attribute ``work`` is what the calling thread is working on."""


class StageTimes:
    """Seconds spent in each stage by all threads that work for a loader.

    Each thread adds to a :class:`Work` of its own, so that none waits for another. A copy, and what
    a pickle becomes, starts at zero.
    """

    def __init__(self) -> None:
        self.own = Work()
        """The work of the thread that iterates the loader, of which there is one at a time."""
        self._works = [self.own]
        self._ended = dict.fromkeys(SUMMED, 0.0)
        """Seconds of the threads that have ended."""
        self._lock = fork_safe(threading.RLock())  # a signal handler may ask as well

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Note here what the calling thread, which is one of the loader's own, does meanwhile."""
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
        """Return all seconds so far."""
        with self._lock:
            total = dict(self._ended)
            for work in self._works:
                _add(total, work.seconds)
        return total

    def take(self) -> dict[str, float]:
        """Return the seconds of :attr:`own` that are not zero, and set them to zero."""
        taken = {name: seconds for name, seconds in self.own.seconds.items() if seconds}
        self.own.seconds.update(dict.fromkeys(taken, 0.0))
        return taken


def _add(total: dict[str, float], seconds: Mapping[str, float]) -> None:
    for name, more in seconds.items():
        total[name] += more


class Tally(StageTimes):
    """The times of one loader with the counts of what it has delivered."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = self.samples = self.bad_samples = self.epochs = self.worker_restarts = 0
        self._built = perf_counter()
        self._run: weakref.ref[Any] | None = None
        """The pass that began last, while it is iterated."""
        self._owner = 0
        """Process in which that pass began; a forked child must not ask its workers."""

    def begin(self, run: Any) -> None:
        """Note the pass, which tells how many batches are under way."""
        self._run, self._owner = weakref.ref(run), os.getpid()

    def deliver(self, request: Any, answer: Any) -> None:
        """Count a batch that is handed to the loop."""
        self.batches += 1
        known = None if answer is None else answer.num_samples
        self.samples += len(request.indices) if known is None else known

    def stats(self, *, knows_samples: bool) -> LoaderStats:
        """Return all of it as a value.

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

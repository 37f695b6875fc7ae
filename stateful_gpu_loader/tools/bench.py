"""Finds the bottleneck of a loader: its stages, measured with several numbers of workers.

Batches are taken as fast as they come.
"""

from __future__ import annotations

import copy
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from stateful_gpu_loader.datasets import as_source
from stateful_gpu_loader.engine.stats import LoaderStats
from stateful_gpu_loader.errors import LoaderError, UnsupportedLoader
from stateful_gpu_loader.loader import StatefulGPULoader

STAGES = ("read", "decode", "augment", "collate", "transfer")
ROUNDS = 3
"""Number of times that each contestant is measured, in turns."""

OURS, CONVERTED = "this loader", "converted loader"
_NAMES = {
    "read": "reading",
    "decode": "decoding",
    "augment": "augmenting",
    "collate": "collating",
    "transfer": "handing batches over",
}
_NEARLY = 0.95
"""Share of the highest rate that is good enough."""


class BenchError(LoaderError):
    """A loader cannot be measured in this way."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Measurement of one loader with one number of workers."""

    loader: str
    """``"this loader"`` or ``"converted loader"``."""
    num_workers: int
    samples_per_second: float
    """Median of the rounds."""
    rounds: tuple[float, ...]
    """Samples per second of each round."""
    stages: dict[str, float]
    """Seconds per sample in each stage, added up over all workers; empty for torch's loaders, which
    do not report them."""
    idle: float
    """Seconds per sample that workers had nothing to do."""


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """Speed of a loader whose only work is one of its stages."""

    stage: str
    alone: float
    """Seconds per sample with the smallest number of workers."""
    together: float
    """Seconds per sample with the fastest number of workers."""
    samples_per_second: float
    """Rate of one worker for each core, each at the speed of ``alone``."""


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """Result of :func:`bench`: the bottleneck of a loader."""

    cores: int
    """Number of CPU cores that this process may use."""
    load_average: float | None
    """Average number of processes that wanted a core in the minute before, if known. Far above 0,
    other programs make the figures too low."""
    batch_size: int | None
    rates: tuple[Rate, ...]
    ceilings: tuple[Ceiling, ...]
    recommendation: str
    conversion: str | None
    """Speed of the loader from ``from_dataloader``, or why there is none; None if this loader is on
    the fast path."""


def bench(
    loader: DataLoader[Any],
    *,
    workers: Sequence[int] = (0, 1, 2, 4),
    seconds: float = 5.0,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
) -> BenchReport:
    """Measure a loader with several numbers of workers.

    The loader runs pass after pass, from its present position. If its dataset can be converted by
    :meth:`StatefulGPULoader.from_dataloader`, the converted loader is measured in turns.

    Args:
        loader: the loader; a StatefulGPULoader's ``num_workers`` is changed.
        workers: numbers of workers.
        seconds: duration for each number of workers; starting workers may take as long again.
        progress: called with the name of the next measurement, the number of finished measurements
            and the number of all.

    Raises:
        BenchError: another DataLoader cannot be converted, or the loader cannot change its workers.

    >>> loader = StatefulGPULoader(range(1000), batch_size=10)
    >>> report = bench(loader, workers=[0], seconds=0.1)
    >>> [ceiling.stage for ceiling in report.ceilings]
    ['read', 'collate']
    """
    if not workers or min(workers) < 0 or seconds <= 0:
        raise BenchError(
            f"workers={list(workers)} and seconds={seconds} cannot be measured. Remedy: pass at "
            "least one number of workers, none below 0, and a time above 0"
        )
    load_average = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    converted, why_not = _converted(loader)
    measure_given: Callable[[Any, int, float], _Measured] = _measure_torch
    if isinstance(loader, StatefulGPULoader):
        measure_given = _measure_ours
    contestants: list[tuple[str, int, Callable[[float], _Measured]]] = []
    for number in sorted(set(workers)):
        contestants.append((OURS, number, partial(measure_given, loader, number)))
        if converted is not None:
            contestants.append((CONVERTED, number, partial(_measure_ours, converted, number)))
    found: dict[tuple[str, int], list[_Measured]] = {one[:2]: [] for one in contestants}
    total = ROUNDS * len(contestants)
    for done in range(total):
        turn, place = divmod(done, len(contestants))
        name, number, measure = contestants[place if turn % 2 == 0 else -1 - place]
        progress(f"{name}, {number} workers", done, total)
        found[name, number].append(measure(seconds / ROUNDS))
    progress("done", total, total)
    rates = tuple(_rate(name, number, parts) for (name, number), parts in found.items())
    cores = available_cores()
    return BenchReport(
        cores=cores,
        load_average=load_average,
        batch_size=loader.batch_size,
        rates=rates,
        ceilings=ceilings_of(rates, cores),
        recommendation=recommend(rates, cores),
        conversion=why_not if converted is None else _gain(rates),
    )


def _converted(loader: DataLoader[Any]) -> tuple[StatefulGPULoader[Any] | None, str | None]:
    """Return the loader on the fast path, or why there is none; neither if ``loader`` is there."""
    is_ours = isinstance(loader, StatefulGPULoader)
    if is_ours and as_source(loader.dataset) is not None:
        return None, None
    try:
        return StatefulGPULoader.from_dataloader(loader), None
    except UnsupportedLoader as error:
        if not is_ours:
            raise BenchError(
                f"{type(loader).__name__} does not report the time of its stages, and {error}"
            ) from error
        places = "; ".join(f"{part.place}, because {part.reason}" for part in error.refused)
        return None, f"from_dataloader cannot convert {places}"


def _gain(rates: Sequence[Rate]) -> str:
    """Return a sentence: the speed of the converted loader beside the given one.

    >>> def rate(loader, speed):
    ...     return Rate(loader=loader, num_workers=2, samples_per_second=speed, rounds=(speed,),
    ...                 stages={}, idle=0.0)
    >>> _gain([rate(OURS, 500.0), rate(CONVERTED, 1000.0)])
    'from_dataloader(loader) delivers 1,000 samples per second, 2.00 times this loader'
    """
    given, converted = (
        max(rate.samples_per_second for rate in rates if rate.loader == name)
        for name in (OURS, CONVERTED)
    )
    return (
        f"from_dataloader(loader) delivers {converted:,.0f} samples per second, "
        f"{converted / given:.2f} times this loader"
    )


def _with_workers(loader: DataLoader[Any], num_workers: int) -> DataLoader[Any]:
    """Return a copy of a DataLoader with another number of workers."""
    twin = copy.copy(loader)
    twin.__dict__.update(
        num_workers=num_workers,
        prefetch_factor=(loader.prefetch_factor or 2) if num_workers else None,
        persistent_workers=loader.persistent_workers and num_workers > 0,
        _iterator=None,
    )
    return twin


def available_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def ceilings_of(rates: Sequence[Rate], cores: int) -> tuple[Ceiling, ...]:
    """Return the ceiling of each stage that takes any time, in the order of the stages.

    >>> def rate(n, speed, **stages):
    ...     return Rate(loader="this loader", num_workers=n, samples_per_second=speed,
    ...                 rounds=(speed,), stages=stages, idle=0.0)
    >>> rates = rate(0, 100.0, read=0.002, decode=0.008), rate(4, 300.0, read=0.002, decode=0.01)
    >>> [(one.stage, one.samples_per_second) for one in ceilings_of(rates, cores=2)]
    [('read', 1000.0), ('decode', 250.0)]
    """
    ours = analysed(rates)
    alone, together = ours[0], fastest_of(ours)
    return tuple(
        Ceiling(
            stage=stage,
            alone=alone.stages[stage],
            together=together.stages.get(stage, 0.0),
            samples_per_second=cores / alone.stages[stage],
        )
        for stage in STAGES
        if alone.stages.get(stage, 0.0) > 0
    )


def recommend(rates: Sequence[Rate], cores: int) -> str:
    """Return a sentence: the bottleneck of the loader, and which ``num_workers`` is enough.

    >>> def rate(n, speed, **stages):
    ...     return Rate(loader="this loader", num_workers=n, samples_per_second=speed,
    ...                 rounds=(speed,), stages=stages, idle=0.0)
    >>> sentence = recommend([rate(0, 100.0, decode=0.01), rate(2, 190.0, decode=0.01)], cores=2)
    >>> sentence.partition(": ")[0]
    'Decoding bounds this loader, with 100% of its work'
    """
    ours = analysed(rates)
    fastest = fastest_of(ours)
    enough = next(
        one for one in ours if one.samples_per_second >= _NEARLY * fastest.samples_per_second
    )
    work = sum(enough.stages.values())
    stage = max(enough.stages, key=lambda name: enough.stages[name], default=None)
    what = (
        "No work was measured"
        if stage is None or not work
        else f"{_NAMES[stage].capitalize()} bounds this loader, with "
        f"{enough.stages[stage] / work:.0%} of its work"
    )
    delivered = (
        f"num_workers={enough.num_workers} delivers {enough.samples_per_second:,.0f} samples per "
        "second"
    )
    share = enough.samples_per_second / fastest.samples_per_second
    if len(ours) == 1:
        compared = "the only number of workers that was measured"
    elif enough is fastest:
        compared = "the most that was measured"
    else:
        compared = f"{share:.0%} of the most that was measured (num_workers={fastest.num_workers})"
    return f"{what}: {delivered}, {compared}{_rest(ours, enough, cores)}."


def _rest(ours: Sequence[Rate], enough: Rate, cores: int) -> str:
    """Return advice, as far as the figures support it."""
    if enough.num_workers >= cores:
        return f", and all {cores} cores are used" if cores > 1 else ", and the only core is used"
    if len(ours) > 1 and enough is ours[-1]:
        return f"; more may help, as {cores} cores are here: try --workers {cores}"
    if enough.num_workers and enough.idle > sum(enough.stages.values()):
        return "; its workers wait most of the time, so the process that takes the batches bounds"
    return ""


@dataclass(frozen=True)
class _Measured:
    """Measurement of one contestant in one round."""

    samples: int
    elapsed: float
    """Seconds."""
    spent: dict[str, float]
    """Seconds in each stage and idle seconds; empty if unknown."""


def _measure_ours(loader: StatefulGPULoader[Any], num_workers: int, seconds: float) -> _Measured:
    _set_workers(loader, num_workers)
    noted: list[LoaderStats] = []
    _, elapsed = timed(
        loader,
        seconds,
        warm_up=max(1, num_workers),
        note=lambda: noted.append(loader.stats()),
    )
    parts = [later - earlier for earlier, later in zip(noted[::2], noted[1::2], strict=True)]
    samples = sum(part.batches if part.samples is None else part.samples for part in parts)
    spent = {name: sum(getattr(part, name) for part in parts) for name in (*STAGES, "idle")}
    return _Measured(samples, elapsed, spent)


def _measure_torch(loader: DataLoader[Any], num_workers: int, seconds: float) -> _Measured:
    twin = _with_workers(loader, num_workers)
    batches, elapsed = timed(twin, seconds, warm_up=max(1, num_workers))
    return _Measured(batches * (loader.batch_size or 1), elapsed, {})


def timed(
    loader: Iterable[Any],
    seconds: float,
    *,
    warm_up: int,
    note: Callable[[], None] = lambda: None,
) -> tuple[int, float]:
    """Take batches for some time, pass after pass; return their number and the seconds they took.

    Args:
        warm_up: number of batches at the start of a pass that do not count.
        note: called when the clock starts and when it stops.

    Raises:
        BenchError: a pass has no batches after the warm-up.
    """
    counted, elapsed = 0, 0.0
    while elapsed < seconds:
        batches = iter(loader)
        first = next(batches, None)
        if first is None:
            raise BenchError(
                "a pass of the loader has no batch. Remedy: use a dataset with samples"
            )
        taken = 1
        while taken < warm_up and next(batches, None) is not None:
            taken += 1
        note()
        started, before = time.perf_counter(), counted
        for _ in batches:
            counted += 1
            if time.perf_counter() - started + elapsed >= seconds:
                break
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        elapsed += time.perf_counter() - started
        note()
        if counted == before:
            raise BenchError(
                f"a pass of the loader has {taken} batches, too few to measure {warm_up} workers. "
                "Remedy: fewer --workers, a smaller batch_size, or more data"
            )
        del batches
    return counted, elapsed


def _set_workers(loader: StatefulGPULoader[Any], num_workers: int) -> None:
    try:
        loader.num_workers = num_workers
    except ValueError as error:
        raise BenchError(
            f"this loader has num_workers={loader.num_workers}, and each worker keeps its own "
            f"state. Remedy: --workers {loader.num_workers}, and another factory for other numbers"
        ) from error


def _rate(loader: str, num_workers: int, parts: Sequence[_Measured]) -> Rate:
    rounds = tuple(part.samples / part.elapsed for part in parts)
    samples = sum(part.samples for part in parts)
    spent = {
        name: sum(part.spent.get(name, 0.0) for part in parts) / samples
        for name in (*STAGES, "idle")
    }
    idle = spent.pop("idle")
    return Rate(
        loader=loader,
        num_workers=num_workers,
        samples_per_second=statistics.median(rounds),
        rounds=rounds,
        stages={name: seconds for name, seconds in spent.items() if seconds > 0},
        idle=idle,
    )


def analysed(rates: Sequence[Rate]) -> list[Rate]:
    """Return the rates of the given loader, or of the converted one if only it has stages.

    They are ordered by number of workers.
    """
    own = [one for one in rates if one.loader == OURS]
    converted = [one for one in rates if one.loader == CONVERTED]
    known = converted if converted and not any(one.stages for one in own) else own
    return sorted(known, key=lambda one: one.num_workers)


def fastest_of(rates: Sequence[Rate]) -> Rate:
    return max(rates, key=lambda one: one.samples_per_second)

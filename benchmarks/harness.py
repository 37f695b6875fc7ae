"""Contestants measured in turn: interleaved rounds in rotating order, new processes."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.arguments import Arguments
from benchmarks.progress import progress_bar
from benchmarks.results import Measurement

ROOT = Path(__file__).parent.parent
"""Folder in which processes start, so that they import this checkout, installed or not."""
COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}
"""Variable of started processes: a start without compiled files would measure Python's compiler."""

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Contestant:
    """A repeatable measurement."""

    name: str
    """Key in the JSON."""
    label: str
    """Name in the table."""
    measure: Callable[[], float]
    """Makes one measurement from scratch, in the unit of the benchmark."""


def alternate(
    contestants: Sequence[Contestant], *, rounds: int, title: str, warm_up_rounds: int = 1
) -> dict[str, list[float]]:
    """Measure every contestant once a round, so that a noisy minute affects all of them.

    The order rotates from round to round, and every second round runs backwards, so that no
    contestant always follows the same neighbour. Garbage is collected before each measurement.
    Objects that exist before the first, above all modules, are excluded from collection.

    Args:
        contestants: contestants with different names.
        rounds: number of measurements of each.
        title: title of the progress bar.
        warm_up_rounds: number of rounds before those, which fill caches and do not count.

    Returns:
        Measurements of each name, in the order of the rounds.
    """
    values: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    total = (rounds + warm_up_rounds) * len(contestants)
    gc.collect()
    gc.freeze()
    try:
        with progress_bar(title, total, unit="run") as progress:
            for number in range(-warm_up_rounds, rounds):
                for contestant in _rotated(contestants, number):
                    progress.set_postfix_str(contestant.label, refresh=sys.stderr.isatty())
                    gc.collect()
                    value = contestant.measure()
                    if number >= 0:
                        values[contestant.name].append(value)
                    progress.update()
    finally:
        gc.unfreeze()
    return values


def measured(
    contestants: Sequence[Contestant],
    arguments: Arguments,
    *,
    title: str,
    unit: str,
    rounds: int | None = None,
    warm_up_rounds: int | None = None,
) -> list[Measurement]:
    """Return the measurement of each contestant, by :func:`alternate`.

    Args:
        contestants: contestants with different names.
        arguments: default numbers of rounds and warm-up rounds.
        title: title of the progress bar.
        unit: unit of all measurements.
        rounds: replaces that of the arguments.
        warm_up_rounds: replaces that of the arguments.
    """
    values = alternate(
        contestants,
        rounds=arguments.rounds if rounds is None else rounds,
        title=title,
        warm_up_rounds=arguments.warm_up_rounds if warm_up_rounds is None else warm_up_rounds,
    )
    return [Measurement(each.name, each.label, unit, values[each.name]) for each in contestants]


def seconds_a_batch(batches: Iterator[Any], *, warm_up: int, timed: int) -> float:
    """Return the seconds between batches in the middle of a pass.

    The clock starts when the last batch of the warm-up is delivered, so neither the start of
    workers nor the first batch counts. Make ``warm_up`` a multiple of the number of workers,
    which deliver their batches in bunches of that size. Make the pass longer than the timed
    part, so that all workers are busy until the end of that part.
    """
    for _ in range(warm_up):
        batch = next(batches)
    started = time.perf_counter()
    for _ in range(timed):
        batch = next(batches)
    seconds = time.perf_counter() - started
    del batch
    return seconds / timed


def in_fresh_process(function: Callable[..., _Result], /, *arguments: Any) -> _Result:
    """Return the function's result from a Python process that has done nothing else.

    The function, its arguments and its result must be picklable. The process may start workers
    by Python's default method.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(_as_by_default, function, *arguments).result()


def run_apart(is_quick: bool, function: Callable[..., _Result], /, *arguments: Any) -> _Result:
    """Run the function in a new process; a smoke run stays in this one to save time.

    >>> run_apart(True, max, 3, 7)
    7
    """
    return function(*arguments) if is_quick else in_fresh_process(function, *arguments)


def quieten_peers() -> None:
    """Silence repeated warnings of peers, in this process and its forks.

    torchvision's decoders are deprecated, but still the fastest that its users have.
    StatefulDataLoader's constructor calls a deprecated function of torch.
    """
    warnings.filterwarnings("ignore", message=".*TorchVision are deprecated")
    warnings.filterwarnings("ignore", message=".*set_vital.*")


def _as_by_default(function: Callable[..., _Result], /, *arguments: Any) -> _Result:
    """Call the function; without this, a spawned process would also spawn its own children."""
    multiprocessing.set_start_method(None, force=True)
    quieten_peers()
    return function(*arguments)


def _rotated(contestants: Sequence[Contestant], number: int) -> list[Contestant]:
    shift = number // 2 % len(contestants)
    order = [*contestants[shift:], *contestants[:shift]]
    return order if number % 2 == 0 else order[::-1]

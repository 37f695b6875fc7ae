"""Costs of a state: its size, taking it, resuming from it, and the memory of the order.

Each loader and length has its own Python process. There the memory is measured first, then the
state, then the time to the first batch after ``load_state_dict``, from states at several places of
the epoch in turn. The dataset's items cost nothing.
"""

from __future__ import annotations

import functools
import io
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.arguments import Arguments, parse
from benchmarks.datasets import Numbers
from benchmarks.harness import Contestant, measured, run_apart
from benchmarks.markdown import (
    Content,
    aims_table,
    as_table,
    medians_of,
    power_of_ten,
    short,
)
from benchmarks.memory import PeakGrowth
from benchmarks.results import Aim, Measurement, compared, medians
from stateful_gpu_loader import StatefulGPULoader

BATCH_SIZE = 256
NUM_WORKERS = (0, 2)
PLACES = (0.0, 0.5, 0.9)
"""Delivered shares of the epoch when the state is taken."""

OURS, TORCHDATA = "ours", "torchdata"
LABELS = {OURS: "StatefulGPULoader", TORCHDATA: "StatefulDataLoader"}
LENGTHS = {OURS: (10**4, 10**7, 10**9), TORCHDATA: (10**4, 10**7)}
"""StatefulDataLoader's list of 10**9 indices would take about 40 GB."""

TITLES = {
    "JSON size": "size as JSON",
    "saved size": "size as `torch.save` writes it",
    "state_dict()": "time of `state_dict()`",
    "peak memory growth": "peak memory growth, 0 workers",
}

_BATCHES_BEFORE_STATE = 10
_CALLS = 1000
"""Number of ``state_dict()`` calls in one measurement; a tenth for the slower peer."""


@dataclass(frozen=True, kw_only=True)
class Case:
    loader: str
    n: int

    def make(self, num_workers: int) -> Any:
        dataset = Numbers(self.n)
        if self.loader == OURS:
            return StatefulGPULoader(
                dataset, BATCH_SIZE, shuffle=True, num_workers=num_workers, seed=42
            )
        torch.manual_seed(42)
        return StatefulDataLoader(dataset, BATCH_SIZE, shuffle=True, num_workers=num_workers)

    def name(self, what: str) -> str:
        return f"{self.loader} {what} n={self.n}"

    def label(self, what: str) -> str:
        return f"{LABELS[self.loader]}, n = {self.n:,}, {what}"


def main(given: Sequence[str] | None = None) -> None:
    arguments = parse(__doc__, rounds=9, given=given)
    lengths = {loader: found[:1] for loader, found in LENGTHS.items()}
    cases = [
        Case(loader=loader, n=n)
        for loader, found in (lengths if arguments.quick else LENGTHS).items()
        for n in found
    ]
    measurements = [
        measurement
        for case in cases
        for measurement in run_apart(arguments.quick, measure, case, arguments)
    ]
    found = medians(measurements)
    ours = [case for case in cases if case.loader == OURS]
    first = "first batch, {} workers, {:.0%}"
    comparisons = compared(
        measurements,
        [
            (case.name(first.format(workers, place)), case.name(first.format(workers, PLACES[0])))
            for case in ours
            for workers in NUM_WORKERS
            for place in PLACES[1:]
        ],
    )
    size, taking = (
        max(found[case.name(what)] for case in ours) for what in ("JSON size", "state_dict()")
    )
    growth = found[ours[-1].name("peak memory growth")]
    begun = max(found[ours[-1].name(first.format(0, place))] for place in PLACES)
    spread = max(abs(comparison.ratio.median - 1) for comparison in comparisons)
    longest = f"n = {ours[-1].n:,}"
    arguments.report(
        "state",
        settings={
            "batch_size": BATCH_SIZE,
            "lengths": [case.n for case in ours],
            "places": list(PLACES),
        },
        measurements=measurements,
        comparisons=comparisons,
        aims=[
            Aim.at_most("size of the state as JSON, at any n", size, 1024, "bytes"),
            Aim.at_most("time of state_dict(), at any n", taking, 50, "us"),
            Aim.at_most(f"peak memory growth, {longest}", growth, 50, "MiB"),
            Aim.at_most(
                f"first batch after load_state_dict, 0 workers, {longest}", begun, 100, "ms"
            ),
            Aim.at_most(
                "its largest change from one place of the epoch to another", spread, 0.1, "of 1"
            ),
        ],
        notes=[
            "StatefulDataLoader is not run at n = 1,000,000,000: its list of indices would take "
            "some 40 GB."
        ],
    )


def measure(case: Case, arguments: Arguments) -> list[Measurement]:
    """Return all measurements of one case, in the calling process."""
    found = [_memory(case), *_state(case, arguments)]
    for num_workers in NUM_WORKERS:
        found.extend(_first_batch(case, num_workers, arguments))
    return found


def _memory(case: Case) -> Measurement:
    """Measure the memory; must come first, because a process keeps memory that it once took."""
    growth = PeakGrowth()
    batches = iter(loader := case.make(num_workers=0))
    for _ in range(_BATCHES_BEFORE_STATE):
        next(batches)
    loader.state_dict()
    return Measurement(
        case.name("peak memory growth"),
        case.label("peak memory growth"),
        "MiB",
        [growth.mebibytes()],
    )


def _state(case: Case, arguments: Arguments) -> list[Measurement]:
    batches = iter(loader := case.make(num_workers=0))
    for _ in range(_BATCHES_BEFORE_STATE):
        next(batches)
    calls = _CALLS if case.loader == OURS else _CALLS // 10

    def microseconds() -> float:
        started = time.perf_counter()
        for _ in range(calls):
            loader.state_dict()
        return (time.perf_counter() - started) / calls * 1e6

    label = case.label("state_dict()")
    contestant = Contestant(case.name("state_dict()"), label, microseconds)
    taken = measured([contestant], arguments, title=label, unit="us", warm_up_rounds=1)
    saved = Measurement(
        case.name("saved size"),
        case.label("size as torch.save writes it"),
        "bytes",
        [_saved_size(loader.state_dict())],
    )
    if case.loader != OURS:
        return [saved, *taken]
    as_json = Measurement(
        case.name("JSON size"),
        case.label("size as JSON"),
        "bytes",
        [len(json.dumps(loader.state_dict()))],
    )
    return [as_json, saved, *taken]


def _first_batch(case: Case, num_workers: int, arguments: Arguments) -> list[Measurement]:
    """Measure milliseconds from ``load_state_dict`` to the first batch of a new loader."""
    what = f"first batch, {num_workers} workers"

    def milliseconds(state: dict[str, Any]) -> float:
        loader = case.make(num_workers)
        started = time.perf_counter()
        loader.load_state_dict(state)
        batches = iter(loader)
        batch = next(batches)
        seconds = time.perf_counter() - started
        if len(batch) != BATCH_SIZE:
            raise ValueError(f"{case.label(what)} delivered {len(batch)} samples")
        return seconds * 1e3

    contestants = [
        Contestant(
            case.name(f"{what}, {place:.0%}"),
            case.label(f"{what}, {place:.0%} delivered"),
            functools.partial(milliseconds, state),
        )
        for place, state in zip(PLACES, _states(case, num_workers), strict=True)
    ]
    return measured(
        contestants,
        arguments,
        title=case.label(what),
        unit="ms",
        # More rounds for our loader, which takes only milliseconds.
        rounds=arguments.rounds * (5 if case.loader == OURS and not arguments.quick else 1),
    )


def _states(case: Case, num_workers: int) -> list[dict[str, Any]]:
    """Return states at the places, each taken after that many whole batches.

    For our loader, one state's position is set, because 10**9 samples are too many to walk
    through. The peer's states are reached by walking.
    """
    positions = [int(case.n * place) // BATCH_SIZE * BATCH_SIZE for place in PLACES]
    loader = case.make(num_workers)
    if case.loader == OURS:
        state = loader.state_dict()
        return [{**state, "position": position} for position in positions]
    batches = iter(loader)
    states, delivered = [], 0
    for position in positions:
        for _ in range(position // BATCH_SIZE - delivered):
            next(batches)
        delivered = position // BATCH_SIZE
        states.append(loader.state_dict())
    return states


def _saved_size(state: dict[str, Any]) -> int:
    file = io.BytesIO()
    torch.save(state, file)
    return file.tell()


def state_section(content: Content) -> str:
    """Return size, times and memory, one column for each loader and length."""
    medians = medians_of(content)
    units = {found["name"]: found["unit"] for found in content["measurements"]}
    whats = ["JSON size", "saved size", "state_dict()", "peak memory growth"]
    whats += [
        f"first batch, {num_workers} workers, {place:.0%}"
        for num_workers in NUM_WORKERS
        for place in content["settings"]["places"]
    ]
    cases = [
        Case(loader=loader, n=n)
        for loader, lengths in LENGTHS.items()
        for n in lengths
        if Case(loader=loader, n=n).name("saved size") in medians
    ]
    rows = []
    for what in whats:
        row = [TITLES.get(what) or f"{what} of the epoch delivered"]
        for case in cases:
            name = case.name(what)
            row.append(f"{short(medians[name])} {units[name]}" if name in medians else "")
        rows.append(row)
    head = ["", *(f"{LABELS[case.loader]}, n = {power_of_ten(case.n)}" for case in cases)]
    introduction = (
        "**State**: a dataset of n items that cost nothing, shuffled, batches of "
        f"{content['settings']['batch_size']}. The first batch is timed from `load_state_dict()`, "
        "into a fresh loader."
    )
    notes = "".join(f" {note}" for note in content["notes"])
    return f"{introduction}{notes}\n\n{as_table(head, rows)}\n\n{aims_table(content)}"


if __name__ == "__main__":
    main()

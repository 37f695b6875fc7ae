"""What a state costs: its size, taking it, going on from it, and the memory of the order.

Each loader and length has a Python process of its own, in which first the memory is measured,
then the state, then the time to the first batch after ``load_state_dict``, from states at
several places of the epoch in turn. The dataset's items cost nothing.
"""

from __future__ import annotations

import functools
import io
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.arguments import Arguments, parse
from benchmarks.datasets import Numbers
from benchmarks.harness import Contestant, alternate
from benchmarks.memory import PeakGrowth
from benchmarks.processes import run_apart
from benchmarks.results import Aim, Comparison, Measurement, Results, load_average
from benchmarks.summary import ratio, summarise
from stateful_gpu_loader import StatefulGPULoader

BATCH_SIZE = 256
NUM_WORKERS = (0, 2)
PLACES = (0.0, 0.5, 0.9)
"""Shares of the epoch that lie behind when the state is taken."""

OURS, TORCHDATA = "ours", "torchdata"
LABELS = {OURS: "StatefulGPULoader", TORCHDATA: "StatefulDataLoader"}
LENGTHS = {OURS: (10**4, 10**7, 10**9), TORCHDATA: (10**4, 10**7)}
"""StatefulDataLoader's list of 10**9 indices would take some 40 GB."""

TITLES = {
    "JSON size": "size as JSON",
    "saved size": "size as `torch.save` writes it",
    "state_dict()": "time of `state_dict()`",
    "peak memory growth": "peak memory growth, 0 workers",
}
"""Of the rows of the table."""

_BATCHES_BEFORE_STATE = 10
_CALLS = 1000
"""Of ``state_dict()`` for one measurement; of the slower peer a tenth."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One loader over one length."""

    loader: str
    n: int

    def make(self, num_workers: int) -> Any:
        """A fresh loader, shuffled."""
        dataset = Numbers(self.n)
        if self.loader == OURS:
            return StatefulGPULoader(
                dataset, BATCH_SIZE, shuffle=True, num_workers=num_workers, seed=42
            )
        torch.manual_seed(42)
        return StatefulDataLoader(dataset, BATCH_SIZE, shuffle=True, num_workers=num_workers)

    def name(self, what: str) -> str:
        """Key of a measurement."""
        return f"{self.loader} {what} n={self.n}"

    def label(self, what: str) -> str:
        """The same for a reader."""
        return f"{LABELS[self.loader]}, n = {self.n:,}, {what}"


def main(given: Sequence[str] | None = None) -> None:
    """Run the benchmark and write ``state.json``."""
    arguments = parse(__doc__, rounds=9, given=given)
    before = load_average()
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
    results = _results(arguments, measurements, before)
    path = results.write(arguments.output)
    for measurement in measurements:
        median = summarise(measurement.values).median
        print(f"{measurement.label:70} {median:12.4g} {measurement.unit}")
    for aim in results.aims:
        print(f"{aim.what}: {aim.reached} (aim {aim.aim})")
    print(f"wrote {path.name}")


def measure(case: Case, arguments: Arguments) -> list[Measurement]:
    """All of one case, in the process that calls it."""
    found = [_memory(case), *_state(case, arguments)]
    for num_workers in NUM_WORKERS:
        found.extend(_first_batch(case, num_workers, arguments))
    return found


def _memory(case: Case) -> Measurement:
    """Must come first: what the process took once, it keeps."""
    growth = PeakGrowth()
    batches = iter(loader := case.make(num_workers=0))
    for _ in range(_BATCHES_BEFORE_STATE):
        next(batches)
    loader.state_dict()
    return Measurement(
        name=case.name("peak memory growth"),
        label=case.label("peak memory growth"),
        unit="MiB",
        values=[growth.mebibytes()],
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

    contestant = Contestant(name="state_dict", label="", measure=microseconds)
    values = alternate([contestant], rounds=arguments.rounds, title=case.label("state_dict()"))
    saved = Measurement(
        name=case.name("saved size"),
        label=case.label("size as torch.save writes it"),
        unit="bytes",
        values=[_saved_size(loader.state_dict())],
    )
    taken = Measurement(
        name=case.name("state_dict()"),
        label=case.label("state_dict()"),
        unit="us",
        values=values["state_dict"],
    )
    if case.loader != OURS:
        return [saved, taken]
    as_json = Measurement(
        name=case.name("JSON size"),
        label=case.label("size as JSON"),
        unit="bytes",
        values=[len(json.dumps(loader.state_dict()))],
    )
    return [as_json, saved, taken]


def _first_batch(case: Case, num_workers: int, arguments: Arguments) -> list[Measurement]:
    """Milliseconds from ``load_state_dict`` to the first batch, into a fresh loader each time."""
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
            name=case.name(f"{what}, {place:.0%}"),
            label=f"{place:.0%} behind",
            measure=functools.partial(milliseconds, state),
        )
        for place, state in zip(PLACES, _states(case, num_workers), strict=True)
    ]
    values = alternate(
        contestants,
        rounds=_rounds_of_first_batch(case, arguments),
        title=case.label(what),
        warm_up_rounds=arguments.warm_up_rounds,
    )
    return [
        Measurement(
            name=contestant.name,
            label=case.label(f"{what}, {contestant.label}"),
            unit="ms",
            values=values[contestant.name],
        )
        for contestant in contestants
    ]


def _rounds_of_first_batch(case: Case, arguments: Arguments) -> int:
    """Ours takes milliseconds, so there is time for more rounds."""
    more = 5 if case.loader == OURS and not arguments.quick else 1
    return arguments.rounds * more


def _states(case: Case, num_workers: int) -> list[dict[str, Any]]:
    """States at the places, taken once so many whole batches have been delivered.

    Ours is one state whose position is set, as nobody walks through 10**9 samples; the peer's
    state is reached by walking.
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


def _results(arguments: Arguments, measurements: Sequence[Measurement], before: float) -> Results:
    by_name = {measurement.name: measurement for measurement in measurements}
    lengths = [n for n in LENGTHS[OURS] if Case(loader=OURS, n=n).name("JSON size") in by_name]
    comparisons = [
        _compare(by_name, case.name(f"first batch, {workers} workers, {place:.0%}"), reference)
        for case in (Case(loader=OURS, n=n) for n in lengths)
        for workers in NUM_WORKERS
        for reference in [case.name(f"first batch, {workers} workers, {PLACES[0]:.0%}")]
        for place in PLACES[1:]
    ]
    ours = [Case(loader=OURS, n=n) for n in lengths]

    def medians(what: str, cases: Iterable[Case]) -> list[float]:
        return [summarise(by_name[case.name(what)].values).median for case in cases]

    size = max(medians("JSON size", ours))
    taking = max(medians("state_dict()", ours))
    growth = medians("peak memory growth", ours[-1:])[0]
    first = max(medians(f"first batch, 0 workers, {place:.0%}", ours[-1:])[0] for place in PLACES)
    spread = max(abs(comparison.ratio.median - 1) for comparison in comparisons)
    longest = f"n = {lengths[-1]:,}"
    return Results(
        benchmark="state",
        rounds=arguments.rounds,
        quick=arguments.quick,
        settings={"batch_size": BATCH_SIZE, "lengths": lengths, "places": list(PLACES)},
        measurements=measurements,
        comparisons=comparisons,
        aims=[
            _aim("size of the state as JSON, at any n", size, 1024, "bytes"),
            _aim("time of state_dict(), at any n", taking, 50, "us"),
            _aim(f"peak memory growth, {longest}", growth, 50, "MiB"),
            _aim(f"first batch after load_state_dict, 0 workers, {longest}", first, 100, "ms"),
            _aim("its largest change from one place of the epoch to another", spread, 0.1, ""),
        ],
        notes=[
            "StatefulDataLoader is not run at n = 1,000,000,000: its list of indices would take "
            "some 40 GB."
        ],
        load_average=before,
    )


def _compare(by_name: dict[str, Measurement], of: str, to: str) -> Comparison:
    return Comparison(of=of, to=to, ratio=ratio(by_name[of].values, by_name[to].values))


def _aim(what: str, reached: float, limit: float, unit: str) -> Aim:
    return Aim(
        what=what,
        aim=f"<= {limit:g} {unit}".strip(),
        reached=f"{reached:.3g} {unit}".strip(),
        met=reached <= limit,
    )


if __name__ == "__main__":
    main()

"""What faults cost, and being ready for them: recovery and user states.

Recovery is timed from the SIGKILL of one of two workers to the first batch behind those that were
made before, beside the start of a new loader up to its first batch. States of a user's dataset or
sampler are taken with every batch, in StatefulDataLoader as in our loader; without a state torch's
DataLoader takes part, too.
"""

from __future__ import annotations

import functools
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks import bench_overhead
from benchmarks.arguments import Arguments, parse
from benchmarks.bench_overhead import BATCH_SIZE, BUSY, OURS, TORCH, TORCHDATA, TRIVIAL
from benchmarks.datasets import BusyNumbers, Numbers, turns_of
from benchmarks.harness import Contestant, alternate, quieten_peers, seconds_a_batch
from benchmarks.results import Aim, Comparison, Measurement, Results, load_average
from benchmarks.summary import ratio, summarise
from benchmarks.user_states import Buffered, DrawingSampler, Recent
from stateful_gpu_loader import StatefulGPULoader

NUM_WORKERS = 2
START_METHODS = ("fork", "spawn")
COSTS = {BUSY: "1 ms a sample", TRIVIAL: "trivial samples"}
RECOVERY, FRESH = "recovery", "fresh start"
NO_STATE, INTS, CHANGING, CONSTANT, SAMPLER = "none", "ints", "changing", "constant", "sampler"
STATES = {
    NO_STATE: "no state",
    INTS: "dataset, 1000 ints",
    CHANGING: "dataset, 1 MB that changes",
    CONSTANT: "dataset, 1 MB that stays",
    SAMPLER: "sampler, a generator",
}
DATASETS: dict[str, Callable[[Numbers], Dataset[int]]] = {
    INTS: Recent,
    CHANGING: functools.partial(Buffered, changes=True),
    CONSTANT: functools.partial(Buffered, changes=False),
}
STATE_AIM = 1.0

_SPARE = 8
_MORE_ROUNDS = {"fork": 4, "spawn": 1, "states": 2}
"""What is quick is measured more often."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """One way to start workers, on one dataset."""

    method: str
    cost: str
    turns: int
    """Of the busy loop, a sample."""
    delivered: int
    """Batches before the kill."""

    def milliseconds_of_fresh_start(self) -> float:
        """From ``iter()`` of a new loader to its first batch."""
        loader = self._loader()
        started = time.perf_counter()
        batches = iter(loader)
        next(batches)
        return (time.perf_counter() - started) * 1e3

    def milliseconds_of_recovery(self) -> float:
        """From the kill in the middle of a pass to the first batch of the new workers.

        Nothing is subtracted for the batches in between, which the lost workers had answered.
        """
        loader = self._loader()
        batches = iter(loader)
        for _ in range(self.delivered):
            next(batches)
        victim = batches._workers[0].pid
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*the stream goes on")
            started = time.perf_counter()
            os.kill(victim, signal.SIGKILL)
            while not loader.worker_restarts:
                next(batches)
            return (time.perf_counter() - started) * 1e3

    def contestants(self) -> list[Contestant]:
        """Both."""
        return [
            Contestant(name=start_name(what, self.method, self.cost), label=label, measure=measure)
            for what, measure in (
                (FRESH, self.milliseconds_of_fresh_start),
                (RECOVERY, self.milliseconds_of_recovery),
            )
            for label in [f"{what}, {self.method}, {COSTS[self.cost]}"]
        ]

    def _loader(self) -> StatefulGPULoader[Any]:
        n = BATCH_SIZE * (2 * self.delivered + _SPARE)
        return StatefulGPULoader(
            _numbers(self.cost, n, self.turns),
            BATCH_SIZE,
            shuffle=True,
            num_workers=NUM_WORKERS,
            multiprocessing_context=self.method,
            seed=42,
        )


@dataclass(frozen=True, kw_only=True)
class Stateful:
    """One kind of state, on samples of one cost."""

    state: str
    cost: str
    turns: int
    timed: int
    """Batches."""

    @property
    def loaders(self) -> tuple[str, ...]:
        """Who takes part."""
        return (TORCH, TORCHDATA, OURS) if self.state == NO_STATE else (TORCHDATA, OURS)

    def microseconds_a_batch(self, loader: str) -> float:
        """In the middle of a pass."""
        batches = self._batches(loader)
        return seconds_a_batch(batches, warm_up=4 * NUM_WORKERS, timed=self.timed) * 1e6

    def contestants(self) -> list[Contestant]:
        """One a loader."""
        return [
            Contestant(
                name=state_name(loader, self.state, self.cost),
                label=f"{bench_overhead.LABELS[loader]}, {STATES[self.state]}, {COSTS[self.cost]}",
                measure=functools.partial(self.microseconds_a_batch, loader),
            )
            for loader in self.loaders
        ]

    def _batches(self, loader: str) -> Iterator[Any]:
        if self.state == NO_STATE:
            return _overhead(self.cost, self.timed, self.turns).batches(loader)
        n = BATCH_SIZE * (4 * NUM_WORKERS + self.timed + _SPARE)
        numbers = _numbers(self.cost, n, self.turns)
        arguments: dict[str, Any] = {"batch_size": BATCH_SIZE, "num_workers": NUM_WORKERS}
        if self.state == SAMPLER:
            arguments |= {"dataset": numbers, "sampler": DrawingSampler(n)}
        else:
            arguments |= {"dataset": DATASETS[self.state](numbers), "shuffle": True}
        if loader == TORCHDATA:
            return iter(StatefulDataLoader(snapshot_every_n_steps=1, **arguments))
        return iter(StatefulGPULoader(snapshot_every_n_steps=1, seed=42, **arguments))


def main(given: Sequence[str] | None = None) -> None:
    """Run the benchmark and write ``faults.json``."""
    arguments = parse(__doc__, rounds=9, given=given)
    before = load_average()
    quieten_peers()
    turns = turns_of(bench_overhead.SECONDS_A_SAMPLE)
    measurements, comparisons, aims = [], [], []
    for part in (_recovery, _states):
        found = part(arguments, turns)
        measurements += found.measurements
        comparisons += found.comparisons
        aims += found.aims
    results = Results(
        benchmark="faults",
        rounds=arguments.rounds,
        quick=arguments.quick,
        settings={
            "batch_size": BATCH_SIZE,
            "num_workers": NUM_WORKERS,
            "seconds_a_sample": bench_overhead.SECONDS_A_SAMPLE,
            "turns_a_sample": turns,
        },
        measurements=measurements,
        comparisons=comparisons,
        aims=aims,
        load_average=before,
    )
    path = results.write(arguments.output)
    for measurement in measurements:
        median = summarise(measurement.values).median
        print(f"{measurement.label:70} {median:10.1f} {measurement.unit}")
    for aim in aims:
        print(f"{aim.what}: {aim.reached} (aim {aim.aim}){'' if aim.met else ' MISSED'}")
    print(f"wrote {path.name}")


def start_name(what: str, method: str, cost: str) -> str:
    """Key of a measurement in the JSON."""
    return f"{what} {method} {cost}"


def state_name(loader: str, state: str, cost: str) -> str:
    """Key of a measurement in the JSON."""
    return f"{loader} state={state} {cost}"


_Aims = Mapping[tuple[str, str], tuple[str, float] | None]
"""Of a pair of measurements, what is hoped for and the limit; None compares them and no more."""


@dataclass(frozen=True, kw_only=True)
class _Part:
    """What one part has to say."""

    measurements: list[Measurement]
    comparisons: list[Comparison]
    aims: list[Aim]


def _recovery(arguments: Arguments, turns: int) -> _Part:
    part = _Part(measurements=[], comparisons=[], aims=[])
    for method in START_METHODS[: 1 if arguments.quick else None]:
        starts = [
            Start(method=method, cost=cost, turns=turns, delivered=4 if arguments.quick else 20)
            for cost in COSTS
        ]
        contestants = [each for start in starts for each in start.contestants()]
        pairs = {
            (start_name(RECOVERY, method, cost), start_name(FRESH, method, cost)): None
            for cost in COSTS
        }
        _measure(part, contestants, arguments, kind=method, title=method, unit="ms", aims=pairs)
    return part


def _states(arguments: Arguments, turns: int) -> _Part:
    timed = {BUSY: 2, TRIVIAL: 8} if arguments.quick else {BUSY: 50, TRIVIAL: 500}
    part = _Part(measurements=[], comparisons=[], aims=[])
    for cost in COSTS:
        cases = [
            Stateful(state=state, cost=cost, turns=turns, timed=timed[cost]) for state in STATES
        ]
        contestants = [each for case in cases for each in case.contestants()]
        aims: dict[tuple[str, str], tuple[str, float] | None] = {
            (state_name(OURS, state, cost), state_name(TORCHDATA, state, cost)): (
                f"time of StatefulDataLoader, {STATES[state]}, {COSTS[cost]}",
                STATE_AIM,
            )
            for state in STATES
        }
        none = state_name(OURS, NO_STATE, cost)
        aims[none, state_name(TORCHDATA, NO_STATE, cost)] = None
        aims[none, state_name(TORCH, NO_STATE, cost)] = (
            (f"time of torch's DataLoader, no state, {COSTS[cost]}", STATE_AIM)
            if cost == BUSY
            else None
        )
        title = f"states, {COSTS[cost]}"
        _measure(
            part, contestants, arguments, kind="states", title=title, unit="us a batch", aims=aims
        )
    return part


def _measure(
    part: _Part,
    contestants: Sequence[Contestant],
    arguments: Arguments,
    *,
    kind: str,
    title: str,
    unit: str,
    aims: _Aims,
) -> None:
    """Alternate, and compare the pairs that are keys of ``aims``."""
    more = 1 if arguments.quick else _MORE_ROUNDS[kind]
    values = alternate(
        contestants,
        rounds=arguments.rounds * more,
        title=title,
        warm_up_rounds=arguments.warm_up_rounds,
    )
    part.measurements.extend(
        Measurement(name=each.name, label=each.label, unit=unit, values=values[each.name])
        for each in contestants
    )
    for (of, to), wanted in aims.items():
        found = ratio(values[of], values[to])
        part.comparisons.append(Comparison(of=of, to=to, ratio=found))
        if wanted is not None:
            what, limit = wanted
            part.aims.append(
                Aim(
                    what=what,
                    aim=f"<= {limit:g} times",
                    reached=f"{found.median:.3f} [{found.low:.3f}, {found.high:.3f}]",
                    met=found.median <= limit,
                )
            )


def _overhead(cost: str, timed: int, turns: int) -> bench_overhead.Setting:
    return bench_overhead.Setting(dataset=cost, num_workers=NUM_WORKERS, timed=timed, turns=turns)


def _numbers(cost: str, n: int, turns: int) -> Numbers:
    return BusyNumbers(n, turns) if cost == BUSY else Numbers(n)


if __name__ == "__main__":
    main()

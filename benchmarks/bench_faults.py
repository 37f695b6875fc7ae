"""Costs of faults, and of being prepared for them: recovery and user states.

Recovery is timed from the SIGKILL of one of two workers to the first batch after the batches that
were already made. It is compared with the start of a new loader up to its first batch. States of a
user's dataset or sampler are taken with every batch, in StatefulDataLoader and in our loader. The
case without a state includes torch's DataLoader.
"""

from __future__ import annotations

import functools
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks import bench_overhead
from benchmarks.arguments import Arguments, parse
from benchmarks.bench_overhead import BATCH_SIZE, BUSY, OURS, TORCH, TORCHDATA, TRIVIAL
from benchmarks.datasets import BusyNumbers, Numbers, turns_of
from benchmarks.harness import Contestant, measured, quieten_peers, seconds_a_batch
from benchmarks.markdown import Content, aims_table, as_table, medians_of, short, times_of
from benchmarks.results import Aim, Measurement, compared
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
_MORE_ROUNDS = {"fork": 4, "spawn": 1}
_MORE_ROUNDS_OF_STATES = 2
"""Quick measurements are repeated more often."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """One way to start workers, on one dataset."""

    method: str
    cost: str
    turns: int
    """Turns of the busy loop a sample."""
    delivered: int

    def milliseconds_of_fresh_start(self) -> float:
        """Return the time from ``iter()`` of a new loader to its first batch."""
        loader = self._loader()
        started = time.perf_counter()
        batches = iter(loader)
        next(batches)
        return (time.perf_counter() - started) * 1e3

    def milliseconds_of_recovery(self) -> float:
        """Return the time from a kill during a pass to the first batch of the new workers.

        Nothing is subtracted for the batches in between, which the lost workers had already sent.
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
        return [
            Contestant(start_name(what, self.method, self.cost), label, measure)
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

    @property
    def loaders(self) -> tuple[str, ...]:
        return (TORCH, TORCHDATA, OURS) if self.state == NO_STATE else (TORCHDATA, OURS)

    def microseconds_a_batch(self, loader: str) -> float:
        """Return the time a batch in the middle of a pass."""
        batches = self._batches(loader)
        return seconds_a_batch(batches, warm_up=4 * NUM_WORKERS, timed=self.timed) * 1e6

    def contestants(self) -> list[Contestant]:
        return [
            Contestant(
                state_name(loader, self.state, self.cost),
                f"{bench_overhead.LABELS[loader]}, {STATES[self.state]}, {COSTS[self.cost]}",
                functools.partial(self.microseconds_a_batch, loader),
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
    arguments = parse(__doc__, rounds=9, given=given)
    quieten_peers()
    turns = turns_of(bench_overhead.SECONDS_A_SAMPLE)
    measurements = [*_recoveries(arguments, turns), *_states(arguments, turns)]
    recoveries = [
        (start_name(RECOVERY, method, cost), start_name(FRESH, method, cost))
        for method in START_METHODS
        for cost in COSTS
    ]
    aims = {
        (state_name(OURS, state, cost), state_name(TORCHDATA, state, cost)): (
            f"time of StatefulDataLoader, {STATES[state]}, {COSTS[cost]}"
        )
        for cost in COSTS
        for state in STATES
        if state != NO_STATE
    }
    without = {
        cost: [
            (state_name(OURS, NO_STATE, cost), state_name(loader, NO_STATE, cost))
            for loader in (TORCHDATA, TORCH)
        ]
        for cost in COSTS
    }
    aims[without[BUSY][1]] = f"time of torch's DataLoader, no state, {COSTS[BUSY]}"
    pairs = dict.fromkeys([*recoveries, *without[BUSY], *without[TRIVIAL], *aims])
    comparisons = compared(measurements, pairs)
    arguments.report(
        "faults",
        settings={
            "batch_size": BATCH_SIZE,
            "num_workers": NUM_WORKERS,
            "seconds_a_sample": bench_overhead.SECONDS_A_SAMPLE,
            "turns_a_sample": turns,
        },
        measurements=measurements,
        comparisons=comparisons,
        aims=[
            Aim.at_most(what, found.ratio, STATE_AIM)
            for found in comparisons
            if (what := aims.get((found.of, found.to))) is not None
        ],
    )


def start_name(what: str, method: str, cost: str) -> str:
    return f"{what} {method} {cost}"


def state_name(loader: str, state: str, cost: str) -> str:
    return f"{loader} state={state} {cost}"


def _recoveries(arguments: Arguments, turns: int) -> list[Measurement]:
    return [
        measurement
        for method in START_METHODS[: 1 if arguments.quick else None]
        for measurement in measured(
            [
                contestant
                for cost in COSTS
                for contestant in Start(
                    method=method, cost=cost, turns=turns, delivered=4 if arguments.quick else 20
                ).contestants()
            ],
            arguments,
            title=method,
            unit="ms",
            rounds=arguments.rounds * (1 if arguments.quick else _MORE_ROUNDS[method]),
        )
    ]


def _states(arguments: Arguments, turns: int) -> list[Measurement]:
    timed = {BUSY: 2, TRIVIAL: 8} if arguments.quick else {BUSY: 50, TRIVIAL: 500}
    return [
        measurement
        for cost in COSTS
        for measurement in measured(
            [
                contestant
                for state in STATES
                for contestant in Stateful(
                    state=state, cost=cost, turns=turns, timed=timed[cost]
                ).contestants()
            ],
            arguments,
            title=f"states, {COSTS[cost]}",
            unit="us a batch",
            rounds=arguments.rounds * (1 if arguments.quick else _MORE_ROUNDS_OF_STATES),
        )
    ]


def _overhead(cost: str, timed: int, turns: int) -> bench_overhead.Setting:
    return bench_overhead.Setting(dataset=cost, num_workers=NUM_WORKERS, timed=timed, turns=turns)


def _numbers(cost: str, n: int, turns: int) -> Numbers:
    return BusyNumbers(n, turns) if cost == BUSY else Numbers(n)


def faults_section(content: Content) -> str:
    """Return two tables: recovery compared with a fresh start, and user states."""
    settings = content["settings"]
    introduction = (
        f"**Faults**: {settings['num_workers']} workers, batches of {settings['batch_size']}. "
        "Recovery is the time from the SIGKILL of a worker to the first batch of the new workers, "
        "which replace all of them. A fresh start is the time from `iter()` of a new loader to its "
        "first batch. The former aim of 1.2 fresh starts was dropped: the difference is 30 to 60 "
        "ms for each worker that dies."
    )
    states = (
        "Time per batch if user objects have a state, which is taken with every batch. A state of "
        "1 MB is a tensor."
    )
    parts = [introduction, _recovery_table(content), states, _states_table(content)]
    return "\n\n".join([*parts, aims_table(content)])


def _recovery_table(content: Content) -> str:
    medians = medians_of(content)
    rows = []
    for method in START_METHODS:
        for cost, label in COSTS.items():
            fresh, recovery = (start_name(what, method, cost) for what in (FRESH, RECOVERY))
            if recovery in medians:
                times = [f"{short(medians[name])} ms" for name in (fresh, recovery)]
                rows.append([f"{method}, {label}", *times, times_of(content, recovery, fresh)])
    return as_table(["", "fresh start", "recovery", "ratio"], rows)


def _states_table(content: Content) -> str:
    medians = medians_of(content)
    loaders = (TORCH, TORCHDATA, OURS)
    rows = []
    for cost, cost_label in COSTS.items():
        for state, label in STATES.items():
            keys = {loader: state_name(loader, state, cost) for loader in loaders}
            cells = [f"{short(medians[key])} us" if key in medians else "" for key in keys.values()]
            rows.append(
                [
                    f"{label}, {cost_label}",
                    *cells,
                    *(times_of(content, keys[OURS], keys[peer]) for peer in loaders[:2]),
                ]
            )
    labels = [bench_overhead.LABELS[loader] for loader in loaders]
    return as_table(["", *labels, *(f"ours to {label}" for label in labels[:2])], rows)


if __name__ == "__main__":
    main()

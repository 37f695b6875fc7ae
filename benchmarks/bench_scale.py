"""Costs of one of 4,096 ranks with 10**11 samples, 100,000 shards and 1,000 datasets.

All other ranks are imaginary: a rank never asks another one for anything, so its costs can be
measured alone. Samples cost nothing. Times are CPU time, on which a busy machine has little
effect. Each group has its own Python process, in which memory is measured first.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.arguments import Arguments, parse
from benchmarks.datasets import Numbers
from benchmarks.harness import run_apart
from benchmarks.memory import PeakGrowth
from benchmarks.results import Aim, Measurement, medians
from stateful_gpu_loader import (
    DistributedShuffledSampler,
    MixedDataset,
    ShardedDataset,
    ShuffledSampler,
    StatefulGPULoader,
    WeightedSampler,
    merge_state_dicts,
)
from stateful_gpu_loader.samplers import Blocks

BATCH_SIZE = 256
SAMPLES, RANKS, SHARDS, DATASETS = 10**11, 4096, 100_000, 1000
LENGTHS = (10**9, 10**10, SAMPLES)
NUMS_RANKS = (1, 64, RANKS)
NUMS_DATASETS = (10, 100, DATASETS)
NUMS_WEIGHTS = (10**5, 10**6, 10**7)
NUMS_SHARDS = (8192, 32_768, SHARDS)
AT_ONCE = 1 << 14
"""Number of positions in one call of an order, as in a loader's largest calls."""

SHUFFLED, DISTRIBUTED, BLOCKS = "shuffled", "distributed", "blocks"
MIXTURE, WEIGHTED, LANES, STATES = "mixture", "weighted", "lanes", "states"
ORDERS = {
    SHUFFLED: "shuffle=True",
    DISTRIBUTED: "DistributedShuffledSampler",
    BLOCKS: "blocks of 8,192, 16 at a time",
}
STATES_OF = {
    "map": "map-style data",
    "bad": "map-style data, 100 bad samples named by each rank",
    "lanes 1": "a lane each",
    "lanes 8": "8 lanes each",
}
"""Kinds of merged states."""

CONSTRUCTION, FIRST, STEP, INDEX = "construction", "first batch", "step", "an index"
SIZE, TAKING, LOADING, MEMORY = "state", "state_dict()", "load_state_dict()", "memory"
MERGING, LOADING_MERGED = "merging", "loading what was merged"
UNITS = {
    CONSTRUCTION: "ms",
    FIRST: "ms",
    STEP: "us",
    INDEX: "ns",
    SIZE: "bytes",
    TAKING: "us",
    LOADING: "ms",
    MEMORY: "MiB",
    MERGING: "s",
    LOADING_MERGED: "ms",
}
_PER_SECOND = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}

_STEPS = 85
"""At the start of a pass the loader looks up indices for 1, 4, 16 and 64 steps at a time."""
_SAMPLES_A_SHARD = 10_000
_CALLS = 20
"""Number of calls in one measurement of an operation that takes microseconds."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One rank's loader."""

    kind: str
    n: int = SAMPLES
    """Number of samples, weights or shards."""
    ranks: int = RANKS
    parts: int = 1
    """Number of datasets in a mixture, or of lanes of a rank."""

    def name(self, what: str) -> str:
        return f"{what}, {self.kind} n={self.n} ranks={self.ranks} parts={self.parts}"

    def make(self) -> StatefulGPULoader[Any]:
        """Return a loader of the middle rank."""
        own: dict[str, Any] = {"batch_size": BATCH_SIZE, "seed": 1}
        if self.ranks > 1:
            own |= {"num_replicas": self.ranks, "rank": self.ranks // 2}
        if self.kind == LANES:
            lanes = self.parts * self.ranks
            return StatefulGPULoader(Shards(self.n, lanes), shuffle=True, **own)
        dataset: Any = Numbers(self.n)
        if self.kind == DISTRIBUTED:
            sampler = DistributedShuffledSampler(dataset, self.ranks, self.ranks // 2)
            return StatefulGPULoader(dataset, BATCH_SIZE, sampler=sampler)
        if self.kind == BLOCKS:
            locality = Blocks(8192, window=16)
            own["sampler"] = ShuffledSampler(dataset, locality=locality)
        elif self.kind == WEIGHTED:
            own["sampler"] = WeightedSampler(torch.arange(1, self.n + 1), SAMPLES)
        else:
            own["shuffle"] = True
        if self.kind == MIXTURE:
            weights = [(number + 1) ** -0.7 for number in range(self.parts)]
            parts = [Numbers(self.n // self.parts) for _ in weights]
            dataset = MixedDataset(parts, weights, num_samples=self.n)
        return StatefulGPULoader(dataset, **own)


class Shards(ShardedDataset):
    """Shards of numbers, with names as long as in object storage."""

    def __init__(self, num_shards: int, num_lanes: int) -> None:
        self._num_shards = num_shards
        self.num_lanes = num_lanes

    def shards(self) -> Sequence[str]:
        return [f"s3://bucket/dataset/train-{number:06d}.tar" for number in range(self._num_shards)]

    def read_shard(self, shard: str, cursor: int) -> Iterator[tuple[int, int]]:
        for number in range(cursor, _SAMPLES_A_SHARD):
            yield number, number + 1

    def num_samples(self, shard: str) -> int:
        return _SAMPLES_A_SHARD


def cases_of(kind: str) -> list[Case]:
    """Return the cases of a kind, in the order of the table's rows."""
    if kind == MIXTURE:
        found = [Case(kind=kind, parts=parts) for parts in NUMS_DATASETS]
        return found + [Case(kind=kind, parts=DATASETS, ranks=n) for n in NUMS_RANKS[:-1]]
    if kind == WEIGHTED:
        return [Case(kind=kind, n=n) for n in NUMS_WEIGHTS]
    if kind == LANES:
        found = [Case(kind=kind, n=n) for n in NUMS_SHARDS]
        return found + [Case(kind=kind, n=SHARDS, ranks=n, parts=8) for n in NUMS_RANKS]
    found = [Case(kind=kind, n=n) for n in LENGTHS]
    return found + [Case(kind=kind, ranks=n) for n in NUMS_RANKS[:-1]]


def cases() -> list[Case]:
    return [case for kind in (*ORDERS, MIXTURE, WEIGHTED, LANES) for case in cases_of(kind)]


def states_name(what: str, whose: str, ranks: int) -> str:
    return f"{what}, {STATES} of {whose} ranks={ranks}"


def main(given: Sequence[str] | None = None) -> None:
    arguments = parse(__doc__, rounds=3, given=given)
    quick = [Case(kind=SHUFFLED), Case(kind=MIXTURE, parts=10), Case(kind=LANES, n=8192)]
    measurements = [
        found
        for case in (quick if arguments.quick else cases())
        for found in run_apart(arguments.quick, measure, case, arguments)
    ]
    for ranks in NUMS_RANKS[:1] if arguments.quick else NUMS_RANKS[1:]:
        measurements += run_apart(arguments.quick, measure_states, ranks, arguments)
    arguments.report(
        "scale",
        settings={
            "batch_size": BATCH_SIZE,
            "samples": SAMPLES,
            "ranks": RANKS,
            "shards": SHARDS,
            "datasets": DATASETS,
            "samples_a_shard": _SAMPLES_A_SHARD,
        },
        measurements=measurements,
        aims=list(_aims(medians(measurements))),
        notes=["Times are CPU time."],
    )


def measure(case: Case, arguments: Arguments) -> list[Measurement]:
    """Return all measurements of one case, in the calling process."""
    values: dict[str, list[float]] = {}

    def timed(what: str, call: Callable[[], Any], per: int = 1) -> Any:
        gc.collect()
        started = time.process_time()
        result = call()
        seconds = (time.process_time() - started) / per
        values.setdefault(what, []).append(seconds * _PER_SECOND[UNITS[what]])
        return result

    next(iter(Case(kind=SHUFFLED, ranks=1).make()))  # pays the costs of a process's first loader
    growth = PeakGrowth()
    loader = case.make()
    next(iter(loader))
    loader.state_dict()
    values[MEMORY] = [growth.mebibytes()]
    del loader
    steps = 2 if arguments.quick else _STEPS
    for _ in range(arguments.rounds):
        loader = timed(CONSTRUCTION, case.make)
        batches = iter(loader)
        timed(FIRST, partial(next, batches))
        left = min(steps, _whole_steps(case)) - 1
        timed(STEP, partial(_repeat, partial(next, batches), left), per=left)
        state = loader.state_dict()
        timed(TAKING, partial(_repeat, loader.state_dict, _CALLS), per=_CALLS)
        fresh = case.make()
        timed(LOADING, partial(fresh.load_state_dict, state))
        values[SIZE] = [len(json.dumps(state))]
        if case.kind in ORDERS or case.kind == WEIGHTED:
            order, positions = _order_of(case), _positions(case)
            order(positions)
            calls = 1 if arguments.quick else _CALLS
            repeat = partial(_repeat, partial(order, positions), calls)
            timed(INDEX, repeat, per=len(positions) * calls)
    return [
        Measurement(case.name(what), case.name(what), UNITS[what], found)
        for what, found in values.items()
    ]


def measure_states(ranks: int, arguments: Arguments) -> list[Measurement]:
    """Measure the merging of all ranks' states, and the loading of the result on one rank."""
    found = []
    for whose in STATES_OF:
        num_lanes = int(whose.partition(" ")[2] or 1)
        case = Case(kind=LANES if whose.startswith("lanes") else SHUFFLED, ranks=ranks)
        if case.kind == LANES:
            case = Case(kind=LANES, n=SHARDS, ranks=ranks, parts=num_lanes)
        states = _states(case, whose, num_lanes)
        values: dict[str, list[float]] = {MERGING: [], LOADING_MERGED: []}
        for _ in range(arguments.rounds):
            started = time.process_time()
            merged = merge_state_dicts(states)
            values[MERGING].append(time.process_time() - started)
            loader = case.make()
            started = time.process_time()
            loader.load_state_dict(merged)
            values[LOADING_MERGED].append((time.process_time() - started) * 1e3)
        found += [
            Measurement(
                states_name(what, whose, ranks),
                f"{what}, {STATES_OF[whose]}, {ranks:,} ranks",
                UNITS[what],
                values[what],
            )
            for what in values
        ]
    return found


def _states(case: Case, whose: str, num_lanes: int) -> list[dict[str, Any]]:
    """Return states that the ranks of one run would have at the same step."""
    state = case.make().state_dict()
    if whose == "map":
        return [dict(state) for _ in range(case.ranks)]
    if whose == "bad":
        return [
            state | {"bad_samples": json.dumps({"total": 100, "samples": _bad_samples(rank)})}
            for rank in range(case.ranks)
        ]
    shared = {key: value for key, value in state.items() if not key.startswith("lane_")}
    return [
        shared
        | {
            f"lane_{lane:05d}": "0/12:3072:1:512000:0"
            for lane in range(rank, num_lanes * case.ranks, case.ranks)
        }
        for rank in range(case.ranks)
    ]


def _bad_samples(rank: int) -> list[list[Any]]:
    reason = "ValueError: the image is cut off: 40,960 of 110,000 bytes"
    return [[rank * 100 + number, number, 0, reason, True] for number in range(100)]


def _whole_steps(case: Case) -> int:
    if case.kind == LANES:
        return _STEPS
    return int(case.n if case.kind != WEIGHTED else SAMPLES) // (BATCH_SIZE * case.ranks)


def _repeat(call: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        call()


def _order_of(case: Case) -> Any:
    loader = case.make()
    sampler: Any = loader.sampler
    order = sampler.order if hasattr(sampler, "order") else ShuffledSampler(range(case.n)).order
    return order.of_epoch(1, 0)


def _positions(case: Case) -> Any:
    """Return the positions of one rank from the middle of the epoch on."""
    n = SAMPLES if case.kind == WEIGHTED else case.n
    return (n // 2 + case.ranks * np.arange(AT_ONCE, dtype=np.int64)) % n


def _aims(by_name: dict[str, float]) -> Iterator[Aim]:
    def worst(what: str, kinds: Sequence[str]) -> float | None:
        found = [
            median
            for name, median in by_name.items()
            if name.startswith(f"{what}, ") and name.split()[len(what.split())] in kinds
        ]
        return max(found, default=None)

    everything = (*ORDERS, MIXTURE, LANES)
    limits = (
        ("an index in blocks of 16,384, any order", worst(INDEX, tuple(ORDERS)), 100, "ns"),
        ("state of map-style data, any n", worst(SIZE, tuple(ORDERS)), 1024, "bytes"),
        ("state of a mixture of any number of datasets", worst(SIZE, (MIXTURE,)), 1024, "bytes"),
        ("construction, all but weights", worst(CONSTRUCTION, everything), 1000, "ms"),
        ("memory of all but weights", worst(MEMORY, everything), 100, "MiB"),
        ("merging the states of 4,096 ranks", worst(MERGING, (STATES,)), 5, "s"),
    )
    for what, reached, limit, unit in limits:
        if reached is not None:
            yield Aim.at_most(what, reached, limit, unit)


if __name__ == "__main__":
    main()

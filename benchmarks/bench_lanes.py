"""Lanes: the costs of their state, and streams of tars compared with webdataset.

The state is taken over 10,000 shards. Tars of photographs are read unchanged, as lists of dicts,
and decoded with random crops. webdataset runs in torch's DataLoader with equally many workers,
which are processes; ours decode in threads. A resume is timed from `load_state_dict()`, after 90%
of the epoch, which webdataset reads again. Shards of trivial samples are compared with a plain
iterable dataset in StatefulDataLoader.
"""

from __future__ import annotations

import functools
import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.arguments import Arguments, parse
from benchmarks.format_writers import TAR
from benchmarks.harness import Contestant, measured, run_apart, seconds_a_batch
from benchmarks.lane_loaders import (
    BATCH_SIZE,
    IMAGES,
    LABELS,
    OURS,
    PEER,
    RECORDS,
    TRIVIAL,
    WEBDATASET,
    WORKS,
    CountedShards,
    Pass,
)
from benchmarks.results import Aim, Comparison, Measurement, compared, is_installed, medians
from benchmarks.source_files import ROWS, photograph_files, under_more_names
from stateful_gpu_loader import StatefulGPULoader

NUM_WORKERS = (0, 2)
NUM_SHARDS = 10_000
NUM_LANES = (64, 10_000)
PLACES = (0.0, 0.9)
"""Delivered shares of the epoch when a state is taken."""
BYTES_AIM, RATE_AIM, RESUME_AIM = 100, 1.0, 1.2
TRIVIAL_AIMS = {0: 0.5, 2: 1.0}
"""Rate of trivial samples relative to StatefulDataLoader, by number of workers."""
STATE_AIM = 1000
"""Microseconds of a ``state_dict()`` call."""
BATCH_AIM = 1.0
"""Time of a batch with the most lanes, relative to the fewest."""

_TIMES = 8
"""Number of names of each tar, for a sufficiently long epoch."""
_WARM_UP = 8
_CALLS = 200
"""Number of ``state_dict()`` calls in one measurement."""


def rate_name(who: str, work: str, num_workers: int) -> str:
    return f"{who} {work} workers={num_workers}"


def state_name(what: str, num_lanes: int) -> str:
    """Return the key of a measurement of the state: ``"bytes a lane"``, or the time to take it."""
    return f"{what} lanes={num_lanes}"


def resume_name(who: str, place: float) -> str:
    return f"{who} resume {place:.0%}"


def main(given: Sequence[str] | None = None) -> None:
    arguments = parse(__doc__, rounds=9, given=given)
    num_shards = 100 if arguments.quick else NUM_SHARDS
    lanes = [min(num_lanes, num_shards) for num_lanes in NUM_LANES]
    measurements = [
        measurement
        for num_lanes in lanes
        for measurement in run_apart(
            arguments.quick, measure_state, num_shards, num_lanes, arguments
        )
    ]
    num_samples, num_images = (192, 12) if arguments.quick else (2048, 256)
    files = photograph_files(num_samples, num_images, arguments.data)
    with tempfile.TemporaryDirectory() as folder:
        paths = under_more_names(files.paths(TAR), Path(folder), _TIMES)
        measurements += run_apart(arguments.quick, measure_rates, paths, arguments)
        measurements += run_apart(arguments.quick, measure_resume, paths, arguments)
    batches = state_name("batch", max(lanes)), state_name("batch", min(lanes))
    comparisons = compared(measurements, [*_pairs(), batches])
    arguments.report(
        "lanes",
        settings={
            "num_shards": num_shards,
            "num_lanes": list(lanes),
            "num_tars": len(paths),
            "samples_a_tar": ROWS,
            "batch_size": BATCH_SIZE,
            "places": list(PLACES),
        },
        measurements=measurements,
        comparisons=comparisons,
        aims=[*_state_aims(lanes, measurements), *_ratio_aims(comparisons, batches)],
    )


def measure_state(num_shards: int, num_lanes: int, arguments: Arguments) -> list[Measurement]:
    """Measure its size, and the time to take it and to deliver a batch, once all lanes began."""
    dataset = CountedShards(num_shards, 1000, num_lanes)
    loader: StatefulGPULoader[Any] = StatefulGPULoader(dataset, 4, seed=42)
    batches = iter(loader)
    for _ in itertools.islice(batches, num_lanes + 2):
        pass
    size = len(json.dumps(loader.state_dict())) / num_lanes
    label = f"{num_shards:,} shards in {num_lanes:,} lanes"

    def taking() -> float:
        started = time.perf_counter()
        for _ in range(_CALLS):
            loader.state_dict()
        return (time.perf_counter() - started) / _CALLS * 1e6

    def delivering() -> float:
        return seconds_a_batch(batches, warm_up=1, timed=_CALLS) * 1e6

    contestants = [
        Contestant(state_name("state_dict()", num_lanes), f"{label}, state_dict()", taking),
        Contestant(
            state_name("batch", num_lanes), f"{label}, a batch of 4 trivial samples", delivering
        ),
    ]
    sized = Measurement(
        state_name("bytes a lane", num_lanes), f"{label}, state as JSON", "bytes a lane", [size]
    )
    return [sized, *measured(contestants, arguments, title=label, unit="us")]


def measure_rates(paths: Sequence[str], arguments: Arguments) -> list[Measurement]:
    """Measure samples a second of all kinds of work and numbers of workers."""
    contestants = []
    for work, num_workers in itertools.product(WORKS, NUM_WORKERS):
        for who in (OURS, PEER[work]):
            if work == IMAGES and num_workers == 0:
                continue  # torch's own threads would determine the rate
            if who == WEBDATASET and not is_installed("webdataset"):
                continue
            contestants.append(
                Contestant(
                    rate_name(who, work, num_workers),
                    f"{WORKS[work]}, {num_workers} workers, {LABELS[who]}",
                    functools.partial(
                        _samples_a_second, who, work, num_workers, paths, arguments.quick
                    ),
                )
            )
    return measured(contestants, arguments, title="lanes", unit="samples/s")


def measure_resume(paths: Sequence[str], arguments: Arguments) -> list[Measurement]:
    """Measure milliseconds to the first batch of undecoded tars, without workers."""
    reading = Pass(work=RECORDS, paths=paths, samples_a_shard=ROWS, num_workers=0)
    skipped = {place: int(len(paths) * ROWS * place) // BATCH_SIZE for place in PLACES}
    states = {place: _state_after(reading.loader(OURS), skipped[place]) for place in PLACES}

    def ours(place: float) -> float:
        loader = reading.loader(OURS)
        started = time.perf_counter()
        loader.load_state_dict(states[place])
        batch = next(iter(loader))
        return _milliseconds(started, batch)

    def webdataset(place: float) -> float:
        loader = reading.loader(WEBDATASET)
        started = time.perf_counter()
        batch = next(itertools.islice(loader, skipped[place], None))
        return _milliseconds(started, batch)

    ways = {OURS: ours, WEBDATASET: webdataset} if is_installed("webdataset") else {OURS: ours}
    contestants = [
        Contestant(
            resume_name(who, place),
            f"first batch, {place:.0%} delivered, {LABELS[who]}",
            functools.partial(way, place),
        )
        for who, way in ways.items()
        for place in PLACES
    ]
    return measured(contestants, arguments, title="resume of lanes", unit="ms")


def _samples_a_second(
    who: str, work: str, num_workers: int, paths: Sequence[str], is_quick: bool
) -> float:
    samples_a_shard = ROWS * 10 if work == TRIVIAL else ROWS
    reading = Pass(work=work, paths=paths, samples_a_shard=samples_a_shard, num_workers=num_workers)
    timed = {TRIVIAL: 500, RECORDS: 192, IMAGES: 16}[work]
    batches = iter(reading.loader(who))
    seconds = seconds_a_batch(batches, warm_up=_WARM_UP, timed=2 if is_quick else timed)
    return BATCH_SIZE / seconds


def _state_after(loader: Any, num_batches: int) -> dict[str, Any]:
    batches = iter(loader)
    for _ in itertools.islice(batches, num_batches):
        pass
    state: dict[str, Any] = loader.state_dict()
    return state


def _milliseconds(started: float, batch: Sequence[Any]) -> float:
    seconds = time.perf_counter() - started
    if len(batch) != BATCH_SIZE:
        raise ValueError(f"the first batch has {len(batch)} samples. Remedy: find out why")
    return seconds * 1e3


def _pairs() -> Iterator[tuple[str, str]]:
    for work, num_workers in itertools.product(WORKS, NUM_WORKERS):
        yield rate_name(OURS, work, num_workers), rate_name(PEER[work], work, num_workers)
    for who in (OURS, WEBDATASET):
        yield resume_name(who, PLACES[1]), resume_name(who, PLACES[0])


def _state_aims(lanes: Sequence[int], measurements: Sequence[Measurement]) -> Iterator[Aim]:
    found = medians(measurements)
    for num_lanes in lanes:
        size = found[state_name("bytes a lane", num_lanes)]
        what = f"size of the state as JSON, {num_lanes:,} lanes"
        yield Aim.at_most(what, size, BYTES_AIM, "bytes a lane")
    taking = found[state_name("state_dict()", max(lanes))]
    yield Aim.at_most(f"state_dict() of {max(lanes):,} lanes", taking, STATE_AIM, "us")


def _ratio_aims(
    comparisons: Sequence[Comparison], pair_of_batches: tuple[str, str]
) -> Iterator[Aim]:
    trivial = {rate_name(OURS, TRIVIAL, workers): workers for workers in NUM_WORKERS}
    for found in comparisons:
        work = found.of.removeprefix(f"{OURS} ")
        if found.of == resume_name(OURS, PLACES[1]):
            what = f"first batch at {PLACES[1]:.0%} beside that at 0%"
            yield Aim.at_most(what, found.ratio, RESUME_AIM)
        elif (found.of, found.to) == pair_of_batches:
            what = "a batch with the most lanes beside one with the fewest"
            yield Aim.at_most(what, found.ratio, BATCH_AIM)
        elif found.of in trivial:
            aim = TRIVIAL_AIMS[trivial[found.of]]
            yield Aim.at_least(f"rate beside StatefulDataLoader, {work}", found.ratio, aim)
        elif found.to.startswith(WEBDATASET) and found.of.startswith(OURS):
            yield Aim.at_least(f"rate beside webdataset, {work}", found.ratio, RATE_AIM)


if __name__ == "__main__":
    main()

"""Lanes: what their state costs, and streams of tars beside webdataset.

The state is taken over 10,000 shards. Tars of photographs are read as they are, in lists of dicts,
and decoded, with random crops; webdataset runs in torch's DataLoader with as many workers, which
are processes; ours decode in threads. A resume is timed from `load_state_dict()`, with 90% of the
epoch behind: webdataset reads that again. Shards of trivial samples are read beside a plain
iterable dataset in StatefulDataLoader.
"""

from __future__ import annotations

import functools
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.arguments import Arguments, parse
from benchmarks.format_writers import TAR
from benchmarks.harness import Contestant, alternate, seconds_a_batch
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
from benchmarks.processes import run_apart
from benchmarks.results import Aim, Comparison, Measurement, Results, load_average
from benchmarks.source_files import ROWS, photograph_files, under_more_names
from benchmarks.source_readers import has_webdataset
from benchmarks.summary import ratio
from stateful_gpu_loader import StatefulGPULoader

NUM_WORKERS = (0, 2)
NUM_SHARDS = 10_000
NUM_LANES = (64, 10_000)
PLACES = (0.0, 0.9)
"""Shares of the epoch that lie behind when a state is taken."""
BYTES_AIM, RATE_AIM, RESUME_AIM = 100, 1.0, 1.2
TRIVIAL_AIMS = {0: 0.5, 2: 1.0}
"""Rate of trivial samples beside StatefulDataLoader, by number of workers."""
STATE_AIM = 1000
"""Microseconds of a ``state_dict()``."""
BATCH_AIM = 1.0
"""Time of a batch with the most lanes, of that with the fewest."""

_TIMES = 8
"""Names of each tar, for an epoch that is long enough."""
_WARM_UP = 8
_CALLS = 200
"""Of ``state_dict()`` for one measurement."""


def rate_name(who: str, work: str, num_workers: int) -> str:
    """Key of a measurement."""
    return f"{who} {work} workers={num_workers}"


def state_name(what: str, num_lanes: int) -> str:
    """Key of a measurement of the state: its ``"bytes a lane"`` or the time to take it."""
    return f"{what} lanes={num_lanes}"


def resume_name(who: str, place: float) -> str:
    """Key of a measurement."""
    return f"{who} resume {place:.0%}"


def main(given: Sequence[str] | None = None) -> None:
    """Run the benchmark and write ``lanes.json``."""
    arguments = parse(__doc__, rounds=9, given=given)
    before = load_average()
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
    results = _results(arguments, num_shards, lanes, len(paths), measurements, before)
    results.write_and_tell(arguments.output)


def measure_state(num_shards: int, num_lanes: int, arguments: Arguments) -> list[Measurement]:
    """Its size, and the time to take it and to deliver a batch, once every lane has begun."""
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
        Contestant(
            name=state_name("state_dict()", num_lanes),
            label=f"{label}, state_dict()",
            measure=taking,
        ),
        Contestant(
            name=state_name("batch", num_lanes),
            label=f"{label}, a batch of 4 trivial samples",
            measure=delivering,
        ),
    ]
    sized = Measurement(
        name=state_name("bytes a lane", num_lanes),
        label=f"{label}, state as JSON",
        unit="bytes a lane",
        values=[size],
    )
    return [sized, *_alternated(contestants, arguments, label, "us")]


def measure_rates(paths: Sequence[str], arguments: Arguments) -> list[Measurement]:
    """Samples a second, of all works and numbers of workers."""
    contestants = []
    for work, num_workers in itertools.product(WORKS, NUM_WORKERS):
        for who in (OURS, PEER[work]):
            if work == IMAGES and num_workers == 0:
                continue  # torch's own threads would decide it
            if who == WEBDATASET and not has_webdataset():
                continue
            contestants.append(
                Contestant(
                    name=rate_name(who, work, num_workers),
                    label=f"{WORKS[work]}, {num_workers} workers, {LABELS[who]}",
                    measure=functools.partial(
                        _samples_a_second, who, work, num_workers, paths, arguments.quick
                    ),
                )
            )
    return _alternated(contestants, arguments, "lanes", "samples/s")


def measure_resume(paths: Sequence[str], arguments: Arguments) -> list[Measurement]:
    """Milliseconds to the first batch of undecoded tars, without workers."""
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

    ways = {OURS: ours, WEBDATASET: webdataset} if has_webdataset() else {OURS: ours}
    contestants = [
        Contestant(
            name=resume_name(who, place),
            label=f"first batch, {place:.0%} behind, {LABELS[who]}",
            measure=functools.partial(way, place),
        )
        for who, way in ways.items()
        for place in PLACES
    ]
    return _alternated(contestants, arguments, "resume of lanes", "ms")


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


def _alternated(
    contestants: Sequence[Contestant], arguments: Arguments, title: str, unit: str
) -> list[Measurement]:
    values = alternate(
        contestants,
        rounds=arguments.rounds,
        title=title,
        warm_up_rounds=arguments.warm_up_rounds,
    )
    return [
        Measurement(name=each.name, label=each.label, unit=unit, values=values[each.name])
        for each in contestants
    ]


def _results(
    arguments: Arguments,
    num_shards: int,
    lanes: Sequence[int],
    num_tars: int,
    measurements: Sequence[Measurement],
    before: float,
) -> Results:
    values = {measurement.name: measurement.values for measurement in measurements}
    comparisons = [
        Comparison(of=of, to=to, ratio=ratio(values[of], values[to]))
        for of, to in [*_pairs(), _pair_of_batches(lanes)]
        if of in values and to in values
    ]
    return Results(
        benchmark="lanes",
        rounds=arguments.rounds,
        quick=arguments.quick,
        settings={
            "num_shards": num_shards,
            "num_lanes": list(lanes),
            "num_tars": num_tars,
            "samples_a_tar": ROWS,
            "batch_size": BATCH_SIZE,
            "places": list(PLACES),
        },
        measurements=measurements,
        comparisons=comparisons,
        aims=[*_state_aims(lanes, values), *_ratio_aims(comparisons, _pair_of_batches(lanes))],
        load_average=before,
    )


def _pairs() -> Iterator[tuple[str, str]]:
    for work, num_workers in itertools.product(WORKS, NUM_WORKERS):
        yield rate_name(OURS, work, num_workers), rate_name(PEER[work], work, num_workers)
    for who in (OURS, WEBDATASET):
        yield resume_name(who, PLACES[1]), resume_name(who, PLACES[0])


def _pair_of_batches(lanes: Sequence[int]) -> tuple[str, str]:
    """Return the measurements of a batch with the most lanes, and with the fewest."""
    return state_name("batch", max(lanes)), state_name("batch", min(lanes))


def _state_aims(lanes: Sequence[int], values: dict[str, Sequence[float]]) -> Iterator[Aim]:
    for num_lanes in lanes:
        size = values[state_name("bytes a lane", num_lanes)][0]
        yield Aim(
            what=f"size of the state as JSON, {num_lanes:,} lanes",
            aim=f"< {BYTES_AIM} bytes a lane",
            reached=f"{size:.1f} bytes a lane",
            met=size < BYTES_AIM,
        )
    taking = statistics.median(values[state_name("state_dict()", max(lanes))])
    yield Aim(
        what=f"state_dict() of {max(lanes):,} lanes",
        aim=f"<= {STATE_AIM:,} us",
        reached=f"{taking:,.0f} us",
        met=taking <= STATE_AIM,
    )


def _ratio_aims(
    comparisons: Sequence[Comparison], pair_of_batches: tuple[str, str]
) -> Iterator[Aim]:
    trivial = {rate_name(OURS, TRIVIAL, workers): workers for workers in NUM_WORKERS}
    for found in comparisons:
        reached = f"{found.ratio.median:.2f} [{found.ratio.low:.2f}, {found.ratio.high:.2f}]"
        if found.of == resume_name(OURS, PLACES[1]):
            yield Aim(
                what=f"first batch at {PLACES[1]:.0%} beside that at 0%",
                aim=f"<= {RESUME_AIM:g} times",
                reached=reached,
                met=found.ratio.median <= RESUME_AIM,
            )
        elif (found.of, found.to) == pair_of_batches:
            yield Aim(
                what="a batch with the most lanes beside one with the fewest",
                aim=f"<= {BATCH_AIM:g} times",
                reached=reached,
                met=found.ratio.median <= BATCH_AIM,
            )
        elif found.of in trivial:
            aim = TRIVIAL_AIMS[trivial[found.of]]
            yield Aim(
                what=f"rate beside StatefulDataLoader, {found.of.removeprefix(f'{OURS} ')}",
                aim=f">= {aim:g} times",
                reached=reached,
                met=found.ratio.median >= aim,
            )
        elif found.to.startswith(WEBDATASET) and found.of.startswith(OURS):
            yield Aim(
                what=f"rate beside webdataset, {found.of.removeprefix(f'{OURS} ')}",
                aim=f">= {RATE_AIM:g} times",
                reached=reached,
                met=found.ratio.median >= RATE_AIM,
            )


if __name__ == "__main__":
    main()

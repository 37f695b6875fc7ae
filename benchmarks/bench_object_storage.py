"""Tars in object storage, compared with the same tars on the local disk.

A local S3 server delays every answer. Photographs are decoded and cropped in threads, on one core;
the server has the other. Rates are compared within a round. A request waits for the clock, not for
the processor, so its latency is hidden if the rate does not fall. moto and s3fs are in the extra
``bench``.
"""

from __future__ import annotations

import functools
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.arguments import Arguments, parse
from benchmarks.format_writers import TAR, write
from benchmarks.harness import Contestant, measured, quieten_peers
from benchmarks.photograph_loaders import recipes
from benchmarks.photographs import photograph_folder
from benchmarks.results import Measurement, aims_at_least, compared, is_installed
from benchmarks.s3_server import BUCKET, serving, set_latency
from stateful_gpu_loader import ShuffledSampler, StatefulGPULoader, TarShards, TarSource
from stateful_gpu_loader.samplers import Blocks

BATCH_SIZE, NUM_WORKERS = 64, 4
LATENCIES = (20, 50, 100)
"""Delay of each answer, in milliseconds."""
AIMED_AT, AIM = 50, 0.9
LOCAL = "local"
SAMPLES, BLOCKS, SHARDS = "samples", "blocks", "shards"
WAYS = {
    SAMPLES: "`TarSource`, shuffled",
    BLOCKS: "`TarSource` with `Blocks(64, window=8)`",
    SHARDS: "`TarShards`",
}
ALONE = "`TarSource`, shuffled, nothing fetched ahead"
REQUESTS, CPU = "requests", "CPU"

_NUM_TARS, _SAMPLES_A_TAR, _NUM_IMAGES = 8, 256, 256
_WARM_UP, _TIMED, _TIMED_SLOW = 10, 16, 4
"""Numbers of batches; the warm-up exceeds the number of batches in progress."""


def rate_name(way: str, place: int | str) -> str:
    """Return the key of a measurement: images a second of a way, at a latency or :data:`LOCAL`."""
    return f"{way} {place}"


def main(given: Sequence[str] | None = None) -> None:
    arguments = parse(__doc__, rounds=3, given=given)
    missing = [name for name in ("moto", "s3fs") if not is_installed(name)]
    if missing:
        print(
            f"not run: {', '.join(missing)} is missing. "
            "Remedy: pip install 'stateful_gpu_loader[bench]'"
        )
        return
    quieten_peers()
    warnings.filterwarnings("ignore", message=".*create 4 worker processes")
    cores = sorted(os.sched_getaffinity(0))
    num_tars, samples_a_tar = (2, 128) if arguments.quick else (_NUM_TARS, _SAMPLES_A_TAR)
    pictures = photograph_folder(12 if arguments.quick else _NUM_IMAGES, arguments.data)
    with tempfile.TemporaryDirectory() as folder:
        tars = Path(folder, "tars")
        contents = [file.read_bytes() for file in pictures.files]
        count = num_tars * samples_a_tar
        samples = ((contents[7 * i % len(contents)], i % 10) for i in range(count))
        write(TAR, tars, samples, count=count, num_files=num_tars, rows=0)
        with serving(tars, cores[-1] if len(cores) > 1 else None) as port:
            os.sched_setaffinity(0, cores[:1])
            _use_server(port)
            measurements = _measured(tars, Path(folder, "indices"), port, arguments)
            os.sched_setaffinity(0, cores)
    comparisons = compared(
        measurements,
        [(rate_name(way, place), rate_name(way, LOCAL)) for way in WAYS for place in LATENCIES],
    )
    arguments.report(
        "object_storage",
        settings={
            "batch_size": BATCH_SIZE,
            "num_workers": NUM_WORKERS,
            "mean_bytes": pictures.mean_bytes,
            "num_tars": num_tars,
            "samples_a_tar": samples_a_tar,
        },
        measurements=measurements,
        comparisons=comparisons,
        aims=aims_at_least(
            comparisons,
            {
                (rate_name(way, AIMED_AT), rate_name(way, LOCAL)): (
                    f"{label}, {AIMED_AT} ms, beside local files",
                    AIM,
                )
                for way, label in WAYS.items()
            },
        ),
        notes=["The loader and the server have one core each."],
    )


def _use_server(port: int) -> None:
    import fsspec

    os.environ |= {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
    fsspec.config.conf["s3"] = {"endpoint_url": f"http://127.0.0.1:{port}"}


def _measured(tars: Path, indices: Path, port: int, arguments: Arguments) -> list[Measurement]:
    local = sorted(map(str, tars.iterdir()))
    urls = [f"s3://{BUCKET}/{Path(path).name}" for path in local]
    spent: dict[str, list[float]] = {}

    def rate(name: str, make: Callable[[], Any], latency: int, timed: int) -> float:
        set_latency(port, 0)
        batches = iter(make())
        set_latency(port, latency)
        warm_up = 1 if arguments.quick else _WARM_UP
        seconds, processor, number = _timed(batches, warm_up, 1 if arguments.quick else timed)
        num_requests = set_latency(port, 0)
        spent.setdefault(f"{CPU} {name}", []).append(processor / number * 1e3)
        in_all = number + BATCH_SIZE * warm_up
        spent.setdefault(f"{REQUESTS} {name}", []).append(num_requests / in_all)
        return number / seconds

    contestants = []
    latencies = LATENCIES[:1] if arguments.quick else LATENCIES
    for way, label in WAYS.items():
        timed = _TIMED_SLOW if way == SAMPLES else _TIMED
        for place in (LOCAL, *latencies):
            name = rate_name(way, place)
            paths = local if place == LOCAL else urls
            make = functools.partial(_loader, way, paths, indices)
            waits = 0 if place == LOCAL else int(place)
            contestants.append(
                Contestant(
                    name,
                    f"{label}, {place if place == LOCAL else f'{place} ms'}",
                    functools.partial(rate, name, make, waits, timed),
                )
            )
    measurements = measured(
        contestants,
        arguments,
        title="object storage",
        unit="images/s",
        warm_up_rounds=0,  # each measurement has an uncounted beginning
    )
    alone = rate_name("alone", AIMED_AT)
    make = functools.partial(_loader, SAMPLES, urls, indices, source=_AloneSource)
    values = [rate(alone, make, AIMED_AT, _TIMED_SLOW)]
    label = f"{ALONE}, {AIMED_AT} ms"
    measurements.append(Measurement(alone, label, "images/s", values))
    units = {CPU: "ms an image", REQUESTS: "an image"}
    return measurements + [
        Measurement(
            f"{what} {found.name}", f"{found.label}, {what}", unit, spent[f"{what} {found.name}"]
        )
        for what, unit in units.items()
        for found in measurements
    ]


def _timed(batches: Iterator[Any], warm_up: int, number: int) -> tuple[float, float, int]:
    """Return wall-clock and CPU seconds, and the number of images."""
    for _ in range(warm_up):
        next(batches)
    started, spent = time.perf_counter(), time.process_time()
    count = sum(len(next(batches)[0]) for _ in range(number))
    return time.perf_counter() - started, time.process_time() - spent, count


def _loader(
    way: str, paths: list[str], indices: Path, *, source: type[TarSource] = TarSource
) -> StatefulGPULoader[Any]:
    transform = recipes()
    own: dict[str, Any] = {"batch_size": BATCH_SIZE, "seed": 1, "num_workers": NUM_WORKERS}
    if way == SHARDS:
        shards = TarShards(paths)
        return StatefulGPULoader(shards, shuffle=True, transform=transform, **own)
    tars = source(paths, cache_dir=indices)
    if way == BLOCKS:
        own["sampler"] = ShuffledSampler(tars, locality=Blocks(64, window=8))
    else:
        own["shuffle"] = True
    return StatefulGPULoader(tars, transform=transform, **own)


class _AloneSource(TarSource):
    """Reads each sample when it is needed, without announced indices."""

    is_remote = False


if __name__ == "__main__":
    main()

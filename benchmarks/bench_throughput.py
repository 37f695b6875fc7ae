"""Images a second, from JPEG files to normalised batches, beside the peers and the ceiling.

Every contestant makes the same from the same files: a random crop resized to 224x224, flipped
every other time, normalised to float32, in shuffled batches of 64, with two workers, be they
processes or threads. The clock runs in the middle of one long pass: the start of workers and
the first batches do not count, and the workers are busy to the end.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from benchmarks import photograph_loaders as loaders
from benchmarks.arguments import Arguments, parse
from benchmarks.decoding_alone import operator_of, seconds_to_decode
from benchmarks.harness import Contestant, alternate, quieten_peers, seconds_a_batch
from benchmarks.photograph_loaders import Pass
from benchmarks.photographs import HEIGHT, QUALITY, WIDTH, photograph_folder
from benchmarks.results import Aim, Comparison, Measurement, Results, load_average
from benchmarks.summary import ratio, summarise

NUM_WORKERS = 2
WARM_UP_BATCHES = 4
SPARE_BATCHES = 4
"""At the end of the pass, so that no worker runs dry while the clock runs."""

PILLOW = "torch_pillow"
TORCHDATA = "torchdata_torchvision"
DALI = "dali"
OURS = "ours_torchcodec"
OURS_TORCHVISION = "ours_torchvision"
OURS_PROCESSES = "ours_torchcodec_processes"
CEILINGS = ("decoding_torchcodec", "decoding_torchvision")

_LABELS = {
    PILLOW: "torch DataLoader, Pillow and v2",
    TORCHDATA: "StatefulDataLoader, torchvision and v2",
    DALI: "DALI, CPU pipeline",
    OURS_PROCESSES: "StatefulGPULoader, torchcodec, processes",
    OURS_TORCHVISION: "StatefulGPULoader, torchvision, threads",
    OURS: "StatefulGPULoader, torchcodec, threads",
    "decoding_torchcodec": "decoding alone, torchcodec",
    "decoding_torchvision": "decoding alone, torchvision",
}

_AIMS = {PILLOW: 2.0, TORCHDATA: 1.6, DALI: 1.6}
_AIM_OF_CEILING = 0.85
_AIM_OF_PROCESSES = 0.9


def main(given: Sequence[str] | None = None) -> None:
    """Run the benchmark and write ``throughput.json``."""
    arguments = parse(__doc__, rounds=9, given=given)
    before = load_average()
    quieten_peers()
    work = _work(arguments)
    passes = _passes(work)
    for name, start in passes.items():
        _check(name, next(start()), work)
    values = alternate(
        [_loader(name, start, work) for name, start in passes.items()]
        + [_ceiling(name, work) for name in CEILINGS],
        rounds=arguments.rounds,
        title="throughput",
        warm_up_rounds=arguments.warm_up_rounds,
    )
    results = _results(arguments, work, values, before)
    path = results.write(arguments.output)
    for measurement in results.measurements:
        print(f"{measurement.label:42} {_median(measurement.values):8.0f} images/s")
    for aim in results.aims:
        print(f"{aim.what}: {aim.reached} (aim {aim.aim})")
    print(f"wrote {path.name}")


def _work(arguments: Arguments) -> Pass:
    num_images, batch_size, timed = (24, 4, 4) if arguments.quick else (512, 64, 24)
    return Pass(
        folder=photograph_folder(num_images, arguments.data),
        batch_size=batch_size,
        num_batches=WARM_UP_BATCHES + timed + SPARE_BATCHES,
        num_workers=NUM_WORKERS,
    )


def _passes(work: Pass) -> dict[str, Callable[[], Iterator[Any]]]:
    """What starts a pass of each loader that can run here."""
    passes: dict[str, Callable[[], Iterator[Any]]] = {
        PILLOW: functools.partial(loaders.torch_with_pillow, work),
        TORCHDATA: functools.partial(loaders.torchdata_with_torchvision, work),
        DALI: functools.partial(loaders.dali, work),
        OURS_PROCESSES: functools.partial(
            loaders.ours, work, decoder="torchcodec", worker_type="process"
        ),
        OURS_TORCHVISION: functools.partial(loaders.ours, work, decoder="torchvision"),
        OURS: functools.partial(loaders.ours, work, decoder="torchcodec"),
    }
    if importlib.util.find_spec("nvidia.dali") is None:
        del passes[DALI]
    return passes


def _loader(name: str, start: Callable[[], Iterator[Any]], work: Pass) -> Contestant:
    timed = work.num_batches - WARM_UP_BATCHES - SPARE_BATCHES

    def images_a_second() -> float:
        return work.batch_size / seconds_a_batch(start(), warm_up=WARM_UP_BATCHES, timed=timed)

    return Contestant(name=name, label=_LABELS[name], measure=images_a_second)


def _ceiling(name: str, work: Pass) -> Contestant:
    decode = operator_of(name.removeprefix("decoding_"))

    def images_a_second() -> float:
        files = work.files
        return len(files) / seconds_to_decode(files, decode, num_threads=work.num_workers)

    return Contestant(name=name, label=_LABELS[name], measure=images_a_second)


def _check(name: str, batch: Any, work: Pass) -> None:
    """Refuse to time a contestant that makes something else."""
    images, targets = batch
    shape = (work.batch_size, 3, loaders.SIZE, loaders.SIZE)
    if tuple(images.shape) != shape or images.dtype != torch.float32 or not images.is_contiguous():
        raise ValueError(f"{name} gives {images.dtype} {list(images.shape)} instead of {shape}")
    if tuple(targets.shape) != shape[:1] or targets.dtype != torch.int64:
        raise ValueError(f"{name} gives classes of {targets.dtype} {list(targets.shape)}")
    if not (0.5 < images.std() < 2.5 and images.min() < 0 < images.max()):
        raise ValueError(f"{name} gives pixels that are not normalised: {images.std() = }")


def _results(
    arguments: Arguments, work: Pass, values: Mapping[str, list[float]], before: float
) -> Results:
    ceiling = max(CEILINGS, key=lambda name: _median(values[name]))
    ours = [name for name in (OURS, OURS_TORCHVISION, OURS_PROCESSES) if name in values]
    peers = [name for name in (PILLOW, TORCHDATA, DALI) if name in values]
    comparisons = [
        Comparison(of=name, to=peer, ratio=ratio(values[name], values[peer]))
        for name in ours
        for peer in (*peers, ceiling)
    ]
    reached = {
        comparison.to: comparison.ratio.median
        for comparison in comparisons
        if comparison.of == OURS
    }
    aims = [
        Aim(
            what=f"times the images of {_LABELS[peer]}",
            aim=f">= {_AIMS[peer]}",
            reached=f"{reached[peer]:.2f}",
            met=reached[peer] >= _AIMS[peer],
        )
        for peer in peers
    ]
    aims.append(
        Aim(
            what="share of the ceiling",
            aim=f">= {_AIM_OF_CEILING:.0%}",
            reached=f"{reached[ceiling]:.0%}",
            met=reached[ceiling] >= _AIM_OF_CEILING,
        )
    )
    beside_threads = ratio(values[OURS_PROCESSES], values[OURS]).median
    aims.append(
        Aim(
            what="times the images of threads, in processes",
            aim=f">= {_AIM_OF_PROCESSES}",
            reached=f"{beside_threads:.2f}",
            met=beside_threads >= _AIM_OF_PROCESSES,
        )
    )
    return Results(
        benchmark="throughput",
        rounds=arguments.rounds,
        quick=arguments.quick,
        settings={
            "num_files": len(work.folder.files),
            "mean_bytes": round(work.folder.mean_bytes),
            "width": WIDTH,
            "height": HEIGHT,
            "quality": QUALITY,
            "batch_size": work.batch_size,
            "num_workers": work.num_workers,
            "timed_batches": work.num_batches - WARM_UP_BATCHES - SPARE_BATCHES,
            "ceiling": ceiling,
        },
        measurements=[
            Measurement(name=name, label=_LABELS[name], unit="images/s", values=list(found))
            for name, found in values.items()
        ],
        comparisons=comparisons,
        aims=aims,
        load_average=before,
    )


def _median(values: Sequence[float]) -> float:
    return summarise(values).median


if __name__ == "__main__":
    main()

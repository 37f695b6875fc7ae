"""Images a second of every decoder on the CPU, and of the two ways from them to a batch.

Image by image is what worker threads do; batch by batch is the code of the device stage, which a
CPU without Triton runs as plain torch operations. Both make the same from the same files: a
random crop resized to 224x224, flipped every other time, normalised to float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from benchmarks.arguments import Arguments, parse
from benchmarks.execution_paths import (
    batch_by_batch,
    image_by_image,
    requests_of,
    seconds_to_execute,
)
from benchmarks.harness import Contestant, alternate, quieten_peers
from benchmarks.photograph_loaders import MEAN, SIZE, STD
from benchmarks.photographs import HEIGHT, QUALITY, WIDTH, PhotographFolder, photograph_folder
from benchmarks.results import Aim, Comparison, Measurement, Results, load_average
from benchmarks.summary import ratio, summarise
from stateful_gpu_loader import FolderSource
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.decoders import available, make_decoder, probe
from stateful_gpu_loader.records import Request

NUM_THREADS = 2
LEVEL = 1 / (255 * min(STD))
"""One level of 255 after normalising."""

DECODING, IMAGES, BATCHES = "decoding", "images", "batches"
LABELS = {
    DECODING: "decoding alone",
    IMAGES: "image by image",
    BATCHES: "batch by batch",
}


def name_of(what: str, decoder: str) -> str:
    """The measurement's key in the JSON."""
    return f"{what}_{decoder}"


def main(given: Sequence[str] | None = None) -> None:
    """Run the benchmark and write ``executors.json``."""
    arguments = parse(__doc__, rounds=7, given=given)
    before = load_average()
    quieten_peers()
    num_images, batch_size, num_batches = (12, 4, 4) if arguments.quick else (256, 64, 8)
    folder = photograph_folder(num_images, arguments.data)
    requests = requests_of(num_images, batch_size, num_batches)
    decoders = available()
    _check(folder, decoders, requests[0])
    values = alternate(
        [
            Contestant(
                name=name_of(what, decoder),
                label=f"{LABELS[what]}, {decoder}",
                measure=functools.partial(_images_a_second, execute, requests, batch_size),
            )
            for decoder in decoders
            for what, execute in _executions(folder, decoder).items()
        ],
        rounds=arguments.rounds,
        title="executors",
        warm_up_rounds=arguments.warm_up_rounds,
    )
    results = _results(arguments, folder, requests, decoders, values, before)
    path = results.write(arguments.output)
    for measurement in results.measurements:
        print(f"{measurement.label:32} {summarise(measurement.values).median:8.0f} images/s")
    for comparison in results.comparisons:
        print(f"{comparison.of:24} {comparison.ratio.median:6.2f} of {comparison.to}")
    print(f"wrote {path.name}")


def _executions(folder: PhotographFolder, decoder_name: str) -> dict[str, Callable[[Request], Any]]:
    source, recipes = _source(folder), _recipes()
    decoder = make_decoder(decoder_name)

    def decode_alone(request: Request) -> None:
        for index in request.index_list():
            data = source.read(index).data
            decoder.decode(data, probe(data))

    return {
        DECODING: decode_alone,
        IMAGES: image_by_image(source, decoder, recipes),
        BATCHES: batch_by_batch(source, decoder, recipes),
    }


def _source(folder: PhotographFolder) -> FolderSource:
    return FolderSource.from_paths(
        [str(file) for file in folder.files], list(folder.targets), folder.root
    )


def _recipes() -> T.Compose:
    return T.Compose([T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)])


def _images_a_second(
    execute: Callable[[Request], Any], requests: list[Request], batch_size: int
) -> float:
    seconds = seconds_to_execute(requests, execute, num_threads=NUM_THREADS)
    return len(requests) * batch_size / seconds


def _check(folder: PhotographFolder, decoders: list[str], request: Request) -> None:
    """Refuse to time two ways that make different batches."""
    for decoder in decoders:
        executions = _executions(folder, decoder)
        (images, targets), (others, other_targets) = (
            executions[what](request) for what in (IMAGES, BATCHES)
        )
        largest = (images - others).abs().max().item()
        if largest > 2.01 * LEVEL or not torch.equal(targets, other_targets):
            raise ValueError(
                f"with {decoder} the two ways differ by up to {largest / LEVEL:.2f} levels. "
                "Remedy: find out why before comparing their times"
            )


def _results(
    arguments: Arguments,
    folder: PhotographFolder,
    requests: list[Request],
    decoders: list[str],
    values: Mapping[str, list[float]],
    before: float,
) -> Results:
    pairs = [
        (name_of(what, decoder), name_of(reference, decoder))
        for decoder in decoders
        for what, reference in ((IMAGES, DECODING), (BATCHES, DECODING), (IMAGES, BATCHES))
    ]
    fastest = max(decoders, key=lambda name: summarise(values[name_of(IMAGES, name)]).median)
    comparisons = [
        Comparison(of=of, to=to, ratio=ratio(values[of], values[to])) for of, to in pairs
    ]
    auto = values[name_of(IMAGES, decoders[0])]
    of_fastest = ratio(auto, values[name_of(IMAGES, fastest)]).median
    return Results(
        benchmark="executors",
        rounds=arguments.rounds,
        quick=arguments.quick,
        settings={
            "num_files": len(folder.files),
            "originals": folder.originals,
            "mean_bytes": round(folder.mean_bytes),
            "width": WIDTH,
            "height": HEIGHT,
            "quality": QUALITY,
            "batch_size": len(requests[0].indices),
            "num_batches": len(requests),
            "num_threads": NUM_THREADS,
            "decoders": decoders,
        },
        measurements=[
            Measurement(
                name=name_of(what, decoder),
                label=f"{LABELS[what]}, {decoder}",
                unit="images/s",
                values=values[name_of(what, decoder)],
            )
            for decoder in decoders
            for what in LABELS
        ],
        comparisons=comparisons,
        aims=[
            Aim(
                what=f'"auto" ({decoders[0]}) beside the fastest decoder ({fastest})',
                aim=">= 95%",
                reached=f"{of_fastest:.0%}",
                met=of_fastest >= 0.95,
            )
        ],
        load_average=before,
    )


if __name__ == "__main__":
    main()

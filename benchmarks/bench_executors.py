"""Images a second of every CPU decoder, and of both ways from decoders to a batch.

Worker threads process image by image. Batch by batch is the code of the device stage, which a CPU
without Triton runs as plain torch operations. Both make the same from the same files: a random
crop resized to 224x224, flipped with probability 1/2, normalised to float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.arguments import parse
from benchmarks.execution_paths import (
    batch_by_batch,
    image_by_image,
    requests_of,
    seconds_to_execute,
)
from benchmarks.harness import Contestant, measured, quieten_peers
from benchmarks.markdown import Content, as_table, medians_of
from benchmarks.photograph_loaders import STD, folder_source, recipes
from benchmarks.photographs import PhotographFolder, photograph_folder
from benchmarks.results import Aim, compared, medians
from stateful_gpu_loader.decoders import available, make_decoder, probe
from stateful_gpu_loader.records import Request
from stateful_gpu_loader.transforms import Compose

NUM_THREADS = 2
LEVEL = 1 / (255 * min(STD))
"""One level of 255 after normalisation."""

DECODING, IMAGES, BATCHES = "decoding", "images", "batches"
LABELS = {
    DECODING: "decoding alone",
    IMAGES: "image by image",
    BATCHES: "batch by batch",
}


def name_of(what: str, decoder: str) -> str:
    return f"{what}_{decoder}"


def main(given: Sequence[str] | None = None) -> None:
    arguments = parse(__doc__, rounds=7, given=given)
    quieten_peers()
    num_images, batch_size, num_batches = (12, 4, 4) if arguments.quick else (256, 64, 8)
    folder = photograph_folder(num_images, arguments.data)
    requests = requests_of(num_images, batch_size, num_batches)
    decoders = available()
    _check(folder, decoders, requests[0])
    measurements = measured(
        [
            Contestant(
                name_of(what, decoder),
                f"{LABELS[what]}, {decoder}",
                functools.partial(_images_a_second, execute, requests, batch_size),
            )
            for decoder in decoders
            for what, execute in _executions(folder, decoder).items()
        ],
        arguments,
        title="executors",
        unit="images/s",
    )
    found = medians(measurements)
    fastest = max(decoders, key=lambda decoder: found[name_of(IMAGES, decoder)])
    auto = name_of(IMAGES, decoders[0]), name_of(IMAGES, fastest)
    arguments.report(
        "executors",
        settings={
            **folder.settings,
            "batch_size": batch_size,
            "num_batches": num_batches,
            "num_threads": NUM_THREADS,
            "decoders": decoders,
        },
        measurements=measurements,
        comparisons=compared(
            measurements,
            [
                (name_of(what, decoder), name_of(reference, decoder))
                for decoder in decoders
                for what, reference in ((IMAGES, DECODING), (BATCHES, DECODING), (IMAGES, BATCHES))
            ],
        ),
        aims=[
            Aim.at_least(
                f'"auto" ({decoders[0]}) beside the fastest decoder ({fastest})',
                compared(measurements, [auto])[0].ratio,
                0.95,
            )
        ],
    )


def _executions(folder: PhotographFolder, decoder_name: str) -> dict[str, Callable[[Request], Any]]:
    source, augment = folder_source(folder), Compose(recipes())
    decoder = make_decoder(decoder_name)

    def decode_alone(request: Request) -> None:
        for index in request.index_list():
            data = source.read(index).data
            decoder.decode(data, probe(data))

    return {
        DECODING: decode_alone,
        IMAGES: image_by_image(source, decoder, augment),
        BATCHES: batch_by_batch(source, decoder, augment),
    }


def _images_a_second(
    execute: Callable[[Request], Any], requests: list[Request], batch_size: int
) -> float:
    seconds = seconds_to_execute(requests, execute, num_threads=NUM_THREADS)
    return len(requests) * batch_size / seconds


def _check(folder: PhotographFolder, decoders: list[str], request: Request) -> None:
    """Refuse to time the two ways if they make different batches."""
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


def executors_section(content: Content) -> str:
    """Return images a second, with a row for each decoder and a column for each way."""
    settings, found = content["settings"], medians_of(content)
    rows = [
        [decoder, *(f"{found[name_of(what, decoder)]:,.0f}" for what in LABELS)]
        for decoder in settings["decoders"]
    ]
    introduction = (
        "**Decoders and execution paths on the CPU**: images per second of "
        f"{settings['mean_bytes'] / 1000:.0f} KB files, {settings['num_threads']} threads, random "
        "crop resized to 224x224, flip, normalised float32. Worker threads work image by "
        "image. The device stage works batch by batch; here torch runs its code without a GPU."
    )
    return f"{introduction}\n\n{as_table(['', *LABELS.values()], rows)}"


if __name__ == "__main__":
    main()

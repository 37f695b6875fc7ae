"""Images a second, from JPEG files to normalised batches, compared with peers and the ceiling.

Every contestant makes the same batches from the same files: a random crop resized to 224x224,
flipped with probability 1/2, normalised to float32, shuffled, in batches of 64, with two workers,
either processes or threads. The clock runs in the middle of one long pass: the start of workers
and the first batches do not count, and the workers are busy until the end.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks import photograph_loaders as loaders
from benchmarks.arguments import Arguments, parse
from benchmarks.execution_paths import seconds_to_execute
from benchmarks.harness import Contestant, measured, quieten_peers, seconds_a_batch
from benchmarks.markdown import Content, aims_table, as_table, comparisons_of, medians_of
from benchmarks.photograph_loaders import Pass
from benchmarks.photographs import photograph_folder
from benchmarks.results import Aim, compared
from benchmarks.summary import summarise

NUM_WORKERS = 2
WARM_UP_BATCHES = 4
SPARE_BATCHES = 4
"""Number of batches at the end of the pass, so that no worker idles while the clock runs."""

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
    arguments = parse(__doc__, rounds=9, given=given)
    quieten_peers()
    work = _work(arguments)
    passes = _passes(work)
    for name, start in passes.items():
        _check(name, next(start()), work)
    measurements = measured(
        [_loader(name, start, work) for name, start in passes.items()]
        + [_ceiling(name, work) for name in CEILINGS],
        arguments,
        title="throughput",
        unit="images/s",
    )
    medians = {found.name: summarise(found.values).median for found in measurements}
    ceiling = max(CEILINGS, key=lambda name: medians[name])
    peers = [name for name in _AIMS if name in medians]
    ours = (OURS, OURS_TORCHVISION, OURS_PROCESSES)
    pairs = [(name, other) for name in ours for other in (*peers, ceiling)]
    comparisons = compared(measurements, [*pairs, (OURS_PROCESSES, OURS)])
    ratios = {(each.of, each.to): each.ratio for each in comparisons}
    arguments.report(
        "throughput",
        settings={
            **work.folder.settings,
            "batch_size": work.batch_size,
            "num_workers": work.num_workers,
            "timed_batches": work.num_batches - WARM_UP_BATCHES - SPARE_BATCHES,
            "ceiling": ceiling,
        },
        measurements=measurements,
        comparisons=comparisons,
        aims=[
            *(
                Aim.at_least(f"images of {_LABELS[peer]}", ratios[OURS, peer], _AIMS[peer])
                for peer in peers
            ),
            Aim.at_least("images of the ceiling", ratios[OURS, ceiling], _AIM_OF_CEILING),
            Aim.at_least(
                "images of threads, in processes", ratios[OURS_PROCESSES, OURS], _AIM_OF_PROCESSES
            ),
        ],
    )


def _work(arguments: Arguments) -> Pass:
    num_images, batch_size, timed = (24, 4, 4) if arguments.quick else (512, 64, 24)
    return Pass(
        folder=photograph_folder(num_images, arguments.data),
        batch_size=batch_size,
        num_batches=WARM_UP_BATCHES + timed + SPARE_BATCHES,
        num_workers=NUM_WORKERS,
    )


def _passes(work: Pass) -> dict[str, Callable[[], Iterator[Any]]]:
    """Return a function for each available loader that starts a pass."""
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
    decode = _operator_of(name.removeprefix("decoding_"))

    def read_and_decode(file: str) -> None:
        decode(torch.from_numpy(np.fromfile(file, dtype=np.uint8)))

    def images_a_second() -> float:
        files = work.files
        return len(files) / seconds_to_execute(files, read_and_decode, num_threads=work.num_workers)

    return Contestant(name=name, label=_LABELS[name], measure=images_a_second)


def _check(name: str, batch: Any, work: Pass) -> None:
    """Refuse to time a contestant that makes other batches."""
    images, targets = batch
    shape = (work.batch_size, 3, loaders.SIZE, loaders.SIZE)
    if tuple(images.shape) != shape or images.dtype != torch.float32 or not images.is_contiguous():
        raise ValueError(f"{name} gives {images.dtype} {list(images.shape)} instead of {shape}")
    if tuple(targets.shape) != shape[:1] or targets.dtype != torch.int64:
        raise ValueError(f"{name} gives classes of {targets.dtype} {list(targets.shape)}")
    if not (0.5 < images.std() < 2.5 and images.min() < 0 < images.max()):
        raise ValueError(f"{name} gives pixels that are not normalised: {images.std() = }")


def _operator_of(decoder: str) -> Callable[[torch.Tensor], Any]:
    """Return the registered operator, uint8 [num_bytes] to uint8 [3, H, W], without Python code."""
    if decoder == "torchcodec":
        import torchcodec  # noqa: F401  (registers the operator)

        operator = torch.ops.torchcodec_ns.decode_jpeg.default
    else:
        import torchvision  # noqa: F401  (registers the operator)

        operator = torch.ops.image.decode_jpeg.default
    return lambda data: operator(data, 3)  # RGB


def throughput_section(content: Content) -> str:
    """Return images a second of every contestant, and the ratio of ours to each."""
    settings, medians = content["settings"], medians_of(content)
    ceiling, ours = medians[settings["ceiling"]], OURS
    ratios = {found["to"]: found["ratio"] for found in comparisons_of(content, ours)}
    rows = []
    for found in sorted(content["measurements"], key=lambda found: found["median"]):
        name = found["name"]
        label = f"**{found['label']}**" if name == ours else found["label"]
        middle = f"{found['lower_quartile']:,.0f} to {found['upper_quartile']:,.0f}"
        share = f"{found['median'] / ceiling:.0%}"
        times = f"{ratios[name]['median']:.2f}x" if name in ratios else ""
        rows.append([label, f"{found['median']:,.0f}", middle, share, times])
    head = ["", "images/s", "middle half", "of the ceiling", "ours against it"]
    introduction = (
        f"**Throughput**: {settings['width']}x{settings['height']} JPEG files of "
        f"{settings['mean_bytes'] / 1000:.0f} KB on average, random crop resized to 224x224, flip, "
        f"normalised float32, batches of {settings['batch_size']}, {settings['num_workers']} "
        "workers (processes or threads). The ceiling is decoding alone."
    )
    return f"{introduction}\n\n{as_table(head, rows)}\n\n{aims_table(content)}"


if __name__ == "__main__":
    main()

"""Images a second, from JPEG files to normalised batches, compared with peers and the ceiling.

Every contestant makes the same batches from the same files: a random crop resized to 224x224,
flipped with probability 1/2, normalised to float32, shuffled, in batches of 64, with two workers,
either processes or threads. The clock runs in the middle of one long pass: the start of workers
and the first batches do not count, and the workers are busy until the end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks import photograph_loaders as loaders
from benchmarks.arguments import parse
from benchmarks.execution_paths import seconds_to_execute
from benchmarks.harness import Contestant, measured, quieten_peers
from benchmarks.markdown import Content, aims_table, as_table, comparisons_of, medians_of
from benchmarks.photograph_loaders import Pass
from benchmarks.results import aims_at_least, compared, is_installed, medians

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


def main(given: Sequence[str] | None = None) -> None:
    arguments = parse(__doc__, rounds=9, given=given)
    quieten_peers()
    work = loaders.usual_pass(arguments)
    passes = _passes(work)
    for name, start in passes.items():
        loaders.check_batch(name, next(start()), work.batch_size)
    measurements = measured(
        [
            Contestant(name, _LABELS[name], functools.partial(work.images_a_second, start))
            for name, start in passes.items()
        ]
        + [_ceiling(name, work) for name in CEILINGS],
        arguments,
        title="throughput",
        unit="images/s",
    )
    ceiling = max(CEILINGS, key=lambda name: medians(measurements)[name])
    ours = (OURS, OURS_TORCHVISION, OURS_PROCESSES)
    pairs = [(name, other) for name in ours for other in (*_AIMS, ceiling)]
    comparisons = compared(measurements, [*pairs, (OURS_PROCESSES, OURS)])
    aims = {(OURS, peer): (f"images of {_LABELS[peer]}", aim) for peer, aim in _AIMS.items()}
    aims[OURS, ceiling] = "images of the ceiling", 0.85
    aims[OURS_PROCESSES, OURS] = "images of threads, in processes", 0.9
    arguments.report(
        "throughput",
        settings={
            **work.folder.settings,
            "batch_size": work.batch_size,
            "num_workers": work.num_workers,
            "timed_batches": work.timed,
            "ceiling": ceiling,
        },
        measurements=measurements,
        comparisons=comparisons,
        aims=aims_at_least(comparisons, aims),
    )


def _passes(work: Pass) -> dict[str, Callable[[], Iterator[Any]]]:
    """Return a function for each available loader that starts a pass."""
    ours = functools.partial(loaders.ours, work)
    passes: dict[str, Callable[[], Iterator[Any]]] = {
        PILLOW: functools.partial(loaders.torch_with_pillow, work),
        TORCHDATA: functools.partial(loaders.torchdata_with_torchvision, work),
        DALI: functools.partial(loaders.dali, work),
        OURS_PROCESSES: functools.partial(ours, decoder="torchcodec", worker_type="process"),
        OURS_TORCHVISION: functools.partial(ours, decoder="torchvision"),
        OURS: functools.partial(ours, decoder="torchcodec"),
    }
    if not is_installed("nvidia.dali"):
        del passes[DALI]
    return passes


def _ceiling(name: str, work: Pass) -> Contestant:
    decode = _operator_of(name.removeprefix("decoding_"))

    def read_and_decode(file: str) -> None:
        decode(torch.from_numpy(np.fromfile(file, dtype=np.uint8)))

    def images_a_second() -> float:
        files = work.files
        return len(files) / seconds_to_execute(files, read_and_decode, num_threads=work.num_workers)

    return Contestant(name, _LABELS[name], images_a_second)


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
    settings, ours = content["settings"], OURS
    ceiling = medians_of(content)[settings["ceiling"]]
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

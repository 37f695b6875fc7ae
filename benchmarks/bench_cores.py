"""Images a second by number and kind of workers, on simulated cores.

Decoding is a sleep of 1.2 ms and augmenting one of 0.3 ms, the times of torchvision for a
photograph of 500x375. A sleep needs no core and does not hold Python's lock, so two cores can show
the loader's own cost with 64 workers. The rest is real: files are opened and read, headers are
parsed, a tiny JPEG is decoded, and a batch of real size is allocated and passed on, unwritten.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.arguments import parse
from benchmarks.gpu.reading_alone import ReadingAlone
from benchmarks.harness import Contestant, measured
from benchmarks.markdown import Content, aims_table, as_table, cell, medians_of
from benchmarks.memory import mebibytes_of_all_processes
from benchmarks.photographs import PhotographFolder, photograph_folder
from benchmarks.results import Aim, Comparison, Measurement, compared, medians
from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.transforms import Compose

DECODE, AUGMENT = 1.2e-3, 0.3e-3
"""Seconds for an image."""
HEIGHT, WIDTH, SIZE = 375, 500, 224
"""Pixels of a decoded image, and of an image in the batch."""
BATCH_SIZE = 64
WORKERS = (2, 4, 8, 16, 32, 64)
READERS = (1, 2, 4, 8)

IDEAL, AUTO, THREADS, PROCESSES = "ideal", "auto", "threads", "processes"
PROCESSES_OF_4, OF_DATASET, TORCH = "processes_of_4", "dataset", "torch"
KINDS = {
    IDEAL: "ideal: sleeps alone",
    AUTO: 'StatefulGPULoader, worker_type="auto"',
    THREADS: "StatefulGPULoader, threads",
    PROCESSES_OF_4: "StatefulGPULoader, processes of 4 threads",
    PROCESSES: "StatefulGPULoader, processes",
    OF_DATASET: "StatefulGPULoader, a user's dataset in processes",
    TORCH: "torch DataLoader, the same dataset",
}
READING = "reading"

_MOST_PROCESSES = 32
"""Most worker processes that fit into this machine's memory."""
_SECONDS, _NUM_FILES = 3.0, 256
_AIMS = {4: 0.9, 8: 0.9}
"""Minimum share of the ideal, by number of workers."""
_FLOOR = {16: 7500, 32: 7500}
"""Minimum of images a second, by number of workers."""
_READ_AIM = 20_000
_NOISE = 0.95


class SleepingDecode(T.Recipe):
    """Takes the time and returns the memory of a decoder."""

    def draw(self, uniforms: Any, sizes: Any) -> T.Draw:
        return T.Draw(np.empty((len(sizes), 0)), np.full_like(sizes, 1) * [HEIGHT, WIDTH])

    def apply(self, image: torch.Tensor, numbers: Sequence[float]) -> torch.Tensor:
        time.sleep(DECODE)
        return torch.empty(3, HEIGHT, WIDTH, dtype=torch.uint8)


class SleepingCrop(T.Recipe):
    """Takes the time of a random crop, resized and normalised; the batch stays unwritten."""

    num_draws = 4

    def draw(self, uniforms: Any, sizes: Any) -> T.Draw:
        return T.Draw(uniforms, np.full_like(sizes, SIZE))

    def dtype_after(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float32

    def apply(self, image: torch.Tensor, numbers: Sequence[float]) -> torch.Tensor:
        time.sleep(AUGMENT)
        return torch.empty(3, SIZE, SIZE)

    def apply_into(self, image: torch.Tensor, numbers: Sequence[float], out: torch.Tensor) -> None:
        time.sleep(AUGMENT)


class SleepingDataset(Dataset[tuple[torch.Tensor, int]]):
    """A user's dataset that takes the same time; its images stay unwritten."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(DECODE)
        time.sleep(AUGMENT)
        return torch.empty(3, SIZE, SIZE), index


def collate(samples: list[tuple[torch.Tensor, int]]) -> list[torch.Tensor]:
    """Return a batch of real size, unwritten, like the recipes' batch."""
    images = torch.empty(len(samples), 3, SIZE, SIZE)
    return [images, torch.tensor([target for _, target in samples])]


def main(given: Sequence[str] | None = None) -> None:
    arguments = parse(__doc__, rounds=5, given=given)
    numbers, readers = ((2,), (1,)) if arguments.quick else (WORKERS, READERS)
    seconds = 0.2 if arguments.quick else _SECONDS
    memory: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = _tiny_files(Path(folder))
        files = photograph_folder(8 if arguments.quick else _NUM_FILES, arguments.data)
        contestants = [
            Contestant(
                name_of(kind, workers),
                f"{KINDS[kind]}, {workers}",
                functools.partial(_images_a_second, kind, workers, paths, seconds, memory),
            )
            for workers in numbers
            for kind in KINDS
            if _is_measured(kind, workers)
        ] + [
            Contestant(
                name_of(READING, count),
                f"readers of files for a GPU, {count}",
                functools.partial(_files_a_second, files, count),
            )
            for count in readers
        ]
        measurements = measured(contestants, arguments, title="cores", unit="images/s")
    comparisons = compared(
        measurements, [(name_of(AUTO, workers), name_of(IDEAL, workers)) for workers in numbers]
    )
    arguments.report(
        "cores",
        settings={
            "decode_seconds": DECODE,
            "augment_seconds": AUGMENT,
            "batch_size": BATCH_SIZE,
            "memory_mib": {name: round(found) for name, found in memory.items()},
        },
        measurements=measurements,
        comparisons=comparisons,
        aims=_aims(measurements, comparisons),
    )


def name_of(kind: str, workers: int) -> str:
    return f"{kind}_{workers}"


def _is_measured(kind: str, workers: int) -> bool:
    if kind == PROCESSES_OF_4:
        return workers >= 4
    return workers <= _MOST_PROCESSES or kind not in (PROCESSES, OF_DATASET, TORCH)


def _tiny_files(folder: Path) -> list[str]:
    generator = np.random.default_rng(0)
    for number in range(_NUM_FILES):
        pixels = generator.integers(256, size=(8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:04d}.jpg")
    return [str(path) for path in sorted(folder.iterdir())]


def _images_a_second(
    kind: str, workers: int, paths: list[str], seconds: float, memory: dict[str, float]
) -> float:
    if kind == IDEAL:
        return workers * _sleeps_a_second(seconds)
    warm_up = 2 * workers
    most = int(2 * seconds * workers / (DECODE + AUGMENT)) + (warm_up + 4 * workers) * BATCH_SIZE
    batches = _batches(kind, workers, paths, most)
    for _ in range(warm_up):
        next(batches)
    started, num_images = time.perf_counter(), 0
    while (passed := time.perf_counter() - started) < seconds:
        num_images += len(next(batches)[1])
    name = name_of(kind, workers)
    memory[name] = max(memory.get(name, 0.0), mebibytes_of_all_processes())
    return num_images / passed


def _sleeps_a_second(seconds: float) -> float:
    """Return images a second of one core that does nothing else."""
    started, number = time.perf_counter(), 0
    while (passed := time.perf_counter() - started) < seconds:
        time.sleep(DECODE)
        time.sleep(AUGMENT)
        number += 1
    return number / passed


def _batches(kind: str, workers: int, paths: list[str], most: int) -> Iterator[Any]:
    if kind in (OF_DATASET, TORCH):
        loader: Callable[..., Any] = DataLoader if kind == TORCH else StatefulGPULoader
        dataset = SleepingDataset(most)
        return iter(loader(dataset, BATCH_SIZE, num_workers=workers, collate_fn=collate))
    options: dict[str, Any] = {
        AUTO: {},
        THREADS: {"worker_type": "thread"},
        PROCESSES: {"worker_type": "process", "threads_per_process": 1},
        PROCESSES_OF_4: {"worker_type": "process", "threads_per_process": 4},
    }[kind]
    count = -(-most // len(paths))
    source = FolderSource.from_paths(paths * count, [0] * len(paths) * count)
    return iter(
        StatefulGPULoader(
            source,
            BATCH_SIZE,
            num_workers=workers,
            transform=[SleepingDecode(), SleepingCrop()],
            **options,
        )
    )


def _files_a_second(files: PhotographFolder, readers: int) -> float:
    recipes = Compose([T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip()])
    num_batches = max(2, len(files.files) * 32 // BATCH_SIZE)
    return ReadingAlone(files, recipes, BATCH_SIZE).images_a_second(
        num_threads=readers, num_batches=num_batches
    )


def _aims(measurements: Sequence[Measurement], comparisons: Sequence[Comparison]) -> list[Aim]:
    found = medians(measurements)
    shares = {each.of: each.ratio for each in comparisons}
    auto = [found[name] for name in shares]
    growth = min((many / few for few, many in itertools.pairwise(auto)), default=1.0)
    reading = max(median for name, median in found.items() if name.startswith(READING))
    shared = [
        Aim.at_least(f"the rate with {workers} workers, beside the ideal", shares[name], share)
        for workers, share in _AIMS.items()
        if (name := name_of(AUTO, workers)) in shares
    ]
    rates = [
        (f"images a second with {workers} workers", found[name], floor)
        for workers, floor in _FLOOR.items()
        if (name := name_of(AUTO, workers)) in found
    ]
    rates.append(("files that one process reads for a GPU in a second", reading, _READ_AIM))
    return [
        *shared,
        Aim.at_least("the rate with twice as many workers, at least", growth, _NOISE),
        *(Aim(what, f">= {floor:,}", f"{rate:,.0f}", rate >= floor) for what, rate, floor in rates),
    ]


def cores_section(content: Content) -> str:
    """Return images a second and memory, with kinds of workers as rows and numbers as columns."""
    medians, memory = medians_of(content), content["settings"]["memory_mib"]
    head = ["workers", *map(str, WORKERS)]
    rates, mebibytes = (
        [
            [label, *(cell(found, name_of(kind, workers)) for workers in WORKERS)]
            for kind, label in KINDS.items()
        ]
        for found in (medians, memory)
    )
    introduction = (
        "**Many cores**: images a second by number and kind of workers, on simulated "
        f"cores. Decoding takes a sleep of {1e3 * DECODE:.1f} ms and augmenting one of "
        f"{1e3 * AUGMENT:.1f} ms, which need no core and release Python's lock. The rest is "
        "real, on two cores."
    )
    in_memory = "MiB of all processes, shared memory counted once:"
    readers = ", ".join(
        f"{medians[name]:,.0f} with {count}"
        for count in READERS
        if (name := name_of(READING, count)) in medians
    )
    reading = f"Files a second that threads of one process read for a GPU: {readers}."
    tables = [as_table(head, rates), in_memory, as_table(head, mebibytes[1:])]
    return "\n\n".join([introduction, *tables, reading, aims_table(content)])


if __name__ == "__main__":
    main()

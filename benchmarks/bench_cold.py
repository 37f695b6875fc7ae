"""A million files: the first batch of a new process, compared with torch's DataLoader.

A folder of a million small photographs in 1,000 classes, linked to a few thousand files, is written
for the benchmark and removed at the end. Each process imports what it needs, lists the folder (ours
uses an earlier process's kept listing, or has none yet), and delivers one batch. Another process
imports the same and ends. Files and folders come from the system's cache.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.arguments import parse
from benchmarks.cold_process import (
    BATCH_SIZE,
    FIRST_BATCH,
    IMPORTS,
    NUM_WORKERS,
    OURS,
    SIZE,
    TORCH,
)
from benchmarks.harness import COMPILED, ROOT, Contestant, alternate
from benchmarks.markdown import Content, aims_table, as_table, cell, medians_of, short
from benchmarks.photographs import photograph_folder
from benchmarks.progress import progress_bar
from benchmarks.results import Aim, Measurement, compared
from benchmarks.summary import summarise
from stateful_gpu_loader import FolderSource
from stateful_gpu_loader.datasets.folder import KEPT_FROM
from stateful_gpu_loader.datasets.storage.index_files import YOUNG

KEPT, FIRST, IMAGE_FOLDER = "kept", "first", "image-folder"
OUR_IMPORTS, TORCH_IMPORTS = "imports-ours", "imports-torch"
LABELS = {
    KEPT: "StatefulGPULoader, FolderSource with a kept listing",
    FIRST: "StatefulGPULoader, FolderSource for the first time",
    IMAGE_FOLDER: "torch DataLoader, torchvision's ImageFolder",
    OUR_IMPORTS: "the imports of the first two alone",
    TORCH_IMPORTS: "the imports of the third alone",
}
IMPORTS_OF = {KEPT: OUR_IMPORTS, FIRST: OUR_IMPORTS, IMAGE_FOLDER: TORCH_IMPORTS}
SECONDS, CPU, LISTING, MEMORY = "seconds", "cpu", "listing", "memory"
UNITS = {SECONDS: "s", CPU: "CPU s", LISTING: "CPU s", MEMORY: "MiB"}
AIM_SECONDS, AIM_LISTING = 1.0, 1.0

_DIFFERENT, _CROP, _QUALITY = 4000, 64, 85


@dataclass
class ColdStarts:
    """Processes over one folder, and their reports."""

    folder: Path
    cache: Path
    found: dict[str, list[float]]

    def measure(self, name: str) -> float:
        """Return the seconds from the process's start to the first batch, or to its end."""
        if name == FIRST:
            for file in self.cache.iterdir():
                file.unlink()
        report = self._report(name)
        for what in (CPU, LISTING, MEMORY):
            if what in report:
                self.found.setdefault(measurement_name(what, name), []).append(report[what])
        if name in (KEPT, FIRST) and not any(self.cache.iterdir()):
            raise RuntimeError("no listing was kept. Remedy: find out why")
        return report["at"] - report["began"]

    def _report(self, name: str) -> dict[str, float]:
        who = TORCH if name in (IMAGE_FOLDER, TORCH_IMPORTS) else OURS
        what = FIRST_BATCH if name in IMPORTS_OF else IMPORTS
        with tempfile.TemporaryDirectory() as place:
            report = Path(place) / "report.json"
            given = [who, what, str(self.folder), str(self.cache), str(report)]
            began = time.monotonic()
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "benchmarks.cold_process", *given],
                env={**os.environ, **COMPILED},
                cwd=ROOT,
                start_new_session=True,
            )
            try:
                if process.wait():
                    raise RuntimeError(f"{LABELS[name]}: it ended with {process.returncode}")
            finally:
                with suppress(ProcessLookupError):  # only its own workers are in the group
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return {"began": began, **json.loads(report.read_text(encoding="utf-8"))}


def main(given: Sequence[str] | None = None) -> None:
    arguments = parse(__doc__, rounds=9, given=given)
    num_images, num_classes = (KEPT_FROM, 10) if arguments.quick else (1_000_000, 1_000)
    arguments.data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.data.resolve(), prefix="cold-") as place:
        folder, cache = Path(place) / "images", Path(place) / "cache"
        write_folder(folder, num_images, num_classes, arguments.data)
        time.sleep(YOUNG / 1e9)  # until listings are kept
        FolderSource(folder, cache_dir=cache)
        starts = ColdStarts(folder, cache, {})
        values = alternate(
            [
                Contestant(name, label, partial(starts.measure, name))
                for name, label in LABELS.items()
            ],
            rounds=arguments.rounds,
            title="cold starts",
            warm_up_rounds=arguments.warm_up_rounds,
        )
    every = {measurement_name(SECONDS, name): found for name, found in values.items()}
    # The reports include warm-up rounds.
    every |= {name: found[-arguments.rounds :] for name, found in starts.found.items()}
    measurements = [
        Measurement(key, f"{LABELS[name]}, {what}", UNITS[what], every[key])
        for key in every
        for what, _, name in [key.partition(" ")]
    ]
    comparisons = compared(
        measurements,
        [
            (measurement_name(what, name), measurement_name(what, IMAGE_FOLDER))
            for what in (SECONDS, LISTING, MEMORY)
            for name in (KEPT, FIRST)
        ],
    )
    listing = next(each.ratio for each in comparisons if each.of == f"{LISTING} {FIRST}")
    arguments.report(
        "cold",
        settings={
            "num_images": num_images,
            "num_classes": num_classes,
            "different_files": min(_DIFFERENT, num_images),
            "batch_size": BATCH_SIZE,
            "num_workers": NUM_WORKERS,
            "size": SIZE,
        },
        measurements=measurements,
        comparisons=comparisons,
        aims=[
            *(
                Aim.at_most(
                    f"with a kept listing, seconds beyond {what}",
                    summarise(np.subtract(values[KEPT], values[other]).tolist()).median,
                    AIM_SECONDS,
                    "s",
                )
                for other, what in (
                    (IMAGE_FOLDER, "torch's own first batch"),
                    (OUR_IMPORTS, "what it imports"),
                )
            ),
            Aim.at_most(
                "listing for the first time, CPU time beside ImageFolder's", listing, AIM_LISTING
            ),
        ],
    )


def write_folder(folder: Path, num_images: int, num_classes: int, data: Path) -> None:
    """Write class folders of small photographs, each a link to one of a few thousand files."""
    pool = folder.with_name("pool")
    pool.mkdir(parents=True)
    files = []
    for number, crop in enumerate(_crops(min(_DIFFERENT, num_images), data)):
        files.append(pool / f"{number:05d}.jpg")
        crop.save(files[-1], quality=_QUALITY)
    with progress_bar("files", num_images, unit="file") as progress:
        for label in range(num_classes):
            name = f"n{label:08d}"
            (folder / name).mkdir(parents=True)
            numbers = range(label, num_images, num_classes)
            for number in numbers:
                os.link(files[number % len(files)], folder / name / f"{name}_{number}.jpg")
            progress.update(len(numbers))


def _crops(count: int, data: Path) -> Iterator[Image.Image]:
    photographs = photograph_folder(12, data).files
    for number in range(count):
        with Image.open(photographs[number % len(photographs)]) as image:
            place = number // len(photographs)
            left, top = 7 * place % (image.width - _CROP), 11 * place % (image.height - _CROP)
            yield image.crop((left, top, left + _CROP, top + _CROP))


def measurement_name(what: str, name: str) -> str:
    """Return the key of a measurement.

    >>> measurement_name(SECONDS, KEPT)
    'seconds kept'
    """
    return f"{what} {name}"


def cold_section(content: Content) -> str:
    """Return time and memory of every start, in total and without the imports."""
    settings, found = content["settings"], medians_of(content)
    rows = []
    for name, label in LABELS.items():
        names = {what: measurement_name(what, name) for what in UNITS}
        row = [label, f"{short(found[names[SECONDS]])} s"]
        for what in (SECONDS, CPU, MEMORY):
            imports = IMPORTS_OF.get(name)
            if imports is None:
                row.append("")
                continue
            beyond = found[names[what]] - found[measurement_name(what, imports)]
            row.append(f"{short(beyond)} {'MiB' if what == MEMORY else 's'}")
        rows.append([*row, cell(found, names[LISTING], "s")])
    introduction = (
        f"**Cold starts**: from the beginning of a Python process to the first batch of "
        f"{settings['batch_size']} of a folder of {settings['num_images']:,} small JPEG files in "
        f"{settings['num_classes']:,} classes, shuffled, {settings['num_workers']} workers, a "
        f"random crop resized to {settings['size']}x{settings['size']}. Figures beyond the "
        "imports are differences to a process that only imports the same modules. CPU time and "
        "memory include all processes. Files and folders come from the system's cache."
    )
    head = ["", "first batch", "beyond the imports", "CPU time beyond", "memory beyond"]
    table = as_table([*head, "CPU time of the listing"], rows)
    return f"{introduction}\n\n{table}\n\n{aims_table(content)}"


if __name__ == "__main__":
    main()

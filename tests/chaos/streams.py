"""Loaders that are put through chaos, and executions that must not change their batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchvision.transforms import Compose

from stateful_gpu_loader import FolderSource, StatefulGPULoader, TarShards
from stateful_gpu_loader import transforms as T
from tests.map_datasets import Caching, Indices, Jitter, Noisy, OwnGenerator, add_noise

RECIPES = [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4, 0.4, 0.1)]
TIMEOUT = 4.0
"""``timeout=`` in seconds, where an execution has one."""


class EveryGenerator(OwnGenerator):
    """Each sample draws from ``random``, NumPy, torch and a private generator."""

    def __getitem__(self, index: int) -> Any:
        return {**Noisy(self.length)[index], "own": super().__getitem__(index)[1]}


def prepare(folder: Path) -> None:
    """Write JPEG photographs, the same photographs with some damaged, and tars of photographs."""
    from tests.datasets.tar.tar_files import write_photo_tars
    from tests.images import write_photo_folder

    write_photo_folder(folder / "photos", num_classes=3, per_class=20)
    damaged = write_photo_folder(folder / "damaged", num_classes=3, per_class=20)
    for number, path in enumerate(damaged[::9]):
        whole = path.read_bytes()
        path.write_bytes([b"", b"this is no photograph", whole[:200], whole[:-500]][number % 4])
    write_photo_tars(folder / "tars", (14, 9, 12, 7, 11, 10))


def _noisy(folder: Path, **execution: Any) -> StatefulGPULoader[Any]:
    dataset, transform = EveryGenerator(130), Compose([add_noise, Jitter()])
    return StatefulGPULoader(dataset, 8, True, seed=3, transform=transform, **execution)


def _quiet(folder: Path, **execution: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(Indices(130), 8, True, seed=7, **execution)


def _caching(folder: Path, **execution: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(Caching(130), 8, True, seed=8, **execution)


def _photos(folder: Path, **execution: Any) -> StatefulGPULoader[Any]:
    source = FolderSource(folder / "photos")
    mix = T.CutMix(num_classes=3)
    return StatefulGPULoader(
        source, 4, shuffle=True, seed=4, transform=RECIPES, batch_transform=mix, **execution
    )


def _tars(folder: Path, **execution: Any) -> StatefulGPULoader[Any]:
    source = TarShards(f"{folder}/tars/*.tar", num_lanes=3, shuffle_buffer=8)
    return StatefulGPULoader(source, 4, seed=5, transform=RECIPES, **execution)


def _damaged(folder: Path, **execution: Any) -> StatefulGPULoader[Any]:
    source = FolderSource(folder / "damaged")
    return StatefulGPULoader(
        source, 4, True, seed=6, transform=RECIPES, on_bad_sample="replace", **execution
    )


STREAMS: dict[str, Callable[..., StatefulGPULoader[Any]]] = {
    "noisy": _noisy,
    "quiet": _quiet,
    "caching": _caching,
    "photos": _photos,
    "tars": _tars,
    "damaged": _damaged,
    "crews": _photos,
}


def end_epoch(loader: StatefulGPULoader[Any]) -> None:
    """Empty the dataset's cache: its content depends on the epoch in which it was filled."""
    if isinstance(loader.dataset, Caching):
        loader.dataset.kept.clear()


def drawn_execution(stream: str, rng: random.Random) -> dict[str, Any]:
    """Draw the execution: inline, threads (for images only) or processes, and how many.

    The workers of ``crews`` are always processes of two threads.
    """
    kinds = ["inline", "process", "process", "process", "process"]
    has_images = stream in ("photos", "tars", "damaged")
    kind = "process" if stream == "crews" else rng.choice(kinds + ["thread", "thread"] * has_images)
    if kind == "inline":
        return {}
    workers: dict[str, Any] = {"num_workers": rng.randint(1, 3)}
    if stream == "crews":
        workers = {"num_workers": 4, "threads_per_process": 2}
    return {
        **workers,
        "worker_type": kind,
        "prefetch_factor": rng.choice([1, 2, 4]),
        # A persistent worker's cache would hold samples of an earlier epoch.
        "persistent_workers": rng.random() < 0.5 and stream != "caching",
        "timeout": rng.choice([0.0, TIMEOUT]),
    }

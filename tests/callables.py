"""Picklable functions for CallableSource, as users write them."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stateful_gpu_loader import BatchInfo, CallableSource, SampleInfo, StatefulGPULoader

BATCH = 4
Loader = StatefulGPULoader[Any]


class Places:
    """Returns the SampleInfo that it is called with; epochs have the given lengths in turn."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths

    def length_of(self, epoch: int) -> int:
        return self.lengths[epoch % len(self.lengths)]

    def __call__(self, info: SampleInfo) -> Any:
        if info.idx_in_epoch >= self.length_of(info.epoch_idx):
            raise StopIteration
        return {
            "place": info.idx_in_epoch,
            "in_batch": info.idx_in_batch,
            "iteration": info.iteration,
            "epoch": info.epoch_idx,
        }


class NoisyPlaces(Places):
    """Each sample draws from all three global generators."""

    def __call__(self, info: SampleInfo) -> Any:
        return {**super().__call__(info), **draws()}


class NoisyBatches(Places):
    """Whole batches of three samples. Lengths count batches."""

    def __call__(self, info: BatchInfo) -> Any:  # type: ignore[override]
        if info.iteration >= self.length_of(info.epoch_idx):
            raise StopIteration
        return {
            "iteration": np.full(3, info.iteration),
            "epoch": torch.full((3,), info.epoch_idx),
            "noise": np.random.standard_normal(3) + random.random() + torch.rand(3).numpy(),
        }


class FailingPlaces(NoisyPlaces):
    """Raises for some places of every epoch."""

    def __init__(self, length: int, errors: dict[int, Callable[[], Exception]]) -> None:
        super().__init__(length)
        self.errors = errors

    def __call__(self, info: SampleInfo) -> Any:
        if info.idx_in_epoch in self.errors:
            raise self.errors[info.idx_in_epoch]()
        return super().__call__(info)


class DyingPlaces(NoisyPlaces):
    """Its process is killed at one place, once for each file in a folder."""

    def __init__(self, length: int, place: int, lives: Path) -> None:
        super().__init__(length)
        self.place, self.lives = place, lives

    def __call__(self, info: SampleInfo) -> Any:
        if info.idx_in_epoch == self.place:
            for life in sorted(self.lives.iterdir()):
                life.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(info)


class Files:
    """Image files and labels, once through."""

    def __init__(self, paths: list[Path], form: str = "bytes") -> None:
        self.paths, self.form = paths, form

    def __call__(self, info: SampleInfo) -> Any:
        if info.idx_in_epoch >= len(self.paths):
            raise StopIteration
        return self.of(info.idx_in_epoch)

    def of(self, number: int) -> Any:
        path = self.paths[number]
        data, label = path.read_bytes(), int(path.parent.name.removeprefix("class_"))
        if self.form == "array":
            return np.frombuffer(data, np.uint8), label
        if self.form == "tensor":
            return torch.frombuffer(bytearray(data), dtype=torch.uint8), label
        if self.form == "dict":
            return {"label": label, "jpeg": data, "number": number}
        if self.form == "last":
            return label, np.float32(number), data
        return data, label


class FileBatches(Files):
    """Batches of five image files, the last one shorter."""

    def __call__(self, info: BatchInfo) -> Any:  # type: ignore[override]
        numbers = range(5 * info.iteration, min(5 * info.iteration + 5, len(self.paths)))
        if not numbers:
            raise StopIteration
        files, labels = zip(*map(self.of, numbers), strict=True)
        return list(files), np.array(labels)


def draws() -> dict[str, Any]:
    """Return one draw from each of the three global generators."""
    return {
        "random": random.gauss(0, 1),
        "numpy": np.random.standard_normal(3),
        "torch": torch.randn(2) + torch.rand(()),
    }


def make(function: Any, *, source: dict[str, Any] | None = None, **arguments: Any) -> Loader:
    """Return a loader of a function. ``source`` holds arguments of CallableSource."""
    return StatefulGPULoader(
        CallableSource(function, **(source or {})),
        **{"batch_size": BATCH, "seed": 3, **arguments},
    )


def places_of(batches: list[Any]) -> list[int]:
    """Return the places of all samples in delivery order."""
    return [place for batch in batches for place in batch["place"].tolist()]

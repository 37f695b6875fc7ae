"""Training data of the trainers' tests, and records of the batches that a trainer received."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import torch

from stateful_gpu_loader import FolderSource, StatefulGPULoader, TarShards
from stateful_gpu_loader import transforms as T
from tests.datasets.tar.tar_files import photo_entries, write_tar
from tests.images import write_photo_folder

Seen: TypeAlias = tuple[tuple[int, ...], str]
"""Number of each sample of one batch, and a digest of its pixels."""

SIDE = 16
RECIPES = [T.RandomResizedCrop(SIDE), T.RandomHorizontalFlip()]


def photos(folder: Path, num_images: int = 24) -> FolderSource:
    """Return real JPEG photographs under ``folder``, each in its own class."""
    paths = write_photo_folder(folder, num_classes=1, per_class=num_images)
    return FolderSource.from_paths(paths, range(num_images))


def tars(folder: Path, lengths: tuple[int, ...] = (5, 8, 3, 8)) -> TarShards:
    """Return shards of JPEG photographs, one lane each; the target is the photograph's number."""
    folder.mkdir(parents=True, exist_ok=True)
    paths, first = [], 0
    for shard, length in enumerate(lengths):
        entries = photo_entries(first, first + length)
        numbered = [
            (name, str(first + place // 3).encode() if name.endswith(".cls") else content)
            for place, (name, content) in enumerate(entries)
        ]
        paths.append(write_tar(folder / f"photos-{shard:03d}.tar", numbered))
        first += length
    return TarShards(paths, num_lanes=len(lengths))


def image_loader(dataset: Any, **arguments: Any) -> StatefulGPULoader[Any]:
    """Return a loader of batches of 4, shuffled, randomly cropped and flipped."""
    given = {"batch_size": 4, "shuffle": True, "seed": 11, "transform": RECIPES, **arguments}
    return StatefulGPULoader(dataset, **given)


def seen(batch: Any) -> Seen:
    """Return the record of ``[images, numbers]``, to compare with an undisturbed run."""
    images, numbers = batch
    pixels = images.detach().cpu().contiguous().numpy().tobytes()
    return tuple(numbers.tolist()), hashlib.blake2b(pixels, digest_size=8).hexdigest()


def samples_of(batch: Any) -> list[tuple[int, str]]:
    """Return the number and a digest of the pixels of each sample, for batches of several ranks.

    Args:
        batch: ``[images, numbers]``, ``[numbers, anything]``, numbers, or a dict of them.
    """
    if isinstance(batch, (list, tuple)):
        first, second = batch
        images, numbers = (first, second) if first.dim() > 1 else (second, first)
        return [
            (int(number), seen((image, number[None]))[1])
            for number, image in zip(numbers, images, strict=True)
        ]
    numbers = batch["index"] if isinstance(batch, dict) else batch
    return [(int(number), "") for number in numbers]


def sorted_samples(batches: Iterable[list[tuple[int, str]]]) -> list[tuple[int, str]]:
    return sorted(chain.from_iterable(batches))


def numbers_of(batches: Iterable[Seen]) -> list[int]:
    return [number for numbers, _ in batches for number in numbers]


class Brightness(torch.nn.Module):
    """A model of a few weights: a weighted mean of the images' mean colours."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weights = torch.nn.Linear(3, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the mean of the weighted colours: float32 []."""
        return self.weights(images.to(torch.float32).mean(dim=(2, 3)) / 255).mean()

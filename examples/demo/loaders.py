"""The two loaders to compare: same files, augmentations, batches and seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets import FolderSource
from stateful_gpu_loader.loader import StatefulGPULoader

BATCH_SIZE = 32
IMAGE_SIZE = 96
"""Side of an image in a batch, in pixels."""
SEED = 42
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
_SCALE = (0.3, 1.0)
"""Area of a crop, as a share of its image."""
_JITTER = (0.4, 0.4, 0.4, 0.05)
"""Brightness, contrast, saturation, hue."""


def ours(root: Path, num_workers: int) -> StatefulGPULoader[Any]:
    """Return this package's loader: its threads decode and augment the files."""
    return StatefulGPULoader(
        FolderSource(root),
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=num_workers,
        seed=SEED,
        transform=[
            T.RandomResizedCrop(IMAGE_SIZE, _SCALE),
            T.RandomHorizontalFlip(),
            T.ColorJitter(*_JITTER),
            T.Normalize(MEAN, STD),
        ],
    )


def torchdatas(root: Path, num_workers: int) -> StatefulDataLoader[Any]:
    """Return torchdata's loader with torchvision's folder, decoder and v2 transforms.

    Order and worker seeds come from torch's default generator, which the training job seeds,
    saves and restores.
    """
    from torchvision.datasets import ImageFolder
    from torchvision.io import decode_image
    from torchvision.transforms import v2

    dataset = ImageFolder(
        str(root),
        loader=partial(decode_image, mode="RGB"),
        transform=v2.Compose(
            [
                v2.RandomResizedCrop(IMAGE_SIZE, _SCALE),
                v2.RandomHorizontalFlip(),
                v2.ColorJitter(*_JITTER),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, STD),
            ]
        ),
    )
    return StatefulDataLoader(dataset, BATCH_SIZE, shuffle=True, num_workers=num_workers)


LOADERS: dict[str, Callable[[Path, int], StatefulDataLoader[Any]]] = {
    "StatefulGPULoader": ours,
    "StatefulDataLoader": torchdatas,
}
"""Functions that build a loader from a folder and a number of workers, by displayed name."""

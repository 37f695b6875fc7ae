"""Loaders of the GPU benchmark: same files, same batches on the GPU.

Each function starts one pass over the files and returns its batches: bfloat16
[batch_size, 3, 224, 224], a random crop of each image, resized, flipped with probability 1/2 and
normalised; and int64 [batch_size], the classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torchvision
from torchvision.transforms import v2

from benchmarks.photograph_loaders import (
    MEAN,
    SIZE,
    STD,
    Pass,
    source_of,
    torch_with_torchvision,
)
from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader import transforms as T

DEVICE = torch.device("cuda")
DTYPE = torch.bfloat16

RECIPES: tuple[T.Recipe, ...] = (
    T.RandomResizedCrop(SIZE),
    T.RandomHorizontalFlip(),
    T.Normalize(MEAN, STD),
    T.ToDtype(DTYPE),
)
JITTERED: tuple[T.Recipe, ...] = (
    *RECIPES[:2],
    T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    *RECIPES[2:],
)


def ours(
    work: Pass, *, decoder: str, recipes: Sequence[T.Recipe] = RECIPES, **changes: Any
) -> StatefulGPULoader[Any]:
    """Return this package's loader, not yet iterated."""
    arguments: dict[str, Any] = {
        "batch_size": work.batch_size,
        "shuffle": True,
        "num_workers": work.num_workers,
        "seed": 42,
        "device": "cuda",
        "decoder": decoder,
        "transform": list(recipes),
        **changes,
    }
    return StatefulGPULoader(source_of(work), **arguments)


def state_at_every_step(loader: StatefulGPULoader[Any]) -> Iterator[Any]:
    """Yield the loader's batches, taking the state at each."""
    for batch in loader:
        loader.state_dict()
        yield batch


def torch_on_cpu(work: Pass) -> Iterator[Any]:
    """Start torch's DataLoader: torchvision decodes in processes, and only the batch moves."""
    for images, targets in torch_with_torchvision(work, pin_memory=True):
        moved = images.to(DEVICE, non_blocking=True).to(DTYPE)
        yield [moved, targets.to(DEVICE, non_blocking=True)]


def torchvision_one_by_one(work: Pass) -> Iterator[Any]:
    """Start torchvision's batched GPU decoding, then v2 image by image, as its docs recommend.

    Meanwhile threads read the files of the next batch.
    """
    augment = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(DTYPE, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    order = torch.randperm(len(work.files)).split(work.batch_size)
    files, targets = work.files, torch.tensor(work.targets)
    with ThreadPoolExecutor(work.num_workers) as pool:
        coming = [pool.submit(_read, files[i]) for i in order[0].tolist()]
        for number, indices in enumerate(order):
            data = [future.result() for future in coming]
            following = order[number + 1].tolist() if number + 1 < len(order) else []
            coming = [pool.submit(_read, files[i]) for i in following]
            images = torchvision.io.decode_jpeg(
                data, torchvision.io.ImageReadMode.RGB, device=DEVICE
            )
            batch = torch.stack([augment(image) for image in images])
            yield [batch, targets[indices].to(DEVICE, non_blocking=True)]


def _read(file: str) -> torch.Tensor:
    return torch.from_numpy(np.fromfile(file, dtype=np.uint8))

"""Google's Grain, with its DataLoader."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import grain
import numpy as np
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from benchmarks.peers.adapter import SEED, Delivery, Peer, Work
from benchmarks.photograph_loaders import SIZE, read_with_torchvision, to_float


class Grain(Peer):
    """A data source of files, an IndexSampler and a random map."""

    def photographs(self, work: Work, state: bytes | None) -> Delivery:
        operations = [_CropAndFlip(), grain.transforms.Batch(work.batch_size)]
        iterator = _iterator(_Files(work.files), operations, work, state)

        def batches() -> Iterator[Any]:
            for images, numbers in iterator:
                yield torch.from_numpy(images), torch.from_numpy(numbers)

        return Delivery(batches(), iterator.get_state)

    def numbers(self, work: Work, state: bytes | None) -> Delivery:
        operations = [grain.transforms.Batch(work.batch_size)]
        iterator = _iterator(_Numbers(work.num_samples), operations, work, state)
        return Delivery(iterator, iterator.get_state)

    def moved(self, state: bytes, work: Work, batches: int) -> bytes:
        found = json.loads(state)
        for worker in found["last_seen_indices"]:
            found["last_seen_indices"][worker] += batches * work.batch_size
        return json.dumps(found).encode()


def _iterator(source: Any, operations: list[Any], work: Work, state: bytes | None) -> Any:
    sampler = grain.samplers.IndexSampler(work.num_samples, shuffle=True, num_epochs=1, seed=SEED)
    iterator = iter(
        grain.DataLoader(
            data_source=source,
            sampler=sampler,
            operations=operations,
            worker_count=work.num_workers,
        )
    )
    if state is not None:
        iterator.set_state(state)
    return iterator


class _Numbers:
    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> int:
        return int(index)

    def __repr__(self) -> str:
        return f"Numbers({self._n})"


class _Files:
    """Paths, each with the number of its sample."""

    def __init__(self, files: list[str]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[str, int]:
        return self._files[index], int(index)

    def __repr__(self) -> str:
        return f"Files({len(self._files)})"


class _CropAndFlip(grain.transforms.RandomMap):
    """Decodes and augments, without torch's threads, because it runs in worker processes."""

    def random_map(
        self, element: tuple[str, int], rng: np.random.Generator
    ) -> tuple[np.ndarray, int]:
        torch.set_num_threads(1)
        file, number = element
        image = read_with_torchvision(file)
        box = _crop(image.shape[-2], image.shape[-1], rng)
        image = F.resized_crop(image, *box, [SIZE, SIZE], antialias=True)
        if rng.random() < 0.5:
            image = F.horizontal_flip(image)
        return v2.Compose(to_float())(image).numpy(), number


def _crop(height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Return top, left, height and width: 1/8 to all of the area, aspects of 3:4 to 4:3."""
    for _ in range(10):
        area = height * width * rng.uniform(0.08, 1.0)
        aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top, left = rng.integers(height - h + 1), rng.integers(width - w + 1)
            return int(top), int(left), h, w
    return 0, 0, height, width

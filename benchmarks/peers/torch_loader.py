"""torch's DataLoader with the two most common ways to decode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from benchmarks.datasets import Numbers
from benchmarks.peers.adapter import SEED, Delivery, Replaying, Work, replayed
from benchmarks.photograph_loaders import (
    Photographs,
    crop_and_flip,
    read_with_pillow,
    read_with_torchvision,
    to_float,
)


def pillow_transform() -> v2.Compose:
    """Return the transform of a Pillow image."""
    return v2.Compose([*crop_and_flip(), v2.ToImage(), *to_float()])


def tensor_transform() -> v2.Compose:
    """Return the transform of a uint8 tensor [3, H, W]."""
    return v2.Compose([*crop_and_flip(), *to_float()])


def pillow_photographs(work: Work) -> Photographs:
    """Return a dataset that Pillow decodes and crops."""
    return Photographs(work.files, work.numbers, read_with_pillow, pillow_transform())


def tensor_photographs(work: Work) -> Photographs:
    """Return a dataset that torchvision decodes and crops."""
    return Photographs(work.files, work.numbers, read_with_torchvision, tensor_transform())


class TorchPillow(Replaying):
    """Decodes with Pillow, like ``ImageFolder``."""

    def photographs(self, work: Work, state: bytes | None) -> Delivery:
        return replayed(_batches(pillow_photographs(work), work), state)

    def numbers(self, work: Work, state: bytes | None) -> Delivery:
        return replayed(_batches(Numbers(work.num_samples), work), state)


class TorchTensors(TorchPillow):
    """Decodes with torchvision."""

    def photographs(self, work: Work, state: bytes | None) -> Delivery:
        return replayed(_batches(tensor_photographs(work), work), state)


def _batches(dataset: Dataset[Any], work: Work) -> Iterator[Any]:
    return iter(
        DataLoader(
            dataset,
            work.batch_size,
            shuffle=True,
            num_workers=work.num_workers,
            generator=torch.Generator().manual_seed(SEED),
        )
    )

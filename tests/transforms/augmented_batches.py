"""Batches of images and labels, and one call of torchvision's for given numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import v2


def batch(n: int, height: int = 7, width: int = 9, num_classes: int = 5) -> tuple[Tensor, Tensor]:
    """Return images float32 [n, 3, height, width] in [0, 1] and labels int64 [n]."""
    generator = torch.Generator().manual_seed(n)
    images = torch.rand(n, 3, height, width, generator=generator)
    return images, torch.randint(num_classes, (n,), generator=generator)


def by_torchvision(
    reference: v2.Transform, images: Tensor, labels: Tensor, **params: Any
) -> tuple[Tensor, Tensor]:
    """Return images and labels as torchvision makes them from these parameters."""
    params |= {"labels": labels, "batch_size": len(labels)}
    return reference.transform(images, params), reference.transform(labels, params)

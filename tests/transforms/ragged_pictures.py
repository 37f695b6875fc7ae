"""Ragged batches, and the result of each image alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.transforms.compose import PipelineDraw
from tests.transforms.pictures import noise, sizes_of

SIZES = [(61, 47), (40, 90), (75, 75), (33, 120), (61, 47), (128, 36)]
"""Heights and widths of the ragged batch; two images have the same size."""


def laid_out(image: Tensor, layout: int) -> Tensor:
    """Return the same pixels: planar, interleaved, in larger memory, or in every second byte."""
    channels, height, width = image.shape
    if layout == 0:
        return image.contiguous()
    if layout == 1:
        return image.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    room = torch.full((height + 3, width + 5, 2 * channels), 99, dtype=image.dtype)
    view = room[2 : 2 + height, 1 : 1 + width, ::2].permute(2, 0, 1)
    if layout == 2:
        view = room.permute(2, 0, 1)[:channels, 2 : 2 + height, 1 : 1 + width]
    view.copy_(image)
    return view


def ragged(sizes: Sequence[tuple[int, int]] = SIZES, seed: int = 0) -> list[Tensor]:
    """Return noise of several sizes and memory layouts, uint8 [3, H, W]."""
    return [laid_out(noise(*size, seed=seed + i), i % 4) for i, size in enumerate(sizes)]


def drawn_for(recipes: T.Compose, images: Sequence[Tensor], seed: int = 42) -> PipelineDraw:
    """Return numbers for a batch, positions 0, 1, ..."""
    return recipes.draw(seed, 0, np.arange(len(images)), sizes_of(images))


def one_by_one(recipes: T.Compose, images: Sequence[Tensor], drawn: PipelineDraw) -> Tensor:
    """Apply each recipe to each image alone."""
    return torch.stack([recipes.apply(image, drawn.sample(i)) for i, image in enumerate(images)])

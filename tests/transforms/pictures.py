"""Photographs as the decoder returns them, and rows of numbers for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.transforms import Recipe
from tests.images import photograph

ODD_SIZES = [(1, 1), (1, 7), (5, 1), (3, 5), (37, 53), (225, 223), (1000, 20), (20, 1000)]
"""Heights and widths that are small, prime, or far from square."""


def decoded(name: str, box: tuple[int, int, int, int] | None = None) -> Tensor:
    """Return a photograph, uint8 [3, H, W]: a view of interleaved memory, strides (1, 3 W, 3).

    ``box`` is left, top, right and bottom of a part of it.
    """
    picture = photograph(name) if box is None else photograph(name).crop(box)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> Tensor:
    """Return random pixels, uint8 [channels, height, width], interleaved in memory."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (height, width, channels), generator=generator)
    return pixels.to(torch.uint8).permute(2, 0, 1)


def rows_for(recipe: Recipe, image: Tensor, n: int, seed: int = 0) -> list[list[float]]:
    """Return n rows of numbers for one image, from NumPy's uniforms."""
    uniforms = np.random.default_rng(seed).random((n, recipe.num_draws))
    rows: list[list[float]] = recipe.draw(uniforms, sizes_of([image] * n)).numbers.tolist()
    return rows


def sizes_of(images: Sequence[Tensor]) -> np.ndarray:
    """Return heights and widths, int64 [n, 2]."""
    return np.array([image.shape[1:] for image in images], dtype=np.int64).reshape(-1, 2)


def as_float(image: Tensor) -> Tensor:
    """Return float32 in [0, 1], same memory layout."""
    return image.to(torch.float32).div_(255)

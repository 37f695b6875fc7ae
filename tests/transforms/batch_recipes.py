"""Recipes that act on batches, and batches for them in every dtype and layout."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader import transforms as T

RECIPES = {
    "horizontal flip": T.RandomHorizontalFlip(),
    "vertical flip": T.RandomVerticalFlip(0.3),
    "grayscale": T.RandomGrayscale(0.5),
    "jitter": T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "jitter of two": T.ColorJitter(contrast=0.4, hue=0.5),
    "no jitter": T.ColorJitter(),
    "rotation": T.RandomRotation(30),
    "smooth rotation": T.RandomRotation((-10, 200), "bilinear", fill=(9, 8, 7)),
    "quarter turns": T.RandomRotation((90, 90)),
    "off-center rotation": T.RandomRotation((0, 360), "bilinear", center=(3, 4), fill=None),
    "affine": T.RandomAffine(30, (0.1, 0.2), (0.5, 1.5), 5),
    "smooth affine": T.RandomAffine(9, None, (0.5, 1.5), (-5, 5, -3, 3), "bilinear", 7, (1, 2)),
    "normalize": T.Normalize([0.1, 0.2, 0.3], [0.2, 0.3, 0.4]),
    "cast": T.ToDtype(torch.float16, scale=True),
    "blur": T.GaussianBlur((5, 3), (0.1, 5.0)),
    "erasing": T.RandomErasing(0.7, value=(5, 6.7, -3)),
    "noise": T.RandomErasing(0.7, value="random"),
    "center crop": T.CenterCrop((20, 21)),
    "center crop, padded": T.CenterCrop((50, 30)),
    "crop": T.RandomCrop((20, 21)),
    "crop, padded": T.RandomCrop((23, 24), padding=(5, 2), fill=9),
    "crop, padded if needed": T.RandomCrop(64, pad_if_needed=True, fill=[1, 2, 3]),
    "crop, reflected": T.RandomCrop(30, padding=6, padding_mode="reflect"),
    "crop, symmetric": T.RandomCrop(26, padding=4, padding_mode="symmetric"),
    "resize": T.Resize(20),
    "resize one side": T.Resize((64, 53)),
    "resize to its size": T.Resize((37, 53)),
    "resize, bicubic": T.Resize(20, interpolation="bicubic"),
    "resize, without antialias": T.Resize((20, 80), antialias=False),
    "resize, nearest": T.Resize((20, 80), interpolation="nearest-exact"),
    "invert": T.RandomInvert(),
    "posterize": T.RandomPosterize(3),
    "solarize": T.RandomSolarize(0.5),
    "autocontrast": T.RandomAutocontrast(),
    "equalize": T.RandomEqualize(),
    "sharpness": T.RandomAdjustSharpness(2.5),
    "grey": T.Grayscale(3),
    "pad": T.Pad((1, 2, 3, 4), fill=(1, 2, 3)),
    "pad, reflected": T.Pad(5, padding_mode="reflect"),
    "photometric": T.RandomPhotometricDistort(),
    "perspective": T.RandomPerspective(0.6, 0.7, fill=(1, 2, 3)),
    "nearest perspective": T.RandomPerspective(1.0, 0.9, "nearest", fill=None),
    "zoom out": T.RandomZoomOut((1, 2, 3), (2, 2), p=1.0),
    "scale": T.ScaleJitter((64, 64), (0.7, 0.7)),
    "applied": T.RandomApply([T.RandomRotation(30), T.RandomHorizontalFlip()], 0.4),
    "ordered": T.RandomOrder(
        [T.RandomRotation(30), T.Compose([T.GaussianBlur(3), T.CenterCrop(30)]), T.RandomInvert()]
    ),
    "chosen": T.RandomChoice(
        [T.RandomRotation(30), T.RandomAffine(9), T.GaussianBlur(3)], [1, 2, 1]
    ),
}
DTYPES = (torch.uint8, torch.float32, torch.float64, torch.float16, torch.bfloat16)


def images(n: int, size: tuple[int, int], dtype: torch.dtype, layout: str) -> Tensor:
    """Return random pixels [n, 3, H, W]; "planes", "interleaved", or "strided" in wider rows."""
    generator = torch.Generator().manual_seed(n)
    height, width = size
    pixels = torch.randint(0, 256, (n, 3, height, width + 3), generator=generator).to(torch.uint8)
    if dtype.is_floating_point:
        pixels = pixels.to(dtype) / 255
    pixels = pixels[..., :width]
    if layout == "planes":
        return pixels.contiguous()
    if layout == "interleaved":
        return pixels.contiguous(memory_format=torch.channels_last)
    return pixels


def numbers_for(recipe: T.Recipe, batch: Tensor, seed: int = 0) -> np.ndarray:
    """Return read-only numbers [n, k], a row for each image, from NumPy's uniforms."""
    n, sizes = len(batch), np.full((len(batch), 2), batch.shape[-2:])
    uniforms = np.random.default_rng(seed).random((n, recipe.num_draws))
    numbers = recipe.draw(uniforms, sizes).numbers
    numbers.setflags(write=False)
    return numbers


def one_by_one(recipe: T.Recipe, batch: Tensor, numbers: np.ndarray) -> Tensor:
    return torch.stack([recipe.apply(*row) for row in zip(batch, numbers.tolist(), strict=True)])

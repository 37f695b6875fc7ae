"""Recipes that act on batches, and batches for them in every dtype and layout."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.transforms import (
    CenterCrop,
    ColorJitter,
    Compose,
    Grayscale,
    Normalize,
    Pad,
    RandomAdjustSharpness,
    RandomApply,
    RandomAutocontrast,
    RandomChoice,
    RandomCrop,
    RandomEqualize,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomInvert,
    RandomOrder,
    RandomPerspective,
    RandomPhotometricDistort,
    RandomPosterize,
    RandomRotation,
    RandomSolarize,
    RandomVerticalFlip,
    RandomZoomOut,
    Recipe,
    Resize,
    ScaleJitter,
    ToDtype,
)
from stateful_gpu_loader.transforms.color.blur import GaussianBlur
from stateful_gpu_loader.transforms.color.erasing import RandomErasing
from stateful_gpu_loader.transforms.geometry.affine import RandomAffine

RECIPES = {
    "horizontal flip": RandomHorizontalFlip(),
    "vertical flip": RandomVerticalFlip(0.3),
    "grayscale": RandomGrayscale(0.5),
    "jitter": ColorJitter(0.4, 0.4, 0.4, 0.1),
    "jitter of two": ColorJitter(contrast=0.4, hue=0.5),
    "no jitter": ColorJitter(),
    "rotation": RandomRotation(30),
    "smooth rotation": RandomRotation((-10, 200), "bilinear", fill=(9, 8, 7)),
    "quarter turns": RandomRotation((90, 90)),
    "off-center rotation": RandomRotation((0, 360), "bilinear", center=(3, 4), fill=None),
    "affine": RandomAffine(30, (0.1, 0.2), (0.5, 1.5), 5),
    "smooth affine": RandomAffine(9, None, (0.5, 1.5), (-5, 5, -3, 3), "bilinear", 7, (1, 2)),
    "normalize": Normalize([0.1, 0.2, 0.3], [0.2, 0.3, 0.4]),
    "cast": ToDtype(torch.float16, scale=True),
    "blur": GaussianBlur((5, 3), (0.1, 5.0)),
    "erasing": RandomErasing(0.7, value=(5, 6.7, -3)),
    "noise": RandomErasing(0.7, value="random"),
    "center crop": CenterCrop((20, 21)),
    "center crop, padded": CenterCrop((50, 30)),
    "crop": RandomCrop((20, 21)),
    "crop, padded": RandomCrop((23, 24), padding=(5, 2), fill=9),
    "crop, padded if needed": RandomCrop(64, pad_if_needed=True, fill=[1, 2, 3]),
    "crop, reflected": RandomCrop(30, padding=6, padding_mode="reflect"),
    "crop, symmetric": RandomCrop(26, padding=4, padding_mode="symmetric"),
    "resize": Resize(20),
    "resize one side": Resize((64, 53)),
    "resize to its size": Resize((37, 53)),
    "resize, bicubic": Resize(20, interpolation="bicubic"),
    "resize, without antialias": Resize((20, 80), antialias=False),
    "resize, nearest": Resize((20, 80), interpolation="nearest-exact"),
    "invert": RandomInvert(),
    "posterize": RandomPosterize(3),
    "solarize": RandomSolarize(0.5),
    "autocontrast": RandomAutocontrast(),
    "equalize": RandomEqualize(),
    "sharpness": RandomAdjustSharpness(2.5),
    "grey": Grayscale(3),
    "pad": Pad((1, 2, 3, 4), fill=(1, 2, 3)),
    "pad, reflected": Pad(5, padding_mode="reflect"),
    "photometric": RandomPhotometricDistort(),
    "perspective": RandomPerspective(0.6, 0.7, fill=(1, 2, 3)),
    "nearest perspective": RandomPerspective(1.0, 0.9, "nearest", fill=None),
    "zoom out": RandomZoomOut((1, 2, 3), (2, 2), p=1.0),
    "scale": ScaleJitter((64, 64), (0.7, 0.7)),
    "applied": RandomApply([RandomRotation(30), RandomHorizontalFlip()], 0.4),
    "ordered": RandomOrder(
        [RandomRotation(30), Compose([GaussianBlur(3), CenterCrop(30)]), RandomInvert()]
    ),
    "chosen": RandomChoice([RandomRotation(30), RandomAffine(9), GaussianBlur(3)], [1, 2, 1]),
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


def numbers_for(recipe: Recipe, batch: Tensor, seed: int = 0) -> np.ndarray:
    """Return read-only numbers [n, k], a row for each image, from NumPy's uniforms."""
    n, sizes = len(batch), np.full((len(batch), 2), batch.shape[-2:])
    uniforms = np.random.default_rng(seed).random((n, recipe.num_draws))
    numbers = recipe.draw(uniforms, sizes).numbers
    numbers.setflags(write=False)
    return numbers


def one_by_one(recipe: Recipe, batch: Tensor, numbers: np.ndarray) -> Tensor:
    return torch.stack([recipe.apply(*row) for row in zip(batch, numbers.tolist(), strict=True)])

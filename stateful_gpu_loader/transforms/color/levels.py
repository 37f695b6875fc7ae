"""Color changes of one image of bytes on a CPU: the bytes of ``adjustments``, in less time.

Between changes, levels are whole numbers in float32. Each change is in place and does not depend on
the CPU or the number of threads: every float32 operation is exact, or rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.transforms.color.hue import checked_channels, turned

Change: TypeAlias = "Callable[[Tensor, float], None]"
"""A function of levels, float32 [..., C, H, W] of 1 or 3 channels, and its factor or shift. The
levels are whole numbers from 0 to 255. It changes them in place to numbers from 0 to below 256."""

_BLOCK = 2**16
"""Pixels of a block that fits into the CPU's cache."""
_ALL_LEVELS = np.arange(256, dtype=np.float32)


def changed(images: Tensor, changes: Sequence[tuple[Change, float]]) -> Tensor:
    """Return new bytes after some changes, each with its factor or shift.

    Args:
        images: uint8 [..., C, H, W]: one image of 1 or 3 channels.

    >>> pixel = torch.tensor([200, 100, 50], dtype=torch.uint8).view(3, 1, 1)
    >>> changed(pixel, [(change_brightness, 0.5), (change_saturation, 0.0)]).flatten()
    tensor([62, 62, 62], dtype=torch.uint8)
    """
    levels = images.to(torch.float32, memory_format=torch.contiguous_format)
    for i, (change, factor) in enumerate(changes):
        if i:
            levels.floor_()
        change(levels, factor)
    return as_bytes(levels)


def as_bytes(levels: Tensor) -> Tensor:
    """Convert levels from 0 to below 256, on any device, to uint8; they are rounded down."""
    if levels.device.type != "cpu":
        return levels.to(torch.uint8)
    # On a CPU this takes a third of the time.
    return torch.from_numpy(levels.numpy().astype(np.uint8))


def change_brightness(levels: Tensor, factor: float) -> None:
    """Multiply by the factor."""
    _clip(levels.mul_(factor), factor)


def change_contrast(levels: Tensor, factor: float) -> None:
    """Blend with the mean grey of the image."""
    grey = grey_of(levels)
    # Float32 is exact up to 2**24.
    rows = grey.sum(-1, dtype=torch.float32 if grey.shape[-1] <= 2**16 else torch.float64)
    mean = rows.sum(dtype=torch.float64).item() / grey.numel()
    addend = _as_float32(mean) * _as_float32(1.0 - factor)
    levels.mul_(factor)
    if _is_rounded_alike(factor, addend):
        levels.add_(addend)
    else:
        _add(levels, addend)
    _clip(levels, factor)


def change_saturation(levels: Tensor, factor: float) -> None:
    """Blend with the grey of each pixel."""
    if checked_channels(levels) == 1:
        return
    weight = _as_float32(1.0 - factor)
    for block in levels.split(max(1, _BLOCK // levels.shape[-1]), dim=-2):
        grey = grey_of(block).double()
        _add(block.mul_(factor), grey.mul_(weight))
        _clip(block, factor)


def change_hue(levels: Tensor, shift: float) -> None:
    """Rotate the hue by a shift in turns."""
    if checked_channels(levels) == 1:
        return
    rgb = turned(levels.mul_(1.0 / 255.0), shift)
    # The factor of torchvision's to_dtype.
    torch.mul(rgb, 255.999, out=levels)


def _split(weight: float) -> tuple[float, float]:
    """Return the first 12 binary places of a float32, and the rest.

    The product of either with a level is exact in float32, so a sum is rounded once, with or
    without fused multiply-add.
    """
    first = round(weight * 2**12) / 2**12
    return first, _as_float32(weight) - first


@np.errstate(over="ignore")
def _as_float32(number: float) -> float:
    return float(np.float32(number))


_RED, _GREEN, _BLUE = 0.2989, _split(0.587), _split(0.114)


def grey_of(levels: Tensor) -> Tensor:
    """Return the grey of levels [..., C, H, W] of 1 or 3 channels: float32 [..., 1, H, W], whole.

    It equals ``floor(fma(blue, 0.114, fma(green, 0.587, red * 0.2989)))`` for all 2**24 colors. The
    small parts must be added first.
    """
    if checked_channels(levels) == 1:
        return levels
    red, green, blue = levels.split(1, dim=-3)
    grey: Tensor = red * _RED
    for place in (1, 0):
        grey.add_(green, alpha=_GREEN[place]).add_(blue, alpha=_BLUE[place])
    return grey.floor_()


def _clip(levels: Tensor, factor: float) -> None:
    if not 0 <= factor <= 1:  # otherwise every level is between two others
        levels.clamp_(0, 255)


def _add(levels: Tensor, addend: Tensor | float) -> None:
    """Add in float64 and round to float32, plane by plane; ``addend`` is float64 or a number."""
    for plane in levels.split(1, dim=-3):
        plane.copy_(plane.double().add_(addend))


@np.errstate(over="ignore", invalid="ignore")
def _is_rounded_alike(factor: float, addend: float) -> bool:
    """Whether float32 sums give the bytes of float64 sums for all 256 levels.

    They nearly always do.
    """
    products = _ALL_LEVELS * np.float32(factor)
    exact = (products.astype(np.float64) + addend).astype(np.float32)
    return bool((np.floor(exact) == np.floor(products + np.float32(addend))).all())

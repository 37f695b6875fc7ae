"""Grey, brightness, contrast and saturation: torchvision's, made independent of threads.

torch computes ``a.add(b, alpha=w)`` with one rounding where it has whole vectors of pixels and
with two at the ends of each thread's share, and sums an image in as many parts as there are
threads. A level can hang on either: of a grey pixel, a * w + a * (1 - w) is just below or at a.
Law 1 asks for one result, and here it is that of the whole vectors; for an image alone and in a
batch, on any device.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

Factor: TypeAlias = "float | Tensor"
"""One for all images, or float64 [n, 1, 1, 1] on their device: one for each image of a batch."""

_RED, _GREEN, _BLUE = 0.2989, 0.587, 0.114
_FIXED_POINT = 2.0**24
_IMAGE = (-3, -2, -1)


def to_grey(images: Tensor) -> Tensor:
    """The grey of each pixel [..., 1, H, W], in the dtype of the images.

    Args:
        images: [..., C, H, W] of 1 or 3 channels, uint8 or float.

    Raises:
        TypeError: they have another number of channels.

    >>> to_grey(torch.tensor([200, 100, 50], dtype=torch.uint8).view(3, 1, 1))
    tensor([[[124]]], dtype=torch.uint8)
    """
    channels = _checked_channels(images)
    if channels == 1:
        return images.clone()
    red, green, blue = _as_float(images).unbind(-3)
    grey = _fused_add(_fused_add(red.mul(_RED), green, _GREEN), blue, _BLUE)
    return grey.to(images.dtype).unsqueeze(-3)


def adjust_brightness(images: Tensor, factor: Factor) -> Tensor:
    """Multiply by the factor, up to the brightest value that the dtype has.

    >>> grey = torch.full((2, 1, 1, 1), 100, dtype=torch.uint8)
    >>> factors = torch.tensor([0.5, 2.0], dtype=torch.float64).view(2, 1, 1, 1)
    >>> adjust_brightness(grey, factors).flatten()
    tensor([ 50, 200], dtype=torch.uint8)
    """
    return _bounded(_times(images, factor), images.dtype)


def adjust_contrast(images: Tensor, factor: Factor) -> Tensor:
    """Blend with the mean grey of each image; arguments and errors are those of :func:`to_grey`.

    The mean is exact: pixels are summed as whole numbers, float ones in units of 2**-24.
    """
    grey = to_grey(images)
    if images.is_floating_point():
        total = grey.double().mul_(_FIXED_POINT).round_().sum(_IMAGE, keepdim=True) / _FIXED_POINT
    else:
        total = grey.sum(_IMAGE, keepdim=True, dtype=torch.int64).double()
    mean = (total / (grey.shape[-2] * grey.shape[-1])).float()
    return _blend(images, mean, factor)


def adjust_saturation(images: Tensor, factor: Factor) -> Tensor:
    """Blend with the grey of each pixel; arguments and errors are those of :func:`to_grey`."""
    if _checked_channels(images) == 1:
        return images
    return _blend(images, to_grey(images), factor)


def _blend(images: Tensor, other: Tensor, factor: Factor) -> Tensor:
    blended = _fused_add(_times(images, factor), other, 1.0 - factor)
    return _bounded(blended, images.dtype)


def _bounded(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """Cut off what the dtype cannot hold, in place, and convert."""
    brightest = 1 if dtype.is_floating_point else torch.iinfo(dtype).max
    return pixels.clamp_(0, brightest).to(dtype)


def _as_float(images: Tensor) -> Tensor:
    """float32, where torch by itself would take the default dtype of the process."""
    return images if images.is_floating_point() else images.to(torch.float32)


def _times(images: Tensor, factor: Factor) -> Tensor:
    """The product, as float: what was float keeps its dtype."""
    if isinstance(factor, Tensor):
        # A number keeps float32 when it meets 16 bits; a tensor of theirs would not.
        factor = factor.to(torch.promote_types(torch.float32, images.dtype))
    if images.is_floating_point():
        return images.mul(factor).to(images.dtype)
    return _as_float(images).mul_(factor)


def _fused_add(pixels: Tensor, other: Tensor, weight: Factor) -> Tensor:
    """pixels + other * weight for float32, rounded once as by a fused multiply-add.

    The product of two float32 is exact in float64, so only the sum is rounded, in effect once.
    """
    if isinstance(weight, Tensor):
        product = other.double() * weight.to(pixels.dtype).double()
    else:
        rounded_weight = torch.tensor(weight, dtype=pixels.dtype, device="cpu").item()
        product = other.double() * rounded_weight
    return pixels.double().add_(product).to(pixels.dtype)


def _checked_channels(images: Tensor) -> int:
    channels = images.shape[-3]
    if channels not in (1, 3):
        raise TypeError(f"an image has {channels} channels. Remedy: pass 1 or 3")
    return channels

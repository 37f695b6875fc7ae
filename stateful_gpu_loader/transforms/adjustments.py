"""Grey, brightness, contrast and saturation: torchvision's, made independent of threads.

torch computes ``a.add(b, alpha=w)`` with one rounding where it has whole vectors of pixels and
with two at the ends of each thread's share, and sums an image in as many parts as there are
threads. A level can hang on either: of a grey pixel, a * w + a * (1 - w) is just below or at a.
Law 1 asks for one result, and here it is that of the whole vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor

_RED, _GREEN, _BLUE = 0.2989, 0.587, 0.114
_FIXED_POINT = 2.0**24


def to_grey(image: Tensor) -> Tensor:
    """The grey of each pixel [1, H, W], in the dtype of the image.

    Args:
        image: [C, H, W] of 1 or 3 channels, uint8 or float.

    Raises:
        TypeError: it has another number of channels.

    >>> to_grey(torch.tensor([200, 100, 50], dtype=torch.uint8).view(3, 1, 1))
    tensor([[[124]]], dtype=torch.uint8)
    """
    channels = _checked_channels(image)
    if channels == 1:
        return image.clone()
    red, green, blue = _as_float(image).unbind(0)
    grey = _fused_add(_fused_add(red.mul(_RED), green, _GREEN), blue, _BLUE)
    return grey.to(image.dtype).unsqueeze(0)


def adjust_brightness(image: Tensor, factor: float) -> Tensor:
    """Multiply by the factor, up to the brightest value that the dtype has."""
    if image.is_floating_point():
        return image.mul(factor).clamp_(0, 1)
    brightest = torch.iinfo(image.dtype).max
    return _as_float(image).mul_(factor).clamp_(0, brightest).to(image.dtype)


def adjust_contrast(image: Tensor, factor: float) -> Tensor:
    """Blend with the mean grey; arguments and errors are those of :func:`to_grey`.

    The mean is exact: pixels are summed as whole numbers, float ones in units of 2**-24.
    """
    grey = to_grey(image)
    if image.is_floating_point():
        total = grey.double().mul_(_FIXED_POINT).round_().sum() / _FIXED_POINT
    else:
        total = grey.sum(dtype=torch.int64).double()
    return _blend(image, (total / grey.numel()).float(), factor)


def adjust_saturation(image: Tensor, factor: float) -> Tensor:
    """Blend with the grey of each pixel; arguments and errors are those of :func:`to_grey`."""
    if _checked_channels(image) == 1:
        return image
    return _blend(image, to_grey(image), factor)


def _blend(image: Tensor, other: Tensor, factor: float) -> Tensor:
    is_float = image.is_floating_point()
    brightest = 1 if is_float else torch.iinfo(image.dtype).max
    blended = _fused_add(_as_float(image).mul(factor), other, 1.0 - factor).clamp_(0, brightest)
    return blended if is_float else blended.to(image.dtype)


def _as_float(image: Tensor) -> Tensor:
    """float32, where torch by itself would take the default dtype of the process."""
    return image if image.is_floating_point() else image.to(torch.float32)


def _fused_add(pixels: Tensor, other: Tensor, weight: float) -> Tensor:
    """pixels + other * weight for float32, rounded once as by a fused multiply-add.

    The product of two float32 is exact in float64, so only the sum is rounded, in effect once.
    ``pixels`` may be overwritten.
    """
    rounded_weight = torch.tensor(weight, dtype=pixels.dtype, device="cpu").item()
    return pixels.double().add_(other.double() * rounded_weight).to(pixels.dtype)


def _checked_channels(image: Tensor) -> int:
    channels = image.shape[0]
    if channels not in (1, 3):
        raise TypeError(f"an image has {channels} channels. Remedy: pass 1 or 3")
    return channels

"""Color changes for an image or a batch: torchvision's, but independent of the thread count.

torch rounds ``a.add(b, alpha=w)`` once in whole vectors of pixels, but twice at the ends of each
thread's share, and sums an image in one part per thread. Either can change a level. Here the result
is always that of whole vectors, on any device. Each image of a batch has its own factor, shift or
threshold. Bytes of one image on a CPU go through
:mod:`~stateful_gpu_loader.transforms.color.levels`.

Source: ``torchvision.transforms.v2.functional``.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from stateful_gpu_loader.transforms.color import levels
from stateful_gpu_loader.transforms.color.hue import Factor, checked_channels

_RED, _GREEN, _BLUE = 0.2989, 0.587, 0.114
_FIXED_POINT = 2.0**24
_IMAGE = (-3, -2, -1)
_EDGE, _MIDDLE = 1.0 / 13.0, 5.0 / 13.0
"""Weights of a 3 x 3 neighbourhood: 5 of 13 for the center, 1 of 13 for each neighbour."""


def to_grey(images: Tensor) -> Tensor:
    """Return the grey of each pixel, [..., 1, H, W], in the images' dtype.

    Args:
        images: [..., C, H, W] of 1 or 3 channels, uint8 or float.

    Raises:
        TypeError: the images have another number of channels.

    >>> to_grey(torch.tensor([200, 100, 50], dtype=torch.uint8).view(3, 1, 1))
    tensor([[[124]]], dtype=torch.uint8)
    """
    channels = checked_channels(images)
    if channels == 1:
        return images.clone()
    if images.dtype is torch.uint8:
        return levels.as_bytes(levels.grey_of(images.to(torch.float32)))
    red, green, blue = _as_float(images).unbind(-3)
    grey = _fused_add(_fused_add(red.mul(_RED), green, _GREEN), blue, _BLUE)
    return grey.to(images.dtype).unsqueeze(-3)


def adjust_brightness(images: Tensor, factor: Factor) -> Tensor:
    """Multiply by the factor, and clip at the dtype's brightest value.

    >>> grey = torch.full((2, 1, 1, 1), 100, dtype=torch.uint8)
    >>> factors = torch.tensor([0.5, 2.0], dtype=torch.float64).view(2, 1, 1, 1)
    >>> adjust_brightness(grey, factors).flatten()
    tensor([ 50, 200], dtype=torch.uint8)
    """
    if is_one_of_bytes(images):
        return levels.changed(images, [(levels.change_brightness, float(factor))])
    return _bounded(_times(images, factor), images.dtype)


def adjust_contrast(images: Tensor, factor: Factor) -> Tensor:
    """Blend with each image's mean grey; arguments and errors as for :func:`to_grey`.

    The mean is exact: pixels are summed as whole numbers, floats in units of 2**-24.
    """
    if is_one_of_bytes(images):
        return levels.changed(images, [(levels.change_contrast, float(factor))])
    grey = to_grey(images)
    if images.is_floating_point():
        total = grey.double().mul_(_FIXED_POINT).round_().sum(_IMAGE, keepdim=True) / _FIXED_POINT
    else:
        total = grey.sum(_IMAGE, keepdim=True, dtype=torch.int64).double()
    mean = (total / (grey.shape[-2] * grey.shape[-1])).float()
    return _blend(images, mean, factor)


def adjust_saturation(images: Tensor, factor: Factor) -> Tensor:
    """Blend with each pixel's grey; arguments and errors as for :func:`to_grey`."""
    if checked_channels(images) == 1:
        return images
    if is_one_of_bytes(images):
        return levels.changed(images, [(levels.change_saturation, float(factor))])
    return _blend(images, to_grey(images), factor)


def is_one_of_bytes(images: Tensor) -> bool:
    """Whether this is one image [..., C, H, W] of bytes on a CPU."""
    return (
        images.dtype is torch.uint8
        and images.device.type == "cpu"
        and math.prod(images.shape[:-3]) == 1
    )


def _blend(images: Tensor, other: Tensor, factor: Factor) -> Tensor:
    blended = _fused_add(_times(images, factor), other, 1.0 - factor)
    return _bounded(blended, images.dtype)


def _bounded(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """Clip to the range of the dtype, in place, and convert."""
    brightest = 1 if dtype.is_floating_point else torch.iinfo(dtype).max
    pixels.clamp_(0, brightest)
    return levels.as_bytes(pixels) if dtype is torch.uint8 else pixels.to(dtype)


def _as_float(images: Tensor) -> Tensor:
    """Convert to float32, not to torch's default dtype."""
    return images if images.is_floating_point() else images.to(torch.float32)


def _times(images: Tensor, factor: Factor) -> Tensor:
    """Return the product as float; float images keep their dtype."""
    if isinstance(factor, Tensor):
        # A Python number would keep float32 with 16-bit images; a 16-bit tensor would not.
        factor = factor.to(torch.promote_types(torch.float32, images.dtype))
    if images.is_floating_point():
        return images.mul(factor).to(images.dtype)
    return _as_float(images).mul_(factor)


def _fused_add(pixels: Tensor, other: Tensor, weight: Factor) -> Tensor:
    """Return pixels + other * weight for float32, rounded once like a fused multiply-add.

    The product of two float32 is exact in float64.
    """
    if isinstance(weight, Tensor):
        product = other.double() * weight.to(pixels.dtype).double()
    else:
        rounded_weight = torch.tensor(weight, dtype=pixels.dtype, device="cpu").item()
        product = other.double() * rounded_weight
    return pixels.double().add_(product).to(pixels.dtype)


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
        thresholds: float64 [n, 1, 1, 1] in [0, 1], with 1 for the brightest value; on the device
            of the images.

    >>> image = torch.tensor([100, 200], dtype=torch.uint8).view(1, 1, 1, 2)
    >>> solarize(image, torch.full((1, 1, 1, 1), 0.5, dtype=torch.float64)).flatten()
    tensor([100,  55], dtype=torch.uint8)
    """
    if images.is_floating_point():
        return torch.where(images >= thresholds.to(images.dtype), 1.0 - images, images)
    limits = (255.0 * thresholds).to(torch.float32).ceil_().to(torch.uint8)
    return torch.where(images >= limits, images.bitwise_not(), images)


def invert(images: Tensor) -> Tensor:
    """Replace each value by its difference from the brightest value.

    Args:
        images: [..., C, H, W], uint8 or float in [0, 1].

    >>> invert(torch.tensor([0, 200], dtype=torch.uint8).view(1, 1, 2)).flatten()
    tensor([255,  55], dtype=torch.uint8)
    """
    return 1.0 - images if images.is_floating_point() else images.bitwise_not()


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel from 0 to the dtype's brightest value.

    Args:
        images: [n, C, H, W] of 1 or 3 channels, uint8 or float in [0, 1].

    Raises:
        TypeError: the images have another number of channels.

    >>> autocontrast(torch.tensor([100, 111], dtype=torch.uint8).view(1, 1, 1, 2)).flatten()
    tensor([  0, 255], dtype=torch.uint8)
    """
    _check_batch_channels(images)
    brightest = 1.0 if images.is_floating_point() else 255.0
    pixels = images if images.is_floating_point() else images.to(torch.float32)
    darkest = pixels.amin(dim=(-2, -1), keepdim=True)
    span = pixels.amax(dim=(-2, -1), keepdim=True).sub_(darkest)
    is_flat = span == 0
    span = span.mul_(1.0 / brightest).masked_fill_(is_flat, 1.0)
    stretched = pixels.sub(darkest.masked_fill_(is_flat, 0.0)).div_(span)
    return _bounded(stretched, images.dtype)


def equalize(images: Tensor) -> Tensor:
    """Make each channel's histogram as even as possible.

    Args:
        images: [n, C, H, W], uint8 or float in [0, 1].

    >>> image = torch.tensor([10] * 256 + [20] * 256, dtype=torch.uint8).view(1, 1, 1, 512)
    >>> equalize(image).unique()
    tensor([  0, 255], dtype=torch.uint8)
    """
    from torchvision.transforms.v2 import functional as F

    equalized: Tensor = F.equalize_image(images)
    return equalized


def adjust_sharpness(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image with a blurred copy: 0 is blurred, 1 the image, more is sharper.

    The outermost pixels do not change, nor does an image less than 3 pixels high or wide.
    torchvision uses a convolution, whose order of additions depends on the library. Here the order
    is fixed, and rounding is that of torch's vectors on CPUs with fused multiply-add.

    Args:
        images: [n, C, H, W] of 1 or 3 channels, uint8 or float in [0, 1].
        factors: float64 [n, 1, 1, 1], not negative, on the device of the images.

    Raises:
        TypeError: the images have another number of channels.

    >>> image = torch.zeros(1, 1, 3, 3, dtype=torch.uint8)
    >>> image[..., 1, 1] = 130
    >>> adjust_sharpness(image, torch.zeros(1, 1, 1, 1, dtype=torch.float64)).flatten()
    tensor([ 0,  0,  0,  0, 50,  0,  0,  0,  0], dtype=torch.uint8)
    """
    _check_batch_channels(images)
    if min(images.shape[2:]) < 3:
        return images
    is_float = images.is_floating_point()
    pixels = images.to(images.dtype if is_float else torch.float32, copy=True)
    blurred = _blurred(pixels) if is_float else _blurred_levels(pixels)
    inner = pixels[..., 1:-1, 1:-1]
    weights = (1.0 - factors).to(pixels.dtype).double()
    # The product is exact in float64, so the sum is rounded once.
    inner.copy_(blurred.sub_(inner).double().mul_(weights).add_(inner))
    return _bounded(pixels, images.dtype)


def _blurred_levels(pixels: Tensor) -> Tensor:
    """Blur whole numbers, whose sums are exact."""
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


def _check_batch_channels(images: Tensor) -> None:
    if images.shape[1] not in (1, 3):
        raise TypeError(f"images have {images.shape[1]} channels. Remedy: pass 1 or 3")

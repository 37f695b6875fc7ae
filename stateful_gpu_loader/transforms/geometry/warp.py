"""Affine warps of a batch, each image by its own matrix: torchvision's, in one call.

torchvision places the points of the result by a matrix product, which rounds as the BLAS at hand
does, and on a process that allows TF32 or bfloat16 products far more coarsely. Here each
coordinate is ``(x * a + y * b) + c``, every step rounded by itself: the same on every device, and
equal to torchvision wherever its product is rounded so.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from stateful_gpu_loader.transforms.batches.device import constant, on_device
from stateful_gpu_loader.transforms.recipe import FloatArray

_RADIANS = math.pi / 180.0


def inverse_affine_matrices(
    size: tuple[int, int],
    *,
    angles: npt.ArrayLike = 0.0,
    translations: npt.ArrayLike = (0.0, 0.0),
    scales: npt.ArrayLike = 1.0,
    shears: npt.ArrayLike = (0.0, 0.0),
    center: tuple[float, float] | None = None,
) -> FloatArray:
    """Matrices that take a pixel of the result to its place in the image, as ``affine`` has them.

    Source: ``torchvision.transforms.functional._get_inverse_affine_matrix``, number by number.
    Its angles are clockwise; ``rotate`` passes them negated.

    Args:
        size: (height, width) of the images in pixels.
        angles: degrees, [n] or one for all.
        translations: x and y in pixels, [n, 2] or [2].
        scales: [n] or one for all, positive.
        shears: along x and y in degrees, [n, 2] or [2].
        center: (x, y) in pixels from the upper left corner; None for the image's center.

    Returns:
        float64 [n, 6]: a, b, c, d, e, f of x' = a x + b y + c, y' = d x + e y + f, in pixels from
        the image's center.

    >>> inverse_affine_matrices((4, 4), translations=[(1, 0), (0, 2)]).round(1)[1]
    array([ 1.,  0.,  0., -0.,  1., -2.])
    """
    height, width = size
    center_x, center_y = (0.0, 0.0)
    if center is not None:
        center_x, center_y = center[0] - width * 0.5, center[1] - height * 0.5
    angles, scales, shift_x, shift_y, shear_x, shear_y = np.broadcast_arrays(
        np.atleast_1d(np.asarray(angles, dtype=np.float64)),
        np.asarray(scales, dtype=np.float64),
        *np.moveaxis(np.asarray(translations, dtype=np.float64), -1, 0),
        *np.moveaxis(np.asarray(shears, dtype=np.float64), -1, 0),
    )
    rotations, lean_x, lean_y = angles * _RADIANS, shear_x * _RADIANS, shear_y * _RADIANS
    cosines, tangents = _each(math.cos, lean_y), _each(math.tan, lean_x)
    a = _each(math.cos, rotations - lean_y) / cosines
    b = -(a * tangents + _each(math.sin, rotations))
    c = _each(math.sin, rotations - lean_y) / cosines
    d = _each(math.cos, rotations) - c * tangents
    xx, xy, yx, yy = d / scales, -b / scales, -c / scales, a / scales
    moved_x, moved_y = center_x + shift_x, center_y + shift_y
    x = center_x - xx * moved_x - xy * moved_y
    y = center_y - yx * moved_x - yy * moved_y
    return np.stack((xx, xy, x, yx, yy, y), axis=-1)


def warp(
    images: Tensor,
    matrices: FloatArray,
    interpolation: str,
    fill: float | tuple[float, ...] | None,
    size: tuple[int, int] | None = None,
) -> Tensor:
    """Warp each image by its own matrix, as ``torchvision.transforms.v2.functional.affine``.

    float16 and bfloat16 images are computed in float32 and rounded once: a grid of theirs misses
    pixels, and torch's samples of it on the CPU read beside the image (2.15).

    Args:
        images: [n, C, H, W], uint8 or float.
        matrices: float64 [n, 6] from :func:`inverse_affine_matrices`.
        interpolation: "nearest" or "bilinear".
        fill: what lies outside: one number, one for each channel, or None for zeros into which
            the border is blended.
        size: (height, width) of the result around the same center; None for the images' own.

    Raises:
        ValueError: there are neither one nor C numbers to fill with.

    >>> image = torch.arange(3, dtype=torch.uint8).view(1, 1, 1, 3)
    >>> warp(image, inverse_affine_matrices((1, 3), translations=(1, 0)), "nearest", 9.0)
    tensor([[[[9, 0, 1]]]], dtype=torch.uint8)
    """
    channels, height, width = images.shape[1:]
    if isinstance(fill, tuple) and len(fill) not in (1, channels):
        raise ValueError(
            f"{fill = } has {len(fill)} numbers, and the images have {channels} channels. "
            "Remedy: pass one number, or one for each channel"
        )
    if images.numel() == 0:
        return images.new_empty(*images.shape[:2], *(size or (height, width)))
    dtype = torch.float64 if images.dtype is torch.float64 else torch.float32
    grid = _grid(matrices, (height, width), size or (height, width), dtype, images.device)
    pixels = images.to(dtype)
    if fill is None:
        sampled = _sample(pixels, grid, interpolation)
    else:
        # Sampled along, a channel of ones tells how much of each pixel is image.
        inside = pixels.new_ones(len(pixels), 1, height, width)
        sampled = _sample(torch.cat((pixels, inside), dim=1), grid, interpolation)
        sampled, share = sampled[:, :channels], sampled[:, channels:]
        numbers = fill if isinstance(fill, tuple) else (fill,)
        filling = constant(numbers, dtype, images.device).view(1, -1, 1, 1)
        if interpolation == "nearest":
            sampled = torch.where(share < 0.5, filling, sampled)
        else:
            sampled = sampled.sub_(filling).mul_(share).add_(filling)
    return (sampled if images.is_floating_point() else sampled.round_()).to(images.dtype)


def _grid(
    matrices: FloatArray,
    size: tuple[int, int],
    size_after: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Where each pixel of the result comes from, [n, h, w, 2], -1 and 1 being the outer edges."""
    height, width = size
    exact = np.float64 if dtype is torch.float64 else np.float32
    halves = np.array([0.5 * width, 0.5 * height], dtype=exact)
    # [n, 3, 2]: for x, for y, and alone; as many divisions as torchvision has, in its dtype.
    scaled = matrices.astype(exact).reshape(-1, 2, 3).transpose(0, 2, 1) / halves
    for_x, for_y, alone = on_device(scaled, device)[:, :, None, None].unbind(1)
    x = _from_center(size_after[1], dtype, device).view(1, 1, -1, 1)
    y = _from_center(size_after[0], dtype, device).view(1, -1, 1, 1)
    return (x * for_x + y * for_y).add_(alone)


def _from_center(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.arange(length, dtype=dtype, device=device).sub_((length - 1) * 0.5)


def _sample(pixels: Tensor, grid: Tensor, interpolation: str) -> Tensor:
    return grid_sample(pixels, grid, interpolation, padding_mode="zeros", align_corners=False)


def _each(function: Callable[[float], float], values: FloatArray) -> FloatArray:
    """One by one by the C library, as torchvision: NumPy's last bit depends on the CPU."""
    return np.array([function(value) for value in values.tolist()])

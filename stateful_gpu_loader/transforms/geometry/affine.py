"""RandomAffine and RandomRotation: rotate, shift, scale and shear the image at random.

torchvision computes the coordinates by a matrix product, whose rounding depends on the BLAS and on
TF32. Here each coordinate is ``(x * a + y * b) + c``, with every step rounded: the same on every
device, and equal to torchvision's where its product is rounded like this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import (
    Fill,
    Interpolation,
    as_center,
    as_fill,
    as_interpolation,
    as_range,
    as_symmetric_range,
)
from stateful_gpu_loader.transforms.batches.device import apply_by_group, constant, on_device
from stateful_gpu_loader.transforms.motion import inverted
from stateful_gpu_loader.transforms.recipe import BatchwiseRecipe, Draw, FloatArray, between


class RandomAffine(BatchwiseRecipe):
    """Rotate, shift, scale and shear, as ``torchvision.transforms.v2.RandomAffine``.

    Numbers: the angle in degrees, clockwise; the shift to the right and down in whole pixels; the
    scale; the shear along x and along y in degrees.

    Args:
        degrees: lowest and highest angle, or one number d for (-d, d).
        translate: largest shift (x, y), as fractions of width and height; None for no shift.
        scale: lowest and highest scale; None for 1.
        shear: lowest and highest shear along x in degrees, and, with four numbers, along y; or one
            number d for (-d, d) along x; None for no shear.
        interpolation: "nearest" or "bilinear".
        fill: value outside the image: one number, or one per channel. None gives zeros, into
            which the border is blended.
        center: (x, y) in pixels from the upper left corner; None for the image's center.

    >>> recipe = RandomAffine(30, translate=(0.1, 0.1), scale=(0.5, 1.5))
    >>> recipe.draw(np.full((1, 6), 0.75), np.array([[375, 500]])).numbers
    array([[15.  , 25.  , 19.  ,  1.25,  0.  ,  0.  ]])
    """

    num_draws = 6
    number_names = ("angle", "translate_x", "translate_y", "scale", "shear_x", "shear_y")

    def __init__(
        self,
        degrees: float | Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: float | Sequence[float] | None = None,
        interpolation: Interpolation = "nearest",
        fill: Fill = 0,
        center: Sequence[float] | None = None,
    ) -> None:
        self.degrees = as_symmetric_range("degrees", degrees)
        self.translate = _as_fractions(translate)
        self.scale = None if scale is None else as_range("scale", scale)
        self.shear = _as_shear(shear)
        self.interpolation = as_interpolation(interpolation, ("nearest", "bilinear"))
        self.fill = as_fill(fill)
        self.center = as_center(center)
        if self.scale is not None and self.scale[0] <= 0:
            raise ValueError(f"{scale = } must be positive")

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        # Column by column: angle, shift x, shift y, scale, shear x, shear y.
        lowest, highest = np.zeros((2, len(sizes), 6))
        lowest[:, 0], highest[:, 0] = self.degrees
        highest[:, 1:3] = sizes[:, ::-1] * np.array(self.translate or (0.0, 0.0))
        lowest[:, 1:3] = -highest[:, 1:3]
        lowest[:, 3], highest[:, 3] = self.scale or (1.0, 1.0)
        shears = np.zeros(4)
        shears[: len(self.shear or ())] = self.shear or ()
        lowest[:, 4:], highest[:, 4:] = shears[0::2], shears[1::2]
        numbers = lowest + uniforms * (highest - lowest)
        # Half to even, like Python's round in torchvision.
        numbers[:, 1:3] = np.rint(numbers[:, 1:3])
        return Draw(numbers, sizes)

    def motion(self, numbers: IndexArray | FloatArray, sizes: IndexArray) -> FloatArray:
        matrices = [
            self._matrices(numbers[i : i + 1], (height, width))
            for i, (height, width) in enumerate(sizes.tolist())
        ]
        return inverted(np.concatenate(matrices), sizes, sizes)

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        height, width = images.shape[-2:]
        matrices = self._matrices(numbers, (height, width))
        return warp(images, matrices, self.interpolation, self.fill)

    def _matrices(self, numbers: IndexArray | FloatArray, size: tuple[int, int]) -> FloatArray:
        return inverse_affine_matrices(
            size,
            angles=numbers[:, 0],
            translations=numbers[:, 1:3],
            scales=numbers[:, 3],
            shears=numbers[:, 4:],
            center=self.center,
        )


def _as_fractions(translate: Any) -> tuple[float, float] | None:
    if translate is None:
        return None
    if not isinstance(translate, Sequence) or isinstance(translate, str) or len(translate) != 2:
        raise TypeError(f"{translate = } must be a sequence of two fractions, (x, y)")
    x, y = float(translate[0]), float(translate[1])
    if not (0.0 <= x <= 1.0 and 0.0 <= y <= 1.0):
        raise ValueError(f"{translate = } must lie within 0 and 1")
    return x, y


def _as_shear(shear: Any) -> tuple[float, ...] | None:
    if shear is None:
        return None
    if isinstance(shear, Sequence) and not isinstance(shear, str) and len(shear) == 4:
        return (*as_range("shear", shear[:2]), *as_range("shear", shear[2:]))
    return as_symmetric_range("shear", shear)


class RandomRotation(BatchwiseRecipe):
    """Rotate the image counter-clockwise, as ``torchvision.transforms.v2.RandomRotation``.

    Numbers: the angle in degrees.

    Args:
        degrees: lowest and highest angle, or one number d for (-d, d).
        interpolation: "nearest" or "bilinear".
        expand: whether the result is large enough for the whole rotated image.
        center: (x, y) in pixels from the upper left corner; None for the image's center.
        fill: value outside the image: one number, or one per channel. None gives zeros, into
            which the border is blended.

    >>> RandomRotation(30).draw(np.array([[0.75]]), np.array([[375, 500]])).numbers
    array([[15.]])
    """

    num_draws = 1
    number_names = ("angle",)

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: Interpolation = "nearest",
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: Fill = 0,
    ) -> None:
        self.degrees = as_symmetric_range("degrees", degrees)
        self.interpolation = as_interpolation(interpolation, ("nearest", "bilinear"))
        self.expand = bool(expand)
        self.center = as_center(center)
        self.fill = as_fill(fill)

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        angles = between(self.degrees, uniforms)
        return Draw(angles, self._sizes_after(angles, sizes) if self.expand else sizes)

    def motion(self, numbers: IndexArray | FloatArray, sizes: IndexArray) -> FloatArray:
        matrices = [
            inverse_affine_matrices((height, width), angles=-angle % 360.0, center=self.center)
            for (height, width), angle in zip(sizes.tolist(), numbers[:, 0].tolist(), strict=True)
        ]
        angles = np.asarray(numbers, dtype=np.float64)
        after = self._sizes_after(angles, sizes) if self.expand else sizes
        return inverted(np.concatenate(matrices), sizes, after)

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        height, width = images.shape[-2:]
        angles = np.asarray(numbers[:, 0], dtype=np.float64) % 360.0
        turns = self._quarter_turns(angles, is_square=height == width)

        def turn(chosen: Tensor, _: Tensor, rows: IndexArray) -> Tensor:
            return torch.rot90(chosen, int(turns[rows[0]]), dims=(-2, -1))

        def warp_freely(chosen: Tensor, _: Tensor, rows: IndexArray) -> Tensor:
            size = self._one_size_after(angles[rows], (height, width)) if self.expand else None
            matrices = inverse_affine_matrices(
                (height, width), angles=-angles[rows], center=self.center
            )
            return warp(chosen, matrices, self.interpolation, self.fill, size)

        return apply_by_group(images, turns, {-1: warp_freely, 0: turn, 1: turn, 2: turn, 3: turn})

    def _quarter_turns(self, angles: FloatArray, is_square: bool) -> IndexArray:
        """Return the quarter turns that equal each angle, as in torchvision; -1 for none."""
        turns = np.where(angles % 90.0 == 0.0, angles // 90.0, -1.0).astype(np.int64)
        if self.center is not None:
            turns[:] = -1
        elif not (self.expand or is_square):
            turns[turns % 2 == 1] = -1
        return turns

    def _one_size_after(self, angles: FloatArray, size: tuple[int, int]) -> tuple[int, int]:
        sizes = self._sizes_after(angles[:, None], np.full((len(angles), 2), size))
        different = np.flatnonzero((sizes != sizes[0]).any(axis=1))
        if len(different):
            raise ValueError(
                f"{self.fingerprint()} makes images of {sizes[0].tolist()} and "
                f"{sizes[different[0]].tolist()} pixels (height, width) in one batch. "
                "Remedy: pass expand=False, or apply it image by image"
            )
        height, width = sizes[0].tolist()
        return height, width

    def _sizes_after(self, angles: FloatArray, sizes: IndexArray) -> IndexArray:
        """Return torchvision's sizes, computed on the meta device."""
        from torchvision.transforms.v2 import functional as F

        rows = zip(angles[:, 0].tolist(), sizes.tolist(), strict=True)
        shapes = [
            F.rotate_image(
                torch.empty(1, *size, device="meta"),
                angle,
                expand=True,
                center=None if self.center is None else list(self.center),
            ).shape[1:]
            for angle, size in rows
        ]
        return np.array(shapes, dtype=np.int64).reshape(-1, 2)


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
    """Return matrices that map a pixel of the result to its place in the image, as ``affine`` does.

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

    float16 and bfloat16 images are computed in float32 and rounded once, because a 16-bit grid
    misses pixels, and reads outside the image on the CPU (torch 2.15).

    Args:
        images: [n, C, H, W], uint8 or float.
        matrices: float64 [n, 6] from :func:`inverse_affine_matrices`.
        interpolation: "nearest" or "bilinear".
        fill: value outside the image: one number, or one per channel. None gives zeros, into
            which the border is blended.
        size: (height, width) of the result around the same center; None for the images' own.

    Raises:
        ValueError: ``fill`` has neither one nor C numbers.

    >>> image = torch.arange(3, dtype=torch.uint8).view(1, 1, 1, 3)
    >>> warp(image, inverse_affine_matrices((1, 3), translations=(1, 0)), "nearest", 9.0)
    tensor([[[[9, 0, 1]]]], dtype=torch.uint8)
    """
    height, width = images.shape[2:]
    if images.numel() == 0:
        return images.new_empty(*images.shape[:2], *(size or (height, width)))
    dtype = torch.float64 if images.dtype is torch.float64 else torch.float32
    grid = _grid(matrices, (height, width), size or (height, width), dtype, images.device)
    return sample(images, grid, interpolation, fill)


def sample(
    images: Tensor, grid: Tensor, interpolation: str, fill: float | tuple[float, ...] | None
) -> Tensor:
    """Sample the pixels of a grid, as torchvision does.

    Args:
        images: [n, C, H, W], uint8 or float.
        grid: source of each pixel, [n, h, w, 2] of x and y, with -1 and 1 for the outer edges;
            float64 for float64 images, else float32.
        interpolation, fill: as for :func:`warp`.

    Raises:
        ValueError: ``fill`` has neither one nor C numbers.
    """
    channels, height, width = images.shape[1:]
    if isinstance(fill, tuple) and len(fill) not in (1, channels):
        raise ValueError(
            f"{fill = } has {len(fill)} numbers, but the images have {channels} channels. "
            "Remedy: pass one number, or one for each channel"
        )
    dtype, pixels = grid.dtype, images.to(grid.dtype)
    if fill is None:
        sampled = _sample(pixels, grid, interpolation)
    else:
        # A channel of ones gives the image's share in each pixel.
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
    """Return the source of each pixel, [n, h, w, 2], with -1 and 1 for the outer edges."""
    height, width = size
    exact = np.float64 if dtype is torch.float64 else np.float32
    halves = np.array([0.5 * width, 0.5 * height], dtype=exact)
    # [n, 3, 2]: for x, for y, and constant; the same divisions as in torchvision, in its dtype.
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
    """Call the C library per value, as torchvision does; NumPy's last bit depends on the CPU."""
    return np.array([function(value) for value in values.tolist()])

"""RandomAffine: turn, shift, scale and shear the image at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

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
from stateful_gpu_loader.transforms.geometry.warp import inverse_affine_matrices, warp
from stateful_gpu_loader.transforms.motion import inverted
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, Recipe


class RandomAffine(Recipe):
    """Turn, shift, scale and shear the image, as ``torchvision.transforms.v2.RandomAffine``.

    Numbers: the angle in degrees, clockwise; the shift to the right and down in whole pixels; the
    scale; the shear along x and along y in degrees.

    Args:
        degrees: lowest and highest angle, or one number d for (-d, d).
        translate: the largest shift (x, y), as fractions of width and height; None for none.
        scale: lowest and highest scale; None for 1.
        shear: lowest and highest shear along x in degrees, then, if there are four numbers, along
            y; or one number d for (-d, d) along x; None for none.
        interpolation: "nearest" or "bilinear".
        fill: what lies outside the image: one number, one for each channel, or None for zeros
            into which the border is blended.
        center: (x, y) in pixels from the upper left corner; None for the image's center.

    Raises:
        TypeError, ValueError: an argument is of another kind or outside its range.

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
        # Half to even, as Python's round, which torchvision calls here.
        numbers[:, 1:3] = np.rint(numbers[:, 1:3])
        return Draw(numbers, sizes)

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        return self._warped(image.unsqueeze(0), np.array([numbers])).squeeze(0)

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        return self._warped(images, numbers)

    def motion(self, numbers: IndexArray | FloatArray, sizes: IndexArray) -> FloatArray:
        matrices = [
            self._matrices(numbers[i : i + 1], (height, width))
            for i, (height, width) in enumerate(sizes.tolist())
        ]
        return inverted(np.concatenate(matrices), sizes, sizes)

    def _warped(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
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

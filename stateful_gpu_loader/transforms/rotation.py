"""RandomRotation: turn the image by a random angle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import (
    Fill,
    Interpolation,
    as_fill,
    as_interpolation,
    as_range,
)
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, Recipe


class RandomRotation(Recipe):
    """Turn the image counter-clockwise, as ``torchvision.transforms.v2.RandomRotation``.

    Numbers: the angle in degrees.

    Args:
        degrees: lowest and highest angle, or one number d for (-d, d).
        interpolation: "nearest" or "bilinear".
        expand: whether the result is large enough to hold the whole turned image.
        center: (x, y) in pixels from the upper left corner; None for the image's center.
        fill: what lies outside the image: one number, one for each channel, or None for zeros
            into which the border is blended.

    Raises:
        TypeError, ValueError: an argument is of another kind or outside its range.

    >>> RandomRotation(30).draw(np.array([[0.75]]), np.array([[375, 500]])).numbers
    array([[15.]])
    """

    num_draws = 1

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: Interpolation = "nearest",
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: Fill = 0,
    ) -> None:
        if isinstance(degrees, (int, float)) and degrees < 0:
            raise ValueError(f"{degrees = } must not be negative. Remedy: pass (lowest, highest)")
        both = (-degrees, degrees) if isinstance(degrees, (int, float)) else degrees
        self.degrees = as_range("degrees", both)
        self.interpolation = as_interpolation(interpolation, ("nearest", "bilinear"))
        self.expand = bool(expand)
        self.center = _canonical_center(center)
        self.fill = as_fill(fill)

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        lowest, highest = self.degrees
        angles = lowest + uniforms * (highest - lowest)
        return Draw(angles, self._sizes_after(angles, sizes) if self.expand else sizes)

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        rotated: Tensor = F.rotate_image(
            image,
            numbers[0],
            interpolation=InterpolationMode(self.interpolation),
            expand=self.expand,
            center=None if self.center is None else list(self.center),
            fill=list(self.fill) if isinstance(self.fill, tuple) else self.fill,
        )
        return rotated

    def _sizes_after(self, angles: FloatArray, sizes: IndexArray) -> IndexArray:
        """Ask torchvision, by images without memory: its rounding is nobody else's."""
        rows = zip(angles[:, 0].tolist(), sizes.tolist(), strict=True)
        shapes = [
            self.apply(torch.empty(1, *size, device="meta"), [angle]).shape[1:]
            for angle, size in rows
        ]
        return np.array(shapes, dtype=np.int64).reshape(-1, 2)


def _canonical_center(center: Sequence[float] | None) -> tuple[float, float] | None:
    if center is None:
        return None
    if not isinstance(center, Sequence):
        raise TypeError(f"{center = } must be a sequence of two numbers, (x, y)")
    if len(center) != 2:
        raise ValueError(f"{center = } must have two numbers, (x, y)")
    return float(center[0]), float(center[1])

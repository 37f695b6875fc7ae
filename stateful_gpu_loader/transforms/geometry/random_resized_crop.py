"""RandomResizedCrop: a box of random area and aspect ratio, resized to one size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import (
    Interpolation,
    as_antialias,
    as_interpolation,
    as_range,
    as_size,
)
from stateful_gpu_loader.transforms.batches.placement import Placement
from stateful_gpu_loader.transforms.geometry.resize import INTERPOLATIONS, resized_crop
from stateful_gpu_loader.transforms.motion import scaled_and_shifted
from stateful_gpu_loader.transforms.random_boxes import NUM_ATTEMPTS, attempted_sides, log_range
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, Recipe


class RandomResizedCrop(Recipe):
    """Cut a random box out and resize it, as ``torchvision.transforms.v2.RandomResizedCrop``.

    Numbers: top, left, height, width of the box in pixels. Up to ten boxes of uniform area and
    log-uniform aspect ratio are tried; if none fits into the image, the box is the largest
    central one within the ratios.

    Args:
        size: (height, width) of the result in pixels, or an int for a square.
        scale: lowest and highest area of the box, as a fraction of the image's.
        ratio: lowest and highest width / height of the box.
        interpolation: "nearest", "nearest-exact", "bilinear" or "bicubic".
        antialias: whether bilinear and bicubic average over the pixels they skip.

    Raises:
        TypeError, ValueError: an argument is of another kind or outside its range.

    >>> RandomResizedCrop(224).draw(np.full((1, 22), 0.5), np.array([[375, 500]])).numbers
    array([[ 29,  91, 318, 318]])
    """

    num_draws = 2 + 2 * NUM_ATTEMPTS
    number_names = ("top", "left", "height", "width")

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0),
        interpolation: Interpolation = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        self.size = as_size(size)
        self.scale = as_range("scale", scale)
        self.ratio = as_range("ratio", ratio)
        self.interpolation = as_interpolation(interpolation, INTERPOLATIONS)
        self.antialias = as_antialias(antialias)
        if self.scale[0] < 0:
            raise ValueError(f"{scale = } must not be negative")
        if self.ratio[0] <= 0:
            raise ValueError(f"{ratio = } must be positive")
        self._log_ratio = log_range(self.ratio)

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        widths, heights = attempted_sides(uniforms[:, 2:], sizes, self.scale, self._log_ratio)
        fits = (widths > 0) & (widths <= sizes[:, 1:]) & (heights > 0) & (heights <= sizes[:, :1])
        boxes = self._central(sizes)
        rows = np.flatnonzero(fits.any(axis=1))
        first = fits[rows].argmax(axis=1)
        boxes[rows, 0] = heights[rows, first]
        boxes[rows, 1] = widths[rows, first]
        room = sizes - boxes
        corners = room // 2
        corners[rows] = np.floor(uniforms[rows, :2] * (room[rows] + 1))
        return Draw(np.concatenate((corners, boxes), axis=1), np.full_like(sizes, self.size))

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        top, left, height, width = numbers
        box = int(top), int(left), int(height), int(width)
        return resized_crop(image, box, self.size, self.interpolation, self.antialias)

    def place(self, placement: Placement, numbers: IndexArray | FloatArray) -> Placement | None:
        if self.interpolation != "bilinear":
            return None
        boxes = numbers.astype(np.int64)
        sizes = np.full_like(boxes[:, :2], self.size)
        return placement.crop(boxes).resize(sizes, self.antialias)

    def motion(self, numbers: IndexArray | FloatArray, sizes: IndexArray) -> FloatArray:
        scales = np.array(self.size[::-1]) / numbers[:, :1:-1]
        return scaled_and_shifted(scales, -numbers[:, 1::-1] * scales)

    def _central(self, sizes: IndexArray) -> IndexArray:
        """Height and width of the box where no attempt fits: int64 [n, 2]."""
        height, width = sizes[:, 0], sizes[:, 1]
        narrowest, widest = self.ratio
        ratios = width / height
        heights = np.where(ratios < narrowest, np.rint(width / narrowest), height)
        widths = np.where(ratios > widest, np.rint(height * widest), width)
        # torchvision would fail where no whole pixel has the ratio; one pixel is the nearest.
        boxes: IndexArray = np.maximum(np.stack((heights, widths), axis=1), 1).astype(np.int64)
        return boxes

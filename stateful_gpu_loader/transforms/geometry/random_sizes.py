"""RandomResize, RandomShortestSize and ScaleJitter: resize an image to a random size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import (
    Interpolation,
    as_antialias,
    as_interpolation,
    as_range,
    as_side,
)
from stateful_gpu_loader.transforms.geometry.resize import INTERPOLATIONS, Resize
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray


class _RandomSize(Resize):
    """Base of recipes that draw the numbers of Resize: height and width of the result."""

    num_draws = 1

    def _set_how(self, interpolation: Interpolation, antialias: bool | None) -> None:
        self.interpolation = as_interpolation(interpolation, INTERPOLATIONS)
        self.antialias = as_antialias(antialias)

    def _scaled(self, sizes: IndexArray, factors: FloatArray) -> Draw:
        """Multiply sizes by factors [n, 1], and round down.

        Raises:
            ValueError: a side would have no pixels.
        """
        resized = np.floor(sizes * factors).astype(np.int64)
        if (resized < 1).any():
            i = int(np.flatnonzero((resized < 1).any(axis=1))[0])
            height, width = sizes[i].tolist()
            raise ValueError(
                f"{self.fingerprint()} would leave an edge of sample {i} of the batch, which is "
                f"{height}x{width} (height x width), without pixels. Remedy: use larger sizes, or "
                "put CenterCrop first"
            )
        return Draw(resized, resized)


class RandomResize(_RandomSize):
    """Resize the shorter edge to a random length, as ``torchvision.transforms.v2.RandomResize``.

    Numbers: height, width of the result in pixels.

    Args:
        min_size: shortest length of the shorter edge, in pixels.
        max_size: longest length of the shorter edge, plus one.
        interpolation: "nearest", "nearest-exact", "bilinear" or "bicubic".
        antialias: whether bilinear and bicubic average over skipped pixels.

    >>> RandomResize(260, 1040).draw(np.array([[0.5]]), np.array([[375, 500]])).sizes
    array([[650, 866]])
    """

    number_names = ("height", "width")

    def __init__(
        self,
        min_size: int,
        max_size: int,
        interpolation: Interpolation = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        lowest, highest = as_side("min_size", min_size), as_side("max_size", max_size)
        self.min_size, self.max_size = lowest, highest
        self._range = lowest, highest
        self._set_how(interpolation, antialias)
        if lowest >= highest:
            raise ValueError(f"{max_size = } must be greater than {min_size = }")

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        lowest, highest = self._range
        drawn = lowest + np.floor(uniforms * (highest - lowest))
        shorter = sizes.min(axis=1, keepdims=True)
        # As in Resize, the shorter edge is exactly the drawn one.
        resized = (drawn * sizes / shorter).astype(np.int64)
        return Draw(resized, resized)


class RandomShortestSize(_RandomSize):
    """Resize the shorter edge to one of several lengths, as v2's ``RandomShortestSize``.

    Numbers: height, width of the result in pixels.

    Args:
        min_size: possible lengths of the shorter edge, in pixels, all equally likely.
        max_size: longest length of the longer edge, in pixels; None for no limit.
        interpolation: "nearest", "nearest-exact", "bilinear" or "bicubic".
        antialias: whether bilinear and bicubic average over skipped pixels.

    >>> recipe = RandomShortestSize([480, 640, 800], max_size=1000)
    >>> recipe.draw(np.array([[0.1], [0.9]]), np.array([[300, 500]] * 2)).sizes
    array([[ 480,  800],
           [ 600, 1000]])
    """

    number_names = ("height", "width")

    def __init__(
        self,
        min_size: int | Sequence[int],
        max_size: int | None = None,
        interpolation: Interpolation = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        lengths = min_size if isinstance(min_size, (list, tuple)) else [min_size]
        self.min_size = tuple(as_side("min_size", length) for length in lengths)
        self.max_size = None if max_size is None else as_side("max_size", max_size)
        self._set_how(interpolation, antialias)
        if not self.min_size:
            raise ValueError(f"{min_size = } must have at least one length")

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        chosen = np.floor(uniforms * len(self.min_size)).astype(np.int64)
        factors = np.array(self.min_size)[chosen] / sizes.min(axis=1, keepdims=True)
        if self.max_size is not None:
            factors = np.minimum(factors, self.max_size / sizes.max(axis=1, keepdims=True))
        return self._scaled(sizes, factors)


class ScaleJitter(_RandomSize):
    """Resize to a random multiple of the fitting size, as v2's ``ScaleJitter``.

    Ghiasi, Cui, Srinivas, Qian, Lin, Cubuk, Le and Zoph, "Simple copy-paste is a strong data
    augmentation method for instance segmentation", CVPR 2021.

    Numbers: height, width of the result in pixels.

    Args:
        target_size: (width, height) that the image fits into at a scale of 1, in torchvision's
            order.
        scale_range: lowest and highest scale.
        interpolation: "nearest", "nearest-exact", "bilinear" or "bicubic".
        antialias: whether bilinear and bicubic average over skipped pixels.

    >>> ScaleJitter((1024, 1024)).draw(np.array([[0.5]]), np.array([[375, 500]])).sizes
    array([[ 806, 1075]])
    """

    number_names = ("height", "width")

    def __init__(
        self,
        target_size: Sequence[int],
        scale_range: Sequence[float] = (0.1, 2.0),
        interpolation: Interpolation = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        if not isinstance(target_size, (list, tuple)) or len(target_size) != 2:
            raise TypeError(f"{target_size = } must be a sequence of two lengths, (width, height)")
        width, height = (as_side("target_size", side) for side in target_size)
        self.target_size = width, height
        self.scale_range = as_range("scale_range", scale_range)
        self._set_how(interpolation, antialias)
        if self.scale_range[0] <= 0:
            raise ValueError(f"{scale_range = } must be positive")

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        lowest, highest = self.scale_range
        scales = lowest + uniforms * (highest - lowest)
        fitting = (np.array(self.target_size[::-1]) / sizes).min(axis=1, keepdims=True)
        return self._scaled(sizes, fitting * scales)

"""Resize: the whole image to another size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import (
    Interpolation,
    as_antialias,
    as_interpolation,
    as_side,
    as_size,
)
from stateful_gpu_loader.transforms.batches.placement import Placement
from stateful_gpu_loader.transforms.geometry.resampling import INTERPOLATIONS, resize, resize_batch
from stateful_gpu_loader.transforms.motion import scaled_and_shifted
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, Recipe


class Resize(Recipe):
    """Resize the image, as ``torchvision.transforms.v2.Resize``.

    Numbers: height, width of the result in pixels.

    Args:
        size: (height, width); an int or a sequence of one for the shorter edge, the longer one
            in proportion; None to go by ``max_size`` alone.
        interpolation: "nearest", "nearest-exact", "bilinear" or "bicubic".
        max_size: the longest that the longer edge may become, in pixels.
        antialias: whether bilinear and bicubic average over the pixels they skip.

    Raises:
        TypeError, ValueError: an argument is of another kind or outside its range, or
            ``max_size`` is given with both edges or not above the shorter one.

    >>> Resize(256).draw(np.empty((1, 0)), np.array([[375, 500]])).sizes
    array([[256, 341]])
    """

    number_names = ("height", "width")

    def __init__(
        self,
        size: int | Sequence[int] | None,
        interpolation: Interpolation = "bilinear",
        max_size: int | None = None,
        antialias: bool | None = True,
    ) -> None:
        self.size = _canonical_size(size)
        self.interpolation = as_interpolation(interpolation, INTERPOLATIONS)
        self.max_size = None if max_size is None else as_side("max_size", max_size)
        self.antialias = as_antialias(antialias)
        if self.size is None and self.max_size is None:
            raise ValueError("size=None needs max_size. Remedy: pass one of them")
        if self.max_size is None or self.size is None:
            return
        if len(self.size) == 2:
            raise ValueError(
                f"{max_size = } is for one edge, but {size = } fixes both. Remedy: leave one out"
            )
        if self.max_size <= self.size[0]:
            raise ValueError(f"{max_size = } must be greater than {size = }, the shorter edge")

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        """Compute the sizes; nothing is random.

        Raises:
            ValueError: an edge would have no pixels left.
        """
        resized = self._sizes_after(sizes)
        if (resized < 1).any():
            i = int(np.flatnonzero((resized < 1).any(axis=1))[0])
            raise ValueError(
                f"{self.fingerprint()} would make {_by(resized[i])} of sample {i} of the batch, "
                f"which is {_by(sizes[i])} (height x width). Remedy: leave out max_size"
            )
        return Draw(resized, resized)

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        height, width = numbers
        return resize(image, (int(height), int(width)), self.interpolation, self.antialias)

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        # Images of one size have one size after it.
        height, width = numbers[0].astype(np.int64).tolist()
        return resize_batch(images, (height, width), self.interpolation, self.antialias)

    def place(self, placement: Placement, numbers: IndexArray | FloatArray) -> Placement | None:
        if self.interpolation != "bilinear":
            return None
        return placement.resize(numbers.astype(np.int64), self.antialias)

    def motion(self, numbers: IndexArray | FloatArray, sizes: IndexArray) -> FloatArray:
        return scaled_and_shifted(numbers[:, ::-1] / sizes[:, ::-1], np.zeros((1, 2)))

    def _sizes_after(self, sizes: IndexArray) -> IndexArray:
        if self.size is not None and len(self.size) == 2:
            return np.full_like(sizes, self.size)
        shorter, longer = sizes.min(axis=1), sizes.max(axis=1)
        if self.size is None:
            new_longer = np.full_like(longer, self.max_size)
            new_shorter = (new_longer * shorter / longer).astype(np.int64)
        else:
            new_shorter = np.full_like(shorter, self.size[0])
            new_longer = (new_shorter * longer / shorter).astype(np.int64)
            if self.max_size is not None:
                too_long = new_longer > self.max_size
                limited = (self.max_size * new_shorter / new_longer).astype(np.int64)
                new_shorter = np.where(too_long, limited, new_shorter)
                new_longer = np.minimum(new_longer, self.max_size)
        is_tall = sizes[:, 1] <= sizes[:, 0]
        heights = np.where(is_tall, new_longer, new_shorter)
        widths = np.where(is_tall, new_shorter, new_longer)
        return np.stack((heights, widths), axis=1)


def _canonical_size(size: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if size is None:
        return None
    height, width = as_size(size)
    return (height, width) if isinstance(size, Sequence) and len(size) == 2 else (height,)


def _by(size: IndexArray) -> str:
    height, width = size.tolist()
    return f"{height}x{width}"

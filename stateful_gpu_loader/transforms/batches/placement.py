"""Placement and Pointwise: folded moves of pixels, and folded operations on values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.batches.device import on_device

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Placement:
    """For each of n images: a box is mirrored and resized, and a window of the result is flipped.

    A placement holds one resize. Flips before and after it are separate, because the resize rounds.

    >>> placement = Placement.of(np.array([[375, 500]])).flip(1, np.array([True]))
    >>> placement.crop(np.array([[0, 10, 300, 400]])).boxes
    array([[  0,  90, 300, 400]])
    >>> placement.resize(np.array([[256, 341]]), True).crop(np.array([[16, 58, 224, 224]])).windows
    array([[ 16,  58, 224, 224]])
    """

    boxes: IndexArray
    """int64 [n, 4]: top, left, height, width in pixels of the image."""
    mirrored: BoolArray
    """bool [n, 2]: whether the rows, and the columns, of the box are reversed."""
    resized: IndexArray
    """int64 [n, 2]: height and width of the whole box after the resize, in pixels."""
    windows: IndexArray
    """int64 [n, 4]: top, left, height, width of the window, in pixels after the resize."""
    flipped: BoolArray
    """bool [n, 2]: whether the rows, and the columns, of the window are reversed."""
    antialias: bool | None = None
    """Whether the resize averages. None means no resize: window and box are the same pixels."""

    @classmethod
    def of(cls, sizes: IndexArray) -> Placement:
        """Return the placement that keeps all of each image.

        Args:
            sizes: int64 [n, 2]: height and width in pixels.
        """
        boxes = np.concatenate((np.zeros_like(sizes), sizes), axis=1)
        return cls._unresized(boxes, np.zeros(sizes.shape, dtype=np.bool_))

    @property
    def sizes(self) -> IndexArray:
        """Height and width of the results, in pixels: int64 [n, 2]."""
        return self.windows[:, 2:]

    def crop(self, boxes: IndexArray) -> Placement:
        """Keep a box of each image.

        Args:
            boxes: int64 [n, 4]: top, left, height, width in pixels of the placement's results.

        Raises:
            ValueError: a box is empty or lies outside.
        """
        corners, sizes = boxes[:, :2], boxes[:, 2:]
        room = self.sizes - sizes
        wrong = ((corners < 0) | (corners > room) | (sizes < 1)).any(axis=1)
        if wrong.any():
            self._refuse(boxes, int(np.flatnonzero(wrong)[0]))
        if self.antialias is None:
            corners = self.boxes[:, :2] + np.where(self.mirrored, room - corners, corners)
            return self._unresized(np.concatenate((corners, sizes), axis=1), self.mirrored)
        corners = self.windows[:, :2] + np.where(self.flipped, room - corners, corners)
        return replace(self, windows=np.concatenate((corners, sizes), axis=1))

    def flip(self, axis: int, chosen: BoolArray) -> Placement:
        """Flip some images.

        Args:
            axis: 0 swaps top and bottom, 1 left and right.
            chosen: bool [n]: the images to flip.
        """
        is_unresized = self.antialias is None
        turned = (self.mirrored if is_unresized else self.flipped).copy()
        turned[:, axis] ^= chosen
        return replace(self, mirrored=turned) if is_unresized else replace(self, flipped=turned)

    def resize(self, sizes: IndexArray, antialias: bool) -> Placement | None:
        """Resize each image bilinearly; None after an earlier resize.

        Args:
            sizes: int64 [n, 2]: height and width in pixels.
            antialias: whether to average over skipped pixels.
        """
        if self.antialias is not None:
            return None
        windows = np.concatenate((np.zeros_like(sizes), sizes), axis=1)
        return replace(self, resized=sizes, windows=windows, antialias=antialias)

    def take(self, members: IndexArray) -> Placement:
        """Return the placement of some of the images."""
        return Placement(
            self.boxes[members],
            self.mirrored[members],
            self.resized[members],
            self.windows[members],
            self.flipped[members],
            self.antialias,
        )

    @classmethod
    def _unresized(cls, boxes: IndexArray, mirrored: BoolArray) -> Placement:
        sizes = boxes[:, 2:]
        windows = np.concatenate((np.zeros_like(sizes), sizes), axis=1)
        return cls(boxes, mirrored, sizes, windows, np.zeros_like(mirrored))

    def _refuse(self, boxes: IndexArray, i: int) -> None:
        top, left, height, width = boxes[i].tolist()
        raise ValueError(
            f"a crop of {height}x{width} pixels at row {top}, column {left} does not lie inside "
            f"image {i} of the batch, which has {self.sizes[i, 0]}x{self.sizes[i, 1]} (height x "
            "width). Remedy: apply the numbers that were drawn for the sizes of these images"
        )


FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Pointwise:
    """Subtractions, multiplications and divisions in float32, followed by one cast.

    >>> scaled = Pointwise().then("*", [1 / 255]).cast(torch.float16)
    >>> scaled.apply(torch.tensor([[[[51.0]]]]))
    tensor([[[[0.2000]]]], dtype=torch.float16)
    """

    steps: str = ""
    """Each step's "-", "*" or "/"."""
    coefficients: tuple[tuple[float, ...], ...] = ()
    """One number, or one for each channel, for each step; they are rounded to float32."""
    dtype: torch.dtype = torch.uint8
    """dtype of the result; uint8 if there are no steps."""

    def then(self, step: str, numbers: Iterable[float]) -> Pointwise:
        """Append one step, after which the values are float32."""
        coefficients = (*self.coefficients, tuple(numbers))
        return Pointwise(self.steps + step, coefficients, torch.float32)

    def cast(self, dtype: torch.dtype) -> Pointwise:
        """Set another dtype for the result."""
        return replace(self, dtype=dtype)

    def fits(self, channels: int) -> bool:
        """Whether images with this number of channels keep their shape."""
        return all(len(numbers) in (1, channels) for numbers in self.coefficients)

    def table(self, channels: int) -> npt.NDArray[np.float32]:
        """Return the coefficients, float32 [number of steps, channels]."""
        table = np.empty((len(self.steps), channels), dtype=np.float32)
        for row, numbers in zip(table, self.coefficients, strict=True):
            row[:] = numbers
        return table

    def apply(self, batch: Tensor) -> Tensor:
        """Apply the steps in place, and the cast.

        Args:
            batch: float32 [n, C, H, W]: whole numbers from 0 to 255.
        """
        table = on_device(self.table(batch.shape[1]), batch.device)
        for step, numbers in zip(self.steps, table, strict=True):
            values = numbers.view(-1, 1, 1)
            if step == "-":
                batch.sub_(values)
            elif step == "*":
                batch.mul_(values)
            else:
                batch.div_(values)
        return batch.to(self.dtype)

"""What recipes fold into one launch: where pixels come from, and what is done to each value."""

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
    """For each of n images: a box, mirrored, resized, of which a window is kept, and flipped.

    It holds one resize. Flips before it and after it are told apart, since the sums of a resize
    are rounded in the order of their pixels.

    >>> placement = Placement.of(np.array([[375, 500]])).flip(1, np.array([True]))
    >>> placement.crop(np.array([[0, 10, 300, 400]])).boxes
    array([[  0,  90, 300, 400]])
    >>> placement.resize(np.array([[256, 341]]), True).crop(np.array([[16, 58, 224, 224]])).windows
    array([[ 16,  58, 224, 224]])
    """

    boxes: IndexArray
    """int64 [n, 4]: top, left, height, width in pixels of the image."""
    mirrored: BoolArray
    """bool [n, 2]: whether the rows, and the columns, of the box are read backwards."""
    resized: IndexArray
    """int64 [n, 2]: height and width of what the whole box becomes, in pixels."""
    windows: IndexArray
    """int64 [n, 4]: top, left, height, width of what is kept, in pixels after the resize."""
    flipped: BoolArray
    """bool [n, 2]: whether the rows, and the columns, of the window are turned around."""
    antialias: bool | None = None
    """How it was resized; None: it was not, and window and box are the same pixels."""

    @classmethod
    def of(cls, sizes: IndexArray) -> Placement:
        """All of each image.

        Args:
            sizes: int64 [n, 2]: height and width in pixels.
        """
        boxes = np.concatenate((np.zeros_like(sizes), sizes), axis=1)
        return cls._unresized(boxes, np.zeros(sizes.shape, dtype=np.bool_))

    @property
    def sizes(self) -> IndexArray:
        """int64 [n, 2]: height and width of the result, in pixels."""
        return self.windows[:, 2:]

    def crop(self, boxes: IndexArray) -> Placement:
        """Keep a box of each.

        Args:
            boxes: int64 [n, 4]: top, left, height, width in pixels of what the placement gives.

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
        """Turn some around.

        Args:
            axis: 0 swaps top and bottom, 1 left and right.
            chosen: bool [n]: which.
        """
        is_unresized = self.antialias is None
        turned = (self.mirrored if is_unresized else self.flipped).copy()
        turned[:, axis] ^= chosen
        return replace(self, mirrored=turned) if is_unresized else replace(self, flipped=turned)

    def resize(self, sizes: IndexArray, antialias: bool) -> Placement | None:
        """Resize each bilinearly; None if it was resized before: two are not one.

        Args:
            sizes: int64 [n, 2]: height and width in pixels.
            antialias: whether to average over the pixels that would be skipped.
        """
        if self.antialias is not None:
            return None
        windows = np.concatenate((np.zeros_like(sizes), sizes), axis=1)
        return replace(self, resized=sizes, windows=windows, antialias=antialias)

    def take(self, members: IndexArray) -> Placement:
        """The placement of some of the images."""
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
            "width). Remedy: apply numbers that were drawn for the sizes of these images"
        )


FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Pointwise:
    """Subtractions, multiplications and divisions in float32, and one cast.

    >>> scaled = Pointwise().then("*", [1 / 255]).cast(torch.float16)
    >>> scaled.apply(torch.tensor([[[[51.0]]]]))
    tensor([[[[0.2000]]]], dtype=torch.float16)
    """

    steps: str = ""
    """One of "-", "*", "/" for each step, in order."""
    coefficients: tuple[tuple[float, ...], ...] = ()
    """For each step one number, or one for each channel; they are rounded to float32."""
    dtype: torch.dtype = torch.uint8
    """The dtype of the result; uint8 means that there are no steps."""

    def then(self, step: str, numbers: Iterable[float]) -> Pointwise:
        """One step more, after which the values are float32."""
        coefficients = (*self.coefficients, tuple(numbers))
        return Pointwise(self.steps + step, coefficients, torch.float32)

    def cast(self, dtype: torch.dtype) -> Pointwise:
        """The result in another dtype."""
        return replace(self, dtype=dtype)

    def fits(self, channels: int) -> bool:
        """Whether images of so many channels keep their shape."""
        return all(len(numbers) in (1, channels) for numbers in self.coefficients)

    def table(self, channels: int) -> npt.NDArray[np.float32]:
        """The coefficients, float32 [number of steps, channels]."""
        table = np.empty((len(self.steps), channels), dtype=np.float32)
        for row, numbers in zip(table, self.coefficients, strict=True):
            row[:] = numbers
        return table

    def apply(self, batch: Tensor) -> Tensor:
        """Do it, in place but for the cast.

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

"""CenterCrop and RandomCrop: a box of fixed size, from an image that is padded where needed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import Fill, as_fill, as_size
from stateful_gpu_loader.transforms.batches.device import on_device
from stateful_gpu_loader.transforms.batches.placement import Placement
from stateful_gpu_loader.transforms.geometry.resize import crop
from stateful_gpu_loader.transforms.motion import scaled_and_shifted
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, Recipe

_NUMBER_NAMES = ("pad_left", "pad_top", "pad_right", "pad_bottom", "top", "left")
_PADDING_MODES = ("constant", "edge", "reflect", "symmetric")


class _Crop(Recipe):
    """Base of crops to one size: a subclass decides how to pad, and where the box lies.

    Numbers: pixels padded left, top, right, bottom; then top, left of the box in the padded image.
    """

    size: tuple[int, int]
    fill: float | tuple[float, ...] | None = 0.0
    padding_mode: str = "constant"

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        *padding, top, left = map(int, numbers)
        return crop(self._padded(image, padding), top, left, *self.size)

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        # Images of one size are padded alike; where the box lies may differ.
        whole = numbers.astype(np.int64)
        padded = self._padded(images, whole[0, :4].tolist())
        if (whole[:, 4:] == whole[0, 4:]).all():
            top, left = whole[0, 4:].tolist()
            return padded.narrow(2, top, self.size[0]).narrow(3, left, self.size[1])
        corners = on_device(whole[:, 4:].T, images.device)
        height, width = (torch.arange(side, device=images.device) for side in self.size)
        rows = (corners[0].unsqueeze(1) + height).view(-1, 1, self.size[0], 1)
        columns = (corners[1].unsqueeze(1) + width).view(-1, 1, 1, self.size[1])
        n, channels = (torch.arange(size, device=images.device) for size in padded.shape[:2])
        return padded[n.view(-1, 1, 1, 1), channels.view(-1, 1, 1), rows, columns]

    def place(self, placement: Placement, numbers: IndexArray | FloatArray) -> Placement | None:
        if numbers[:, :4].any():
            return None
        corners = numbers[:, 4:].astype(np.int64)
        sizes = np.full_like(corners, self.size)
        return placement.crop(np.concatenate((corners, sizes), axis=1))

    def motion(self, numbers: IndexArray | FloatArray, sizes: IndexArray) -> FloatArray:
        left, top = numbers[:, 0] - numbers[:, 5], numbers[:, 1] - numbers[:, 4]
        return scaled_and_shifted(np.ones((1, 2)), np.stack((left, top), axis=1))

    def _draw(self, before: IndexArray, after: IndexArray, corners: IndexArray) -> Draw:
        """From pixels padded before and after, and corners of the box: int64 [n, 2] each, y, x."""
        numbers = np.concatenate((before[:, ::-1], after[:, ::-1], corners), axis=1)
        return Draw(numbers, np.full_like(corners, self.size))

    def _padded(self, images: Tensor, padding: list[int]) -> Tensor:
        """[..., C, H, W] with pixels added left, top, right, bottom; itself if there are none."""
        if not any(padding):
            return images
        from torchvision.transforms.v2 import functional as F

        fill = list(self.fill) if isinstance(self.fill, tuple) else self.fill
        padded: Tensor = F.pad_image(images, padding, fill=fill, padding_mode=self.padding_mode)
        return padded


class CenterCrop(_Crop):
    """Cut the center out, as ``torchvision.transforms.v2.CenterCrop``; smaller images get zeros.

    Numbers: pixels padded left, top, right, bottom; then top, left of the box in the padded image.

    Args:
        size: (height, width) in pixels, or an int for a square.

    Raises:
        TypeError, ValueError: size is no positive int nor a sequence of one or two.

    >>> CenterCrop(224).draw(np.empty((1, 0)), np.array([[256, 341]])).numbers
    array([[ 0,  0,  0,  0, 16, 58]])
    """

    number_names = _NUMBER_NAMES

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = as_size(size)

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        missing = np.maximum(np.array(self.size) - sizes, 0)
        before, after = missing // 2, (missing + 1) // 2
        # Half to even, as Python's round, by which torchvision finds the anchor.
        anchors = np.rint((sizes + before + after - self.size) / 2.0).astype(np.int64)
        return self._draw(before, after, anchors)


class RandomCrop(_Crop):
    """Cut a box out at a random place, as ``torchvision.transforms.v2.RandomCrop``.

    Numbers: pixels padded left, top, right, bottom; then top, left of the box in the padded image.

    Args:
        size: (height, width) in pixels, or an int for a square.
        padding: pixels to pad before the crop: one int for all sides, two for left and right and
            for top and bottom, or four for left, top, right, bottom.
        pad_if_needed: whether an image smaller than ``size`` is padded, on both sides, by what
            it lacks.
        fill: what to pad with: one number, or one for each channel.
        padding_mode: "constant", "edge", "reflect" or "symmetric".

    Raises:
        TypeError, ValueError: an argument is of another kind or outside its range, or ``fill``
            has a number for each channel and the mode is not "constant".

    >>> RandomCrop(32, padding=4).draw(np.array([[0.5, 0.99]]), np.array([[32, 32]])).numbers
    array([[4, 4, 4, 4, 4, 8]])
    """

    num_draws = 2
    number_names = _NUMBER_NAMES

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: Fill = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.size = as_size(size)
        self.padding = _canonical_padding(padding)
        self.pad_if_needed = bool(pad_if_needed)
        self.fill = as_fill(fill)
        if padding_mode not in _PADDING_MODES:
            raise ValueError(f"{padding_mode = } must be one of {_PADDING_MODES}")
        if isinstance(self.fill, tuple) and len(self.fill) > 1 and padding_mode != "constant":
            raise ValueError(
                f"{fill = } has a number for each channel, and {padding_mode = } takes none. "
                "Remedy: leave fill out, or padding_mode"
            )
        self.padding_mode = padding_mode

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        """Pad and place the box.

        Raises:
            ValueError: an image is smaller than the box even when padded.
        """
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        before = np.full_like(sizes, (top, left))
        after = np.full_like(sizes, (bottom, right))
        if self.pad_if_needed:
            missing = np.maximum(np.array(self.size) - (sizes + before + after), 0)
            before, after = before + missing, after + missing
        room = sizes + before + after - self.size
        if (room < 0).any():
            self._refuse_small(sizes, room)
        corners = np.floor(uniforms * (room + 1)).astype(np.int64)
        return self._draw(before, after, corners)

    def _refuse_small(self, sizes: IndexArray, room: IndexArray) -> None:
        i = int(np.flatnonzero((room < 0).any(axis=1))[0])
        (height, width), (padded_height, padded_width) = sizes[i], room[i] + self.size
        raise ValueError(
            f"RandomCrop needs {self.size[0]}x{self.size[1]} pixels, and sample {i} of the batch "
            f"has {height}x{width}, padded {padded_height}x{padded_width} (height x width). "
            "Remedy: pad_if_needed=True, or Resize first"
        )


def _canonical_padding(padding: int | Sequence[int] | None) -> tuple[int, int, int, int] | None:
    """(left, top, right, bottom), or None for no padding."""
    if padding is None:
        return None
    sides = (padding,) if isinstance(padding, int) else padding
    if (
        not isinstance(sides, (tuple, list))
        or len(sides) not in (1, 2, 4)
        or not all(isinstance(side, int) for side in sides)
    ):
        raise ValueError(f"{padding = } must be an int, or a tuple or list of 1, 2 or 4 ints")
    left, top, right, bottom = (tuple(sides) * 4)[:4]
    return (left, top, right, bottom) if any(sides) else None

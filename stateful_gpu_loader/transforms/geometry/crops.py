"""Crops: of fixed size, central or random, and of random area and aspect ratio."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import (
    Fill,
    Interpolation,
    as_antialias,
    as_fill,
    as_interpolation,
    as_range,
    as_size,
)
from stateful_gpu_loader.transforms.batches.device import on_device
from stateful_gpu_loader.transforms.batches.placement import Placement
from stateful_gpu_loader.transforms.cut import Cut
from stateful_gpu_loader.transforms.geometry.pads import as_padding, as_padding_mode, padded
from stateful_gpu_loader.transforms.geometry.resize import (
    INTERPOLATIONS,
    crop,
    resize,
    resized_crop,
)
from stateful_gpu_loader.transforms.motion import scaled_and_shifted
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, Recipe, between

_NUMBER_NAMES = ("pad_left", "pad_top", "pad_right", "pad_bottom", "top", "left")


class _Crop(Recipe):
    """Base of crops to one size: a subclass decides the padding and the place of the box.

    Numbers: pixels padded left, top, right, bottom; then top, left of the box in the padded image.
    """

    size: tuple[int, int]
    fill: float | tuple[float, ...] | None = 0.0
    padding_mode: str = "constant"

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        *padding, top, left = map(int, numbers)
        return crop(self._padded(image, padding), top, left, *self.size)

    def cut(self, cut: Cut, numbers: Sequence[float]) -> Cut | None:
        *padding, top, left = map(int, numbers)
        return None if any(padding) else cut.crop((top, left, *self.size))

    def apply_to_cut(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        return image

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        # Images of one size have the same padding, but different boxes.
        whole = numbers.astype(np.int64)
        padded = self._padded(images, whole[0, :4].tolist())
        if (whole[:, 4:] == whole[0, 4:]).all():
            top, left = whole[0, 4:].tolist()
            return padded.narrow(2, top, self.size[0]).narrow(3, left, self.size[1])
        tops, lefts = on_device(whole[:, 4:].T, images.device)
        # A view [n, C, top, left, h, w] of every possible box.
        boxes = padded.unfold(2, self.size[0], 1).unfold(3, self.size[1], 1)
        return boxes[torch.arange(len(padded), device=images.device), :, tops, lefts]

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
        """Make a Draw from padding before and after, and corners (y, x): int64 [n, 2] each."""
        numbers = np.concatenate((before[:, ::-1], after[:, ::-1], corners), axis=1)
        return Draw(numbers, np.full_like(corners, self.size))

    def _padded(self, images: Tensor, padding: list[int]) -> Tensor:
        return padded(images, padding, self.fill, self.padding_mode)


class CenterCrop(_Crop):
    """Cut out the center, as ``torchvision.transforms.v2.CenterCrop``; smaller images get zeros.

    Numbers: pixels padded left, top, right, bottom; then top, left of the box in the padded image.

    Args:
        size: (height, width) in pixels, or an int for a square.

    Raises:
        TypeError, ValueError: size is not a positive int or a sequence of one or two.

    >>> CenterCrop(224).draw(np.empty((1, 0)), np.array([[256, 341]])).numbers
    array([[ 0,  0,  0,  0, 16, 58]])
    """

    number_names = _NUMBER_NAMES

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = as_size(size)

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        missing = np.maximum(np.array(self.size) - sizes, 0)
        before, after = missing // 2, (missing + 1) // 2
        # Half to even, like Python's round in torchvision.
        anchors = np.rint((sizes + before + after - self.size) / 2.0).astype(np.int64)
        return self._draw(before, after, anchors)


class RandomCrop(_Crop):
    """Cut out a box at a random place, as ``torchvision.transforms.v2.RandomCrop``.

    Numbers: pixels padded left, top, right, bottom; then top, left of the box in the padded image.

    Args:
        size: (height, width) in pixels, or an int for a square.
        padding: pixels to pad before the crop: one int for all sides, two for left and right and
            for top and bottom, or four for left, top, right, bottom.
        pad_if_needed: whether an image smaller than ``size`` is padded on both sides by the
            missing pixels.
        fill: value of the padding: one number, or one for each channel.
        padding_mode: "constant", "edge", "reflect" or "symmetric".

    Raises:
        TypeError, ValueError: an argument is invalid, or ``fill`` has a number for each channel and
            the mode is not "constant".

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
        pixels = (0, 0, 0, 0) if padding is None else as_padding(padding)
        self.padding = pixels if any(pixels) else None
        self.pad_if_needed = bool(pad_if_needed)
        self.fill = as_fill(fill)
        self.padding_mode = as_padding_mode(padding_mode, self.fill)

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        """Draw the padding and the place of the box.

        Raises:
            ValueError: an image is smaller than the box even with padding.
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
            f"RandomCrop needs {self.size[0]}x{self.size[1]} pixels, but sample {i} of the batch "
            f"has {height}x{width}, padded {padded_height}x{padded_width} (height x width). "
            "Remedy: pass pad_if_needed=True, or put Resize first"
        )


NUM_ATTEMPTS = 10
"""Number of boxes tried for each image, as in torchvision."""

_HALVINGS = 8
_NUM_TERMS = 8


def portable_exp(exponents: FloatArray) -> FloatArray:
    """Return e ** exponents, to about 1e-13, using only additions and multiplications.

    They are rounded the same everywhere. The last bit of NumPy's exp depends on the CPU, and a box
    may depend on that bit.
    """
    small = exponents * 2.0**-_HALVINGS
    power = np.ones_like(small)
    for term in range(_NUM_TERMS, 0, -1):
        power = 1.0 + power * small / term
    for _ in range(_HALVINGS):
        power = power * power
    return power


def portable_log(value: float) -> float:
    """Return log(value) to a multiple of 2**-40, on which all C libraries agree."""
    return round(math.log(value) * 2**40) / 2**40


def log_range(ratio: tuple[float, float]) -> tuple[float, float]:
    """Return the logarithms of the lowest and the highest aspect ratio."""
    return portable_log(ratio[0]), portable_log(ratio[1])


def attempted_sides(
    uniforms: FloatArray,
    sizes: IndexArray,
    scale: tuple[float, float],
    log_ratio: tuple[float, float],
) -> tuple[FloatArray, FloatArray]:
    """Return the sides of ten boxes per image, of uniform area and log-uniform aspect ratio.

    Args:
        uniforms: float64 [n, 2 * NUM_ATTEMPTS] in [0, 1).
        sizes: int64 [n, 2]: height and width of the images, in pixels.
        scale: lowest and highest area, as a fraction of the image's.
        log_ratio: from :func:`log_range`.

    Returns:
        Two arrays float64 [n, NUM_ATTEMPTS] of whole pixels; the ratio is the first side divided by
        the second.
    """
    areas = sizes.prod(axis=1, keepdims=True) * between(scale, uniforms[:, :NUM_ATTEMPTS])
    ratios = portable_exp(between(log_ratio, uniforms[:, NUM_ATTEMPTS:]))
    # Half to even, like Python's round in torchvision.
    return np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))


class RandomResizedCrop(Recipe):
    """Cut out a random box and resize it, as ``torchvision.transforms.v2.RandomResizedCrop``.

    Numbers: top, left, height, width of the box in pixels. Up to ten boxes of uniform area and
    log-uniform aspect ratio are tried. If none fits into the image, the box is the largest
    central one within the ratios.

    Args:
        size: (height, width) of the result in pixels, or an int for a square.
        scale: lowest and highest area of the box, as a fraction of the image's.
        ratio: lowest and highest width / height of the box.
        interpolation: "nearest", "nearest-exact", "bilinear" or "bicubic".
        antialias: whether bilinear and bicubic average over skipped pixels.

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
        top, left, height, width = map(int, numbers)
        box = top, left, height, width
        return resized_crop(image, box, self.size, self.interpolation, self.antialias)

    def cut(self, cut: Cut, numbers: Sequence[float]) -> Cut | None:
        top, left, height, width = map(int, numbers)
        return cut.crop((top, left, height, width)).resize(self.size)

    def apply_to_cut(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        return resize(image, self.size, self.interpolation, self.antialias)

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
        """Return height and width of the box if no attempt fits: int64 [n, 2]."""
        height, width = sizes[:, 0], sizes[:, 1]
        narrowest, widest = self.ratio
        ratios = width / height
        heights = np.where(ratios < narrowest, np.rint(width / narrowest), height)
        widths = np.where(ratios > widest, np.rint(height * widest), width)
        # torchvision fails if no whole pixels have the ratio.
        boxes: IndexArray = np.maximum(np.stack((heights, widths), axis=1), 1).astype(np.int64)
        return boxes

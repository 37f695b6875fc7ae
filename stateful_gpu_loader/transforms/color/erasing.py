"""RandomErasing: put a number, or noise, in place of a random box."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import as_probability, as_range
from stateful_gpu_loader.transforms.batches.device_numbers import constant, on_device
from stateful_gpu_loader.transforms.color.noise import normal_noise
from stateful_gpu_loader.transforms.motion import at_rest
from stateful_gpu_loader.transforms.portable import portable_exp, portable_log
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, Recipe

_NUM_ATTEMPTS = 10


class RandomErasing(Recipe):
    """Erase a random box, with a probability, as ``torchvision.transforms.v2.RandomErasing``.

    Numbers: top, left, height, width of the box in pixels, all 0 where nothing is erased; then
    two halves of a seed, of which ``"random"`` makes its noise: the same on every device. Up to
    ten boxes are tried; if none fits into the image, nothing is erased.

    Args:
        p: the probability that a box is erased.
        scale: lowest and highest area of the box, as a fraction of the image's.
        ratio: lowest and highest height / width of the box.
        value: what is put there: one number, one for each channel, or "random" for normal noise
            of mean 0 and deviation 1. Integer images get the whole part, modulo their range.
        inplace: must stay False: a recipe leaves its image as it is.

    Raises:
        TypeError, ValueError: an argument is of another kind or outside its range.

    >>> recipe = RandomErasing(1.0, value="random")
    >>> recipe.draw(np.full((1, 25), 0.5), np.array([[375, 500]])).numbers[:, :4]
    array([[ 97, 159, 181, 182]])
    """

    num_draws = 1 + 2 + 2 * _NUM_ATTEMPTS + 2
    number_names = ("top", "left", "height", "width", "seed_low", "seed_high")

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | str | Sequence[float] = 0.0,
        inplace: bool = False,
    ) -> None:
        self.p = as_probability(p)
        self.scale = as_range("scale", scale)
        self.ratio = as_range("ratio", ratio)
        self.value = _canonical_value(value)
        self.inplace = inplace
        if not 0 <= self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"{scale = } must lie within 0 and 1")
        if self.ratio[0] <= 0:
            raise ValueError(f"{ratio = } must be positive")
        if inplace:
            raise ValueError(f"{inplace = } is not supported. Remedy: leave it out")
        self._log_ratio = (portable_log(self.ratio[0]), portable_log(self.ratio[1]))

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        attempts = uniforms[:, 3:-2]
        lowest, highest = self.scale
        areas = sizes.prod(axis=1, keepdims=True) * (
            lowest + attempts[:, :_NUM_ATTEMPTS] * (highest - lowest)
        )
        lowest, highest = self._log_ratio
        ratios = portable_exp(lowest + attempts[:, _NUM_ATTEMPTS:] * (highest - lowest))
        # Half to even, as Python's round, which torchvision calls here.
        heights, widths = np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))
        fits = (heights < sizes[:, :1]) & (widths < sizes[:, 1:])
        first = fits.argmax(axis=1)[:, None]
        boxes = np.column_stack(
            [np.take_along_axis(sides, first, 1) for sides in (heights, widths)]
        )
        corners = np.floor(uniforms[:, 1:3] * (sizes - boxes + 1))
        erased = (uniforms[:, 0] < self.p) & fits.any(axis=1) & (boxes > 0).all(axis=1)
        seeds = np.floor(uniforms[:, -2:] * 2.0**32)
        numbers = np.column_stack((corners * erased[:, None], boxes * erased[:, None], seeds))
        return Draw(numbers.astype(np.int64), sizes)

    def motion(self, numbers: IndexArray | FloatArray, sizes: IndexArray) -> FloatArray:
        return at_rest(len(sizes))

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        top, left, height, width, *seed = map(int, numbers)
        if not height:
            return image
        channels = self._checked_channels(image.shape[0])
        if self.value == "random":
            count = channels * height * width
            noise, _ = normal_noise(np.array([seed]), np.array([count]), image.device)
            values = noise[:count].view(channels, height, width)
        else:
            values = self._constant(image.device).view(-1, 1, 1)
        erased = image.clone()
        erased[:, top : top + height, left : left + width] = _as_pixels(values, image.dtype)
        return erased

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        rows = np.flatnonzero(numbers[:, 2])
        if not len(rows):
            return images
        channels = self._checked_channels(images.shape[1])
        boxes, seeds = numbers[rows, :4].astype(np.int64), numbers[rows, 4:].astype(np.int64)
        areas = boxes[:, 2] * boxes[:, 3]
        value_starts = np.zeros_like(areas)
        if self.value == "random":
            noise, value_starts = normal_noise(seeds, channels * areas, images.device)
        starts = np.cumsum(areas) - areas
        table = np.column_stack((areas, rows, boxes[:, :2], boxes[:, 3], starts, value_starts))
        table_there = on_device(table, images.device)
        # A line for each pixel of all boxes, one box after the other.
        num_pixels = int(areas.sum())
        lines = table_there.repeat_interleave(table_there[:, 0], dim=0, output_size=num_pixels)
        area, row, top, left, width, start, value_start = lines.unbind(1)
        place = torch.arange(num_pixels, device=images.device) - start
        if self.value == "random":
            plane = torch.arange(channels, device=images.device) * area[:, None]
            values = noise[(value_start + place)[:, None] + plane]
        else:
            values = self._constant(images.device).expand(num_pixels, channels)
        erased = images.clone()
        where = (row, top + place // width, left + place % width)
        erased.permute(0, 2, 3, 1).index_put_(where, _as_pixels(values, images.dtype))
        return erased

    def _constant(self, device: torch.device) -> Tensor:
        values = self.value if isinstance(self.value, tuple) else (float(self.value),)
        return constant(values, torch.float32, device)

    def _checked_channels(self, channels: int) -> int:
        if isinstance(self.value, tuple) and len(self.value) != channels:
            raise ValueError(
                f"value={self.value} has {len(self.value)} numbers, and the image has {channels} "
                "channels. Remedy: pass one number, or one for each channel"
            )
        return channels


def _as_pixels(values: Tensor, dtype: torch.dtype) -> Tensor:
    """By way of int64, which holds what a small integer type would leave to the compiler."""
    return values.to(dtype) if dtype.is_floating_point else values.to(torch.int64).to(dtype)


def _canonical_value(value: Any) -> float | str | tuple[float, ...]:
    if isinstance(value, str):
        if value != "random":
            raise ValueError(f"{value = } is no number. Remedy: pass numbers, or 'random'")
        return value
    if not isinstance(value, (int, float, list, tuple)):
        raise TypeError(
            f"{value = } of type {type(value).__name__} is not supported. Remedy: pass a number, "
            "one for each channel, or 'random'"
        )
    numbers = tuple(map(float, value)) if isinstance(value, (list, tuple)) else (float(value),)
    if not numbers or not all(map(math.isfinite, numbers)):
        raise ValueError(f"{value = } must have at least one number, and finite ones only")
    return numbers if len(numbers) > 1 else numbers[0]

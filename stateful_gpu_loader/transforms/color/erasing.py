"""RandomErasing: replace a random box by a number or by noise.

The noise is the same on every device. Philox4x32-10, in torch's int64, turns (seed, block number)
into eight 16-bit halves of words. Each half is an index into a table of the normal distribution.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import as_probability, as_range
from stateful_gpu_loader.transforms.batches.device import constant, on_device
from stateful_gpu_loader.transforms.geometry.crops import NUM_ATTEMPTS, attempted_sides, log_range
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, Recipe, in_place

_NUM_ROUNDS = 10
_MULTIPLIERS_HIGH = (0xD251, 0xCD9E)
_MULTIPLIERS_LOW = (0x1F53, 0x8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_HALF = 0xFFFF
_PER_BLOCK = 8
_GRANULE = 2.0**-20


class RandomErasing(Recipe):
    """Erase a random box, with a probability, as ``torchvision.transforms.v2.RandomErasing``.

    Numbers: top, left, height, width of the box in pixels, all 0 if nothing is erased; then the two
    halves of the seed of the ``"random"`` noise. Up to ten boxes are tried; if none fits into the
    image, nothing is erased.

    Args:
        p: the probability that a box is erased.
        scale: lowest and highest area of the box, as a fraction of the image's.
        ratio: lowest and highest height / width of the box.
        value: the new value: one number, one for each channel, or "random" for normal noise with
            mean 0 and deviation 1. Integer images get the integer part, modulo their range.
        inplace: must stay False.

    >>> recipe = RandomErasing(1.0, value="random")
    >>> recipe.draw(np.full((1, 25), 0.5), np.array([[375, 500]])).numbers[:, :4]
    array([[ 97, 159, 181, 182]])
    """

    num_draws = 1 + 2 + 2 * NUM_ATTEMPTS + 2
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
        self._log_ratio = log_range(self.ratio)

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        heights, widths = attempted_sides(uniforms[:, 3:-2], sizes, self.scale, self._log_ratio)
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

    motion = in_place

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
        # One line for each pixel of all boxes, box by box.
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
                f"value={self.value} has {len(self.value)} numbers, but the image has {channels} "
                "channels. Remedy: pass one number, or one for each channel"
            )
        return channels


def _as_pixels(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert through int64, because a float's overflow of a smaller integer is undefined."""
    return values.to(dtype) if dtype.is_floating_point else values.to(torch.int64).to(dtype)


def _canonical_value(value: Any) -> float | str | tuple[float, ...]:
    if isinstance(value, str):
        if value != "random":
            raise ValueError(f"{value = } is not a number. Remedy: pass numbers, or 'random'")
        return value
    if not isinstance(value, (int, float, list, tuple)):
        raise TypeError(
            f"{value = } of type {type(value).__name__} is not supported. Remedy: pass a number, "
            "one for each channel, or 'random'"
        )
    numbers = tuple(map(float, value)) if isinstance(value, (list, tuple)) else (float(value),)
    if not numbers or not all(map(math.isfinite, numbers)):
        raise ValueError(f"{value = } must have at least one number, and only finite ones")
    return numbers if len(numbers) > 1 else numbers[0]


def normal_noise(
    seeds: IndexArray, counts: IndexArray, device: torch.device
) -> tuple[Tensor, IndexArray]:
    """Return standard normal values of several seeds, one seed after the other.

    Args:
        seeds: int64 [m, 2]: the low and the high 32 bits of each seed.
        counts: int64 [m]: least number of values for each seed.
        device: device of the result.

    Returns:
        float32 [...], multiples of 2**-20 between -4.33 and 4.33; and int64 [m], the start of each
        seed's values. The first values of a seed do not depend on its count.

    >>> seeds = np.array([[1, 0], [2, 0]])
    >>> values, starts = normal_noise(seeds, np.array([3, 9]), torch.device("cpu"))
    >>> values.shape, starts
    (torch.Size([24]), array([0, 8]))
    """
    num_blocks = -(-counts // _PER_BLOCK)
    starts = np.cumsum(num_blocks) - num_blocks
    total = int(num_blocks.sum())
    table = on_device(np.column_stack((seeds, starts, num_blocks)), device)
    rows = table.repeat_interleave(table[:, 3], dim=0, output_size=total)
    blocks = torch.arange(total, device=device) - rows[:, 2]
    zeros = torch.zeros_like(blocks)
    words = philox(torch.stack((blocks, zeros, zeros, zeros)), rows[:, :2].T)
    halves = torch.stack((words & _HALF, words >> 16), dim=-1)
    places = halves.permute(1, 0, 2).reshape(-1)
    return _quantiles(device).index_select(0, places), starts * _PER_BLOCK


def philox(counter: Tensor, key: Tensor) -> Tensor:
    """Compute ``randomness.philox4x32`` on any device.

    Args:
        counter: int64 [4, n], each word within 32 bits.
        key: int64 [2, n], each word within 32 bits.

    Returns:
        int64 [4, n], each word within 32 bits.

    >>> zero = torch.zeros(4, 1, dtype=torch.int64)
    >>> [f"{word:08x}" for word in philox(zero, zero[:2]).flatten().tolist()]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    # Lanes 0 and 2 are multiplied, lanes 1 and 3 mixed in, in pairs. No product exceeds 48 bits,
    # because torch does not define the overflow of int64.
    multiplied, mixed = counter[0::2], counter[1::2]
    high, low, steps = (
        constant(pair, torch.int64, counter.device).view(2, 1)
        for pair in (_MULTIPLIERS_HIGH, _MULTIPLIERS_LOW, _KEY_STEPS)
    )
    for _ in range(_NUM_ROUNDS):
        by_high, by_low = multiplied * high, multiplied * low
        upper = (by_high + (by_low >> 16)) >> 16
        lower = (((by_high & _HALF) << 16) + by_low) & _WORD
        multiplied = upper.flip(0) ^ mixed ^ key
        mixed = lower.flip(0)
        key = (key + steps) & _WORD
    return torch.stack((multiplied, mixed), dim=1).flatten(0, 1)


@functools.cache
def _quantiles(device: torch.device) -> Tensor:
    """Return the middles of 2**16 equally likely parts of the normal distribution: float32 [65536].

    Multiples of 2**-20, on which all C libraries agree.
    """
    inverse = NormalDist().inv_cdf
    upper = [round(inverse(0.5 + (i + 0.5) / 65536) / _GRANULE) * _GRANULE for i in range(32768)]
    values = [-value for value in reversed(upper)] + upper
    return torch.tensor(values, dtype=torch.float32).to(device)

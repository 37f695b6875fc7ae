"""RandomPhotometricDistort: color changes for detectors of the SSD family."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import as_probability, as_range
from stateful_gpu_loader.transforms.batches.device import apply_by_group, on_device
from stateful_gpu_loader.transforms.color.adjustments import (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
)
from stateful_gpu_loader.transforms.color.hue import Factor, adjust_hue
from stateful_gpu_loader.transforms.recipe import (
    BatchwiseRecipe,
    Draw,
    FloatArray,
    between,
    in_place,
)

_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)
_ADJUSTMENTS: tuple[Callable[[Tensor, Factor], Tensor], ...] = (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    adjust_hue,
)
_IN_ORDER = (0, 1, 2)
_PERMUTATIONS = np.array(list(itertools.permutations(_IN_ORDER)), dtype=np.float64)


class RandomPhotometricDistort(BatchwiseRecipe):
    """Change color properties, each with a probability, as v2's ``RandomPhotometricDistort``.

    Liu, Anguelov, Erhan, Szegedy, Reed, Fu and Berg, "SSD: Single shot multibox detector", ECCV
    2016.

    Numbers: a pair each for brightness, contrast, saturation and hue: 1 and the factor (for hue,
    the shift in turns), or 0 and 0 for no change. Then 1 to change contrast before saturation and
    hue, 0 to change it after them. Last, the channels that become red, green and blue.

    Args:
        brightness, contrast, saturation: lowest and highest factor, not negative.
        hue: lowest and highest shift, within -0.5 and 0.5.
        p: the probability of each change, and of a permutation of the channels.

    >>> recipe = RandomPhotometricDistort()
    >>> recipe.draw(np.full((1, 11), 0.25), np.array([[375, 500]])).numbers[0, :6].tolist()
    [1.0, 0.9375, 1.0, 0.75, 1.0, 0.75]
    """

    num_draws = 11
    number_names = (
        *("changes_brightness", "brightness", "changes_contrast", "contrast"),
        *("changes_saturation", "saturation", "changes_hue", "hue"),
        *("contrast_first", "red", "green", "blue"),
    )

    def __init__(
        self,
        brightness: Sequence[float] = (0.875, 1.125),
        contrast: Sequence[float] = (0.5, 1.5),
        saturation: Sequence[float] = (0.5, 1.5),
        hue: Sequence[float] = (-0.05, 0.05),
        p: float = 0.5,
    ) -> None:
        self.brightness = as_range("brightness", brightness)
        self.contrast = as_range("contrast", contrast)
        self.saturation = as_range("saturation", saturation)
        self.hue = as_range("hue", hue)
        self.p = as_probability(p)
        for name, (lowest, _) in (
            ("brightness", self.brightness),
            ("contrast", self.contrast),
            ("saturation", self.saturation),
        ):
            if lowest < 0:
                raise ValueError(f"{name} = {getattr(self, name)} must not be negative")
        if not -0.5 <= self.hue[0] <= self.hue[1] <= 0.5:
            raise ValueError(f"{hue = } must lie within -0.5 and 0.5")

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        numbers = np.empty((len(sizes), 12))
        ranges = (self.brightness, self.contrast, self.saturation, self.hue)
        for i, bounds in enumerate(ranges):
            numbers[:, 2 * i] = uniforms[:, 2 * i] < self.p
            numbers[:, 2 * i + 1] = between(bounds, uniforms[:, 2 * i + 1]) * numbers[:, 2 * i]
        numbers[:, 8] = uniforms[:, 8] < 0.5
        permuted = _PERMUTATIONS[np.floor(uniforms[:, 10] * len(_PERMUTATIONS)).astype(np.int64)]
        numbers[:, 9:] = np.where(uniforms[:, 9:10] < self.p, permuted, _IN_ORDER)
        return Draw(numbers, sizes)

    motion = in_place

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        changes = numbers[:, :8:2] != 0
        first = numbers[:, 8] != 0
        images = images.contiguous()
        for which, rows in (
            (_BRIGHTNESS, changes[:, _BRIGHTNESS]),
            (_CONTRAST, changes[:, _CONTRAST] & first),
            (_SATURATION, changes[:, _SATURATION]),
            (_HUE, changes[:, _HUE]),
            (_CONTRAST, changes[:, _CONTRAST] & ~first),
        ):
            images = _adjusted(which, images, rows, numbers[:, 2 * which + 1].astype(np.float64))
        return _permuted(images, numbers[:, 9:].astype(np.int64))


def _adjusted(which: int, images: Tensor, rows: IndexArray, factors: FloatArray) -> Tensor:
    def leave(chosen: Tensor, _: Tensor, __: IndexArray) -> Tensor:
        return chosen

    def change(chosen: Tensor, factor: Tensor, _: IndexArray) -> Tensor:
        return _ADJUSTMENTS[which](chosen, factor)

    if not rows.any():
        return images
    return apply_by_group(images, rows.astype(np.int64), {0: leave, 1: change}, factors)


def _permuted(images: Tensor, channels: IndexArray) -> Tensor:
    rows = np.flatnonzero((channels != _IN_ORDER).any(axis=1))
    if not len(rows) or images.shape[1] == 1:
        return images
    packed = on_device(np.column_stack((rows, channels[rows])), images.device)
    chosen, order = packed[:, 0], packed[:, 1:]
    made = images[chosen[:, None], order]
    return images.clone().index_copy_(0, chosen, made)

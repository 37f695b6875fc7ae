"""ColorJitter and RandomGrayscale: change colors without moving pixels."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import as_range
from stateful_gpu_loader.transforms.batches.device import apply_by_group, kernels_that_run
from stateful_gpu_loader.transforms.color import levels
from stateful_gpu_loader.transforms.color.adjustments import (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    is_one_of_bytes,
    to_grey,
)
from stateful_gpu_loader.transforms.color.hue import Factor, adjust_hue
from stateful_gpu_loader.transforms.recipe import (
    Draw,
    FloatArray,
    Recipe,
    WithProbability,
    in_place,
)

_LARGEST_INT32 = 2**31 - 1
_NOTHING = 4
"""An operation that changes nothing."""
_ORDERS = np.array(list(itertools.permutations(range(4))), dtype=np.float64)
_ADJUSTMENTS: tuple[Callable[[Tensor, Factor], Tensor], ...] = (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    adjust_hue,
)
_CHANGES: tuple[levels.Change, ...] = (
    levels.change_brightness,
    levels.change_contrast,
    levels.change_saturation,
    levels.change_hue,
)


class ColorJitter(Recipe):
    """Change brightness, contrast, saturation and hue in random order, as v2's ``ColorJitter``.

    Numbers: the order, as four of 0 brightness, 1 contrast, 2 saturation, 3 hue; then the four
    factors in that numbering.

    Args:
        brightness, contrast, saturation: lowest and highest factor, or one number d for
            (max(0, 1 - d), 1 + d).
        hue: lowest and highest shift, within -0.5 and 0.5, or one number d for (-d, d).

    >>> ColorJitter(brightness=0.4, hue=0.1)
    ColorJitter(brightness=(0.6, 1.4), contrast=None, saturation=None, hue=(-0.1, 0.1))
    """

    num_draws = 5
    number_names = (
        *("first", "second", "third", "fourth"),
        *("brightness", "contrast", "saturation", "hue"),
    )

    def __init__(
        self,
        brightness: float | Sequence[float] | None = None,
        contrast: float | Sequence[float] | None = None,
        saturation: float | Sequence[float] | None = None,
        hue: float | Sequence[float] | None = None,
    ) -> None:
        factors = 0.0, math.inf
        self.brightness = _range_around(1.0, "brightness", brightness, factors)
        self.contrast = _range_around(1.0, "contrast", contrast, factors)
        self.saturation = _range_around(1.0, "saturation", saturation, factors)
        self.hue = _range_around(0.0, "hue", hue, (-0.5, 0.5))
        self._ranges = (self.brightness, self.contrast, self.saturation, self.hue)

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        orders = _ORDERS[np.floor(uniforms[:, 0] * len(_ORDERS)).astype(np.int64)]
        neutral = [(1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (0.0, 0.0)]
        ranges = [given or none for given, none in zip(self._ranges, neutral, strict=True)]
        lowest, highest = np.array(ranges).T
        factors = lowest + uniforms[:, 1:] * (highest - lowest)
        return Draw(np.concatenate((orders, factors), axis=1), sizes)

    motion = in_place

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        chosen = [i for i in map(int, numbers[:4]) if self._ranges[i] is not None]
        if not chosen:
            return image
        if is_one_of_bytes(image):
            changes = [(_CHANGES[operation], numbers[4 + operation]) for operation in chosen]
            return levels.changed(image, changes)
        # The operations work plane by plane, twice as fast if planes are contiguous.
        image = image.contiguous()
        for operation in chosen:
            image = _ADJUSTMENTS[operation](image, numbers[4 + operation])
        return image

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        """Apply in two Triton launches, or else in four steps with one call per operation.

        Both give the same bytes; one float in 2**29 may differ in its last bit.
        """
        asked = np.array([i if self._ranges[i] is not None else _NOTHING for i in range(4)])
        orders = asked[numbers[:, :4].astype(np.int64)]
        if (asked == _NOTHING).all():
            return images
        if _within_kernels(images) and (kernels := _kernels(images.device)):
            made: Tensor = kernels.jitter(images, orders, numbers[:, 4:])
            return made
        steps = {operation: partial(_adjusted, operation) for operation in range(5)}
        factors = np.column_stack((numbers[:, 4:], np.zeros(len(numbers)))).astype(np.float64)
        images = images.contiguous()
        for groups in orders.T:
            chosen = np.take_along_axis(factors, groups[:, None], axis=1)[:, 0]
            images = apply_by_group(images, groups, steps, chosen)
        return images


def _adjusted(operation: int, images: Tensor, factors: Tensor, rows: IndexArray) -> Tensor:
    return images if operation == _NOTHING else _ADJUSTMENTS[operation](images, factors)


class RandomGrayscale(WithProbability):
    """Remove the color but keep the channels, as v2's ``RandomGrayscale``.

    Numbers: 1 for grey, else 0.

    Args:
        p: the probability of grey.

    >>> import torch
    >>> RandomGrayscale().apply(torch.tensor([[[100]], [[0]], [[0]]], dtype=torch.uint8), [1])
    tensor([[[29]],
    <BLANKLINE>
            [[29]],
    <BLANKLINE>
            [[29]]], dtype=torch.uint8)
    """

    def __init__(self, p: float = 0.1) -> None:
        super().__init__(p)

    motion = in_place

    def _act(self, images: Tensor) -> Tensor:
        return to_grey(images).expand(images.shape)


def _within_kernels(images: Tensor) -> bool:
    """Whether the kernels support these images, and 32 bits hold every offset within one."""
    return (
        images.device.type == "cuda"
        and images.shape[1] == 3
        and images.dtype in (torch.uint8, torch.float32)
        and math.prod(images.shape[1:]) <= _LARGEST_INT32
        and sum(map(operator.mul, images.shape[1:], images.stride()[1:])) <= _LARGEST_INT32
    )


@functools.cache
def _kernels(device: torch.device) -> ModuleType | None:
    """Return the kernels if they run here."""

    def try_out() -> ModuleType:
        from stateful_gpu_loader.transforms.color import jitter_kernels

        pixel = torch.zeros(1, 3, 1, 1, dtype=torch.uint8, device=device)
        jitter_kernels.jitter(pixel, np.array([[0, 1, 2, 3]]), np.ones((1, 4)))
        return jitter_kernels

    return kernels_that_run(try_out, "torch changes colors")


def _range_around(
    neutral: float, name: str, value: float | Sequence[float] | None, bounds: tuple[float, float]
) -> tuple[float, float] | None:
    """Return the range of a factor or shift within bounds; None if there is no argument."""
    if value is None:
        return None
    given, (least, most) = value, bounds
    if isinstance(value, (int, float)):
        if value < 0:
            raise ValueError(
                f"{name}={value!r} must not be negative. Remedy: pass (lowest, highest)"
            )
        value = (max(neutral - value, least), neutral + value)
    lowest, highest = as_range(name, value)
    if not least <= lowest <= highest <= most:
        raise ValueError(f"{name}={given!r} must lie within {least} and {most}")
    return None if lowest == highest == neutral else (lowest, highest)

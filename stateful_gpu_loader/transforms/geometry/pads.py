"""Pad and RandomZoomOut: add pixels around an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import Fill, as_fill, as_probability, as_range
from stateful_gpu_loader.transforms.batches.device import constant, on_device
from stateful_gpu_loader.transforms.batches.placement import Placement
from stateful_gpu_loader.transforms.cut import Cut
from stateful_gpu_loader.transforms.motion import scaled_and_shifted
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, Recipe

PADDING_MODES = ("constant", "edge", "reflect", "symmetric")


def as_padding_mode(padding_mode: str, fill: float | tuple[float, ...] | None) -> str:
    """Return a padding mode after a check.

    Raises:
        ValueError: the mode is unknown, or takes no number per channel.
    """
    if padding_mode not in PADDING_MODES:
        raise ValueError(f"{padding_mode = } must be one of {PADDING_MODES}")
    if isinstance(fill, tuple) and len(fill) > 1 and padding_mode != "constant":
        raise ValueError(
            f"{fill = } has a number for each channel, but {padding_mode = } takes none. "
            "Remedy: leave out fill or padding_mode"
        )
    return padding_mode


def as_padding(padding: Any) -> tuple[int, int, int, int]:
    """Return the pixels to pad left, top, right, bottom.

    Raises:
        ValueError: the padding is not an int, or 1, 2 or 4 ints.

    >>> as_padding(3), as_padding([1, 2])
    ((3, 3, 3, 3), (1, 2, 1, 2))
    """
    sides = (padding,) if isinstance(padding, int) else padding
    if (
        not isinstance(sides, (tuple, list))
        or len(sides) not in (1, 2, 4)
        or not all(isinstance(side, int) for side in sides)
    ):
        raise ValueError(f"{padding = } must be an int, or a tuple or list of 1, 2 or 4 ints")
    left, top, right, bottom = (tuple(sides) * 4)[:4]
    return left, top, right, bottom


def padded(
    images: Tensor,
    padding: Sequence[int],
    fill: float | tuple[float, ...] | None,
    padding_mode: str,
) -> Tensor:
    """Add pixels left, top, right, bottom of [..., C, H, W]; without any, return the images."""
    if not any(padding):
        return images
    from torchvision.transforms.v2 import functional as F

    values = list(fill) if isinstance(fill, tuple) else fill
    made: Tensor = F.pad_image(images, list(padding), fill=values, padding_mode=padding_mode)
    return made


_NUMBER_NAMES = ("pad_left", "pad_top", "pad_right", "pad_bottom")


class _Padding(Recipe):
    """Base of recipes whose numbers are the pixels to pad left, top, right, bottom."""

    fill: float | tuple[float, ...] | None
    padding_mode = "constant"

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        return padded(image, [int(side) for side in numbers], self.fill, self.padding_mode)

    def cut(self, cut: Cut, numbers: Sequence[float]) -> Cut | None:
        return None if any(numbers) else cut

    def place(self, placement: Placement, numbers: IndexArray | FloatArray) -> Placement | None:
        return None if numbers.any() else placement

    def motion(self, numbers: IndexArray | FloatArray, sizes: IndexArray) -> FloatArray:
        return scaled_and_shifted(np.ones((1, 2)), numbers[:, :2])


class Pad(_Padding):
    """Add pixels around the image, as ``torchvision.transforms.v2.Pad``.

    Numbers: pixels padded left, top, right, bottom.

    Args:
        padding: pixels to pad: one int for all sides, two for left and right and for top and
            bottom, or four for left, top, right, bottom. Negative padding crops.
        fill: value of the padding: one number, or one for each channel.
        padding_mode: "constant", "edge", "reflect" or "symmetric".

    Raises:
        TypeError, ValueError: an argument is invalid, or ``fill`` has a number for each channel and
            the mode is not "constant".

    >>> Pad((1, 2)).draw(np.empty((1, 0)), np.array([[375, 500]])).sizes
    array([[379, 502]])
    """

    number_names = _NUMBER_NAMES

    def __init__(
        self, padding: int | Sequence[int], fill: Fill = 0, padding_mode: str = "constant"
    ) -> None:
        self.padding = as_padding(padding)
        self.fill = as_fill(fill)
        self.padding_mode = as_padding_mode(padding_mode, self.fill)

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        """Compute the sizes; nothing is random.

        Raises:
            ValueError: negative padding leaves no pixels.
        """
        left, top, right, bottom = self.padding
        after = sizes + np.array([top + bottom, left + right])
        if (after < 1).any():
            i = int(np.flatnonzero((after < 1).any(axis=1))[0])
            (height, width), (new_height, new_width) = sizes[i].tolist(), after[i].tolist()
            raise ValueError(
                f"{self.fingerprint()} would make {new_height}x{new_width} of sample {i} of the "
                f"batch, which is {height}x{width} (height x width). Remedy: crop less"
            )
        return Draw(np.tile(np.array(self.padding, dtype=np.int64), (len(sizes), 1)), after)

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        return self.apply(images, self.padding)


class RandomZoomOut(_Padding):
    """Put the image into a larger one, with a probability, as v2's ``RandomZoomOut``.

    Numbers: pixels padded left, top, right, bottom; all 0 if the image does not change.

    Args:
        fill: value of the padding: one number, or one for each channel.
        side_range: lowest and highest factor of the image's height and width, at least 1.
        p: the probability.

    >>> RandomZoomOut().draw(np.full((1, 4), 0.25), np.array([[375, 500]])).numbers
    array([[ 93,  70, 282, 211]])
    """

    num_draws = 4
    number_names = _NUMBER_NAMES

    def __init__(
        self, fill: Fill = 0, side_range: Sequence[float] = (1.0, 4.0), p: float = 0.5
    ) -> None:
        self.fill = as_fill(fill)
        self.side_range = as_range("side_range", side_range)
        self.p = as_probability(p)
        if self.side_range[0] < 1.0:
            raise ValueError(f"{side_range = } must be at least 1")

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        lowest, highest = self.side_range
        factors = lowest + uniforms[:, 1:2] * (highest - lowest)
        factors[uniforms[:, 0] >= self.p] = 1.0
        after = np.floor(sizes * factors).astype(np.int64)
        room = after - sizes
        # Left and right come first.
        before = np.floor(room * uniforms[:, :1:-1]).astype(np.int64)
        numbers = np.concatenate((before[:, ::-1], (room - before)[:, ::-1]), axis=1)
        return Draw(numbers, after)

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        # Images of one size keep one size, but different places.
        whole = numbers.astype(np.int64)
        if not whole.any():
            return images
        n, channels, height, width = images.shape
        values = self.fill if isinstance(self.fill, tuple) else (self.fill or 0.0,)
        filling = constant(values, torch.float32, images.device).to(images.dtype)
        left, top, right, bottom = whole[0].tolist()
        size = n, channels, top + height + bottom, left + width + right
        made = filling.view(1, -1, 1, 1).expand(size).contiguous()
        corners = on_device(whole[:, :2].T, images.device)
        rows = corners[1].unsqueeze(1) + torch.arange(height, device=images.device)
        columns = corners[0].unsqueeze(1) + torch.arange(width, device=images.device)
        where = (
            torch.arange(n, device=images.device).view(-1, 1, 1, 1),
            torch.arange(channels, device=images.device).view(-1, 1, 1),
            rows.view(n, 1, height, 1),
            columns.view(n, 1, 1, width),
        )
        return made.index_put_(where, images)

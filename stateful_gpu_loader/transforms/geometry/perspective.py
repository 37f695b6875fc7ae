"""RandomPerspective: show the image as if seen from the side.

torchvision computes the map by least squares, whose last bits depend on the library. Here the map
is a formula, the same everywhere.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import (
    Fill,
    Interpolation,
    as_fill,
    as_interpolation,
    as_probability,
)
from stateful_gpu_loader.transforms.batches.device import on_device
from stateful_gpu_loader.transforms.geometry.affine import sample
from stateful_gpu_loader.transforms.recipe import BatchwiseRecipe, Draw, FloatArray

_CORNERS = ("top_left", "top_right", "bottom_right", "bottom_left")


class RandomPerspective(BatchwiseRecipe):
    """Move the corners inwards, with a probability, as v2's ``RandomPerspective``.

    Numbers: 1 to act, else 0; then the new positions of the four corners in pixels: x and y of the
    top left, top right, bottom right and bottom left. If the new corners are not convex, the image
    does not change. Boxes and masks are not supported.

    Args:
        distortion_scale: largest move of a corner, 0 to 1: 1 reaches the middle.
        p: the probability.
        interpolation: "nearest" or "bilinear".
        fill: value outside the image: one number, or one per channel. None gives zeros, into
            which the border is blended.

    >>> RandomPerspective().draw(np.full((1, 9), 0.25), np.array([[375, 500]])).numbers
    array([[  1,  31,  23, 405,  23, 405, 304,  31, 304]])
    """

    num_draws = 9
    number_names = ("acts", *(f"{corner}_{axis}" for corner in _CORNERS for axis in "xy"))

    def __init__(
        self,
        distortion_scale: float = 0.5,
        p: float = 0.5,
        interpolation: Interpolation = "bilinear",
        fill: Fill = 0,
    ) -> None:
        self.distortion_scale = float(distortion_scale)
        self.p = as_probability(p)
        self.interpolation = as_interpolation(interpolation, ("nearest", "bilinear"))
        self.fill = as_fill(fill)
        if not 0 <= self.distortion_scale <= 1:
            raise ValueError(f"{distortion_scale = } must lie within 0 and 1")

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        room = np.floor(self.distortion_scale * (sizes // 2)).astype(np.int64) + 1
        # x and y of the corners: [n, 4, 2].
        inwards = np.floor(uniforms[:, 1:].reshape(-1, 4, 2) * room[:, None, ::-1]).astype(np.int64)
        far = (sizes - room)[:, None, ::-1] + inwards
        is_far = np.array([[False, False], [True, False], [True, True], [False, True]])
        corners = np.where(is_far, far, inwards)
        acts = (uniforms[:, 0] < self.p) & _is_convex(corners)
        numbers = np.column_stack((acts, corners.reshape(-1, 8) * acts[:, None]))
        return Draw(numbers.astype(np.int64), sizes)

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        rows = np.flatnonzero(numbers[:, 0])
        if not len(rows):
            return images
        height, width = images.shape[2:]
        dtype = torch.float64 if images.dtype is torch.float64 else torch.float32
        corners = numbers[rows, 1:].astype(np.float64).reshape(-1, 4, 2)
        # Rounded to float32 as in torchvision; the rows share the copy.
        maps = perspective_maps(corners, (height, width)).astype(np.float32).astype(np.float64)
        packed = on_device(np.column_stack((rows, maps)), images.device)
        chosen, coefficients = packed[:, 0].to(torch.int64), packed[:, 1:].to(dtype)
        grid = _grid(coefficients, (height, width))
        made = sample(images.index_select(0, chosen), grid, self.interpolation, self.fill)
        return images.clone().index_copy_(0, chosen, made)


def _is_convex(corners: IndexArray) -> npt.NDArray[np.bool_]:
    """Whether the corners [n, 4, 2], clockwise from the top left, form a convex shape."""
    before, after = np.roll(corners, 1, axis=1) - corners, np.roll(corners, -1, axis=1) - corners
    turns = before[..., 0] * after[..., 1] - before[..., 1] * after[..., 0]
    convex: npt.NDArray[np.bool_] = np.all(turns < 0, axis=1)
    return convex


def perspective_maps(corners: FloatArray, size: tuple[int, int]) -> FloatArray:
    """Return maps from a pixel of the result to its place in the image.

    Heckbert, "Fundamentals of texture mapping and image warping", 1989: the map of the unit square
    to four corners, and its adjugate for the inverse.

    Args:
        corners: float64 [n, 4, 2]: x and y of the new corners, a convex shape.
        size: (height, width) of the images in pixels.

    Returns:
        float64 [n, 8]: the coefficients a to h of the maps,
        ``x' = (a x + b y + c) / (g x + h y + 1)`` and ``y' = (d x + e y + f) / (g x + h y + 1)``.

    >>> corners = np.array([[[0, 0], [4, 0], [4, 2], [0, 2]]], dtype=np.float64)
    >>> perspective_maps(corners, (5, 9)).tolist()
    [[2.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0]]
    """
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = np.moveaxis(corners, 0, -1)
    sum_x, sum_y = x0 - x1 + x2 - x3, y0 - y1 + y2 - y3
    x12, y12, x32, y32 = x1 - x2, y1 - y2, x3 - x2, y3 - y2
    area = x12 * y32 - x32 * y12
    g, h = (sum_x * y32 - x32 * sum_y) / area, (x12 * sum_y - sum_x * y12) / area
    a, b, c = x1 - x0 + g * x1, x3 - x0 + h * x3, x0
    d, e, f = y1 - y0 + g * y1, y3 - y0 + h * y3, y0
    last = a * e - b * d
    width, height = size[1] - 1, size[0] - 1
    back = (
        *(width * (e - f * h), width * (c * h - b), width * (b * f - c * e)),
        *(height * (f * g - d), height * (a - c * g), height * (c * d - a * f)),
        *(d * h - e * g, b * g - a * h),
    )
    # Adding 0.0 removes negative zeros.
    maps: FloatArray = np.stack(back, axis=-1) / last[:, None] + 0.0
    return maps


def _grid(coefficients: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the source of each pixel, [n, h, w, 2], with -1 and 1 for the outer edges."""
    height, width = size
    dtype, device = coefficients.dtype, coefficients.device
    x = torch.arange(width, dtype=dtype, device=device).add_(0.5).view(1, 1, -1)
    y = torch.arange(height, dtype=dtype, device=device).add_(0.5).view(1, -1, 1)
    a, b, c, d, e, f, g, h = coefficients.view(-1, 8, 1, 1).unbind(1)
    below = (x * g + y * h).add_(1.0)

    def along(for_x: Tensor, for_y: Tensor, alone: Tensor, half: float) -> Tensor:
        above = (x * (for_x / half) + y * (for_y / half)).add_(alone / half)
        return above.div_(below).sub_(1.0)

    return torch.stack((along(a, b, c, 0.5 * width), along(d, e, f, 0.5 * height)), dim=-1)

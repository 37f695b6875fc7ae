"""RandAugment and TrivialAugmentWide: random operations of random strength for each image.

In a batch, images with the same operation are processed in one call, each with its own magnitude.
Shears, translations and rotations share one call.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

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
)
from stateful_gpu_loader.transforms.batches.device import apply_by_group
from stateful_gpu_loader.transforms.color.adjustments import (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    adjust_sharpness,
    autocontrast,
    equalize,
    invert,
    posterize,
    solarize,
)
from stateful_gpu_loader.transforms.geometry.affine import inverse_affine_matrices, warp
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, Recipe


class Operation(IntEnum):
    """Operations on an image, in torchvision's order, with the meaning of their magnitudes."""

    IDENTITY = 0
    SHEAR_X = 1
    """Pixels to the side for each pixel down."""
    SHEAR_Y = 2
    """Pixels down for each pixel to the side."""
    TRANSLATE_X = 3
    """Pixels to the right, rounded towards zero."""
    TRANSLATE_Y = 4
    """Pixels down, rounded towards zero."""
    ROTATE = 5
    """Degrees, counter-clockwise."""
    BRIGHTNESS = 6
    """The factor minus 1; the same for the next three."""
    COLOR = 7
    CONTRAST = 8
    SHARPNESS = 9
    POSTERIZE = 10
    """Number of bits kept."""
    SOLARIZE = 11
    """Threshold, as a share of the brightest value."""
    AUTO_CONTRAST = 12
    EQUALIZE = 13
    INVERT = 14
    """Only in AutoAugment."""


_NUM_CHOICES = 14
"""Number of operations in RandAugment and TrivialAugmentWide: all but INVERT."""

_IS_SIGNED = np.array([Operation.SHEAR_X <= one <= Operation.SHARPNESS for one in Operation])
_WARP = int(Operation.SHEAR_X)
_QUARTER_TURNS = len(Operation)
"""Group ``_QUARTER_TURNS + k`` is a rotation by k right angles, which needs no sampling."""
_GEOMETRIC = range(Operation.SHEAR_X, Operation.ROTATE + 1)
_WITH_FACTOR = range(Operation.BRIGHTNESS, Operation.SHARPNESS + 1)

_WITH_PARAMETER: dict[int, Callable[[Tensor, Tensor], Tensor]] = {
    Operation.BRIGHTNESS: adjust_brightness,
    Operation.COLOR: adjust_saturation,
    Operation.CONTRAST: adjust_contrast,
    Operation.SHARPNESS: adjust_sharpness,
    Operation.POSTERIZE: posterize,
    Operation.SOLARIZE: solarize,
}
_WITHOUT_PARAMETER: dict[int, Callable[[Tensor], Tensor]] = {
    Operation.AUTO_CONTRAST: autocontrast,
    Operation.EQUALIZE: equalize,
    Operation.INVERT: invert,
}


def highest_magnitudes(
    *, shear: float, translate: float, rotate: float, factor: float
) -> FloatArray:
    """Return the magnitude of each operation in the last bin, float64 [number of operations].

    0 for operations without a magnitude, or with another rule.
    """
    highest = np.zeros(len(Operation))
    highest[[Operation.SHEAR_X, Operation.SHEAR_Y]] = shear
    highest[[Operation.TRANSLATE_X, Operation.TRANSLATE_Y]] = translate
    highest[Operation.ROTATE] = rotate
    highest[Operation.BRIGHTNESS : Operation.SHARPNESS + 1] = factor
    return highest


def pick_operations(uniforms: FloatArray) -> IndexArray:
    """Return operations [n], all equally likely, from uniforms [n] in [0, 1).

    >>> pick_operations(np.array([0.0, 0.5, 0.99]))
    array([ 0,  7, 13])
    """
    operations: IndexArray = np.floor(uniforms * _NUM_CHOICES).astype(np.int64)
    return operations


def magnitudes(
    operations: IndexArray, bins: IndexArray, num_bins: int, highest: FloatArray, fewest_bits: int
) -> FloatArray:
    """Return the magnitude of a bin, as in torchvision's float32 ``linspace`` of ``num_bins``.

    Args:
        operations: int64 [n].
        bins: int64 [n]: 0 <= bin < num_bins.
        num_bins: at least 2.
        highest: float64 [n]: the magnitude in the last bin; not read for POSTERIZE and SOLARIZE.
        fewest_bits: bits that POSTERIZE keeps in the last bin; in the first it keeps all 8.

    Returns:
        float64 [n]; 0 for operations without a magnitude.

    >>> operations = np.array([Operation.ROTATE, Operation.POSTERIZE, Operation.SOLARIZE])
    >>> magnitudes(operations, np.array([20, 20, 20]), 31, np.full(3, 135.0), 2)
    array([90.        ,  4.        ,  0.33333334])
    """
    is_solarize = operations == Operation.SOLARIZE
    start = np.where(is_solarize, 1.0, 0.0)
    end = np.where(is_solarize, 0.0, highest)
    values = _linspace(start, end, num_bins, bins)
    bits = np.rint(8.0 - bins / ((num_bins - 1) / (8 - fewest_bits)))
    return np.where(operations == Operation.POSTERIZE, bits, values)


def with_signs(operations: IndexArray, values: FloatArray, uniforms: FloatArray) -> FloatArray:
    """Negate half of the magnitudes [n] with a direction, chosen by uniforms [n].

    >>> with_signs(np.array([5, 5, 10]), np.array([30.0, 30.0, 4.0]), np.array([0.2, 0.7, 0.2]))
    array([-30.,  30.,   4.])
    """
    return np.where(_IS_SIGNED[operations] & (uniforms < 0.5) & (values != 0), -values, values)


def checked_num_bins(num_magnitude_bins: Any) -> int:
    """Return a number of bins.

    Raises:
        TypeError: the number is not whole.
        ValueError: the number is below 2.
    """
    count = operator.index(num_magnitude_bins)
    if count < 2:
        raise ValueError(f"{num_magnitude_bins = } is too small. Remedy: pass at least 2")
    return count


def _linspace(start: FloatArray, end: FloatArray, num_bins: int, bins: IndexArray) -> FloatArray:
    """``torch.linspace`` from the nearer end, rounded to float32 once, as on CPUs with FMA.

    Exact products in float64 make it the same everywhere.
    """
    first, last = start.astype(np.float32), end.astype(np.float32)
    step = ((last - first) / np.float32(num_bins - 1)).astype(np.float64)
    from_first = first + step * bins
    from_last = last - step * (num_bins - 1 - bins)
    line = np.where(bins < num_bins // 2, from_first, from_last)
    values: FloatArray = line.astype(np.float32).astype(np.float64)
    return values


@dataclass(frozen=True)
class Sampling:
    """Settings for warping an image."""

    interpolation: str = "nearest"
    """"nearest" or "bilinear"."""
    fill: float | tuple[float, ...] | None = None
    """Value outside the image, see :func:`warp`."""

    def warp(self, images: Tensor, operations: IndexArray, magnitudes: FloatArray) -> Tensor:
        """Shear, translate or rotate each image by its own magnitude.

        Args:
            images: [n, C, H, W], uint8 or float.
            operations: int64 [n], from SHEAR_X to ROTATE.
            magnitudes: float64 [n].
        """
        matrices = _matrices(operations, magnitudes, (images.shape[2], images.shape[3]))
        return warp(images, matrices, self.interpolation, self.fill)


def _matrices(operations: IndexArray, magnitudes: FloatArray, size: tuple[int, int]) -> FloatArray:
    """Inverse affine matrices [n, 6]. Shears fix the upper left corner, rotations the center."""
    matrices = np.empty((len(operations), 6))
    is_shear = operations <= Operation.SHEAR_Y
    is_rotation = operations == Operation.ROTATE
    is_translation = ~(is_shear | is_rotation)
    if is_shear.any():
        # Python's math, as in torchvision; NumPy's last bit depends on the CPU.
        degrees = [math.degrees(math.atan(value)) for value in magnitudes[is_shear].tolist()]
        shears = _along(operations[is_shear] == Operation.SHEAR_Y, np.array(degrees))
        matrices[is_shear] = inverse_affine_matrices(size, shears=shears, center=(0.0, 0.0))
    if is_rotation.any():
        angles = -(magnitudes[is_rotation] % 360.0)
        matrices[is_rotation] = inverse_affine_matrices(size, angles=angles)
    if is_translation.any():
        pixels = np.trunc(magnitudes[is_translation])
        translations = _along(operations[is_translation] == Operation.TRANSLATE_Y, pixels)
        matrices[is_translation] = inverse_affine_matrices(size, translations=translations)
    return matrices


def _along(is_vertical: npt.NDArray[np.bool_], values: FloatArray) -> FloatArray:
    """Return pairs (x, y) [n, 2] of a value and 0."""
    return np.stack((np.where(is_vertical, 0.0, values), np.where(is_vertical, values, 0.0)), -1)


def augment(image: Tensor, operation: int, magnitude: float, how: Sampling) -> Tensor:
    """Apply one operation to one image, as torchvision's automatic augmentations do.

    Args:
        image: [C, H, W] with 1 or 3 channels, uint8 or float in [0, 1].
        operation: see :class:`Operation`.
        magnitude: in the operation's unit.
        how: settings for operations that move pixels.

    Raises:
        TypeError: the image has another dtype, or the operation does not support its channels.

    >>> image = torch.tensor([10, 200], dtype=torch.uint8).view(1, 1, 2)
    >>> augment(image, Operation.SOLARIZE, 0.5, Sampling()).flatten()
    tensor([10, 55], dtype=torch.uint8)
    """
    _check_dtype(image)
    group = _group(operation, magnitude, image.shape[-1] == image.shape[-2])
    if group == Operation.IDENTITY:
        return image
    # Operations are twice as fast if planes are contiguous.
    images = image.contiguous().unsqueeze(0)
    if group == _WARP:
        row = np.array([operation]), np.array([magnitude])
        return how.warp(images, *row).squeeze(0)
    parameter = _parameter(operation, magnitude)
    parameters = torch.full((1, 1, 1, 1), parameter, dtype=torch.float64, device=image.device)
    return _carry_out(group, images, parameters).squeeze(0)


def augment_batch(
    images: Tensor, operations: IndexArray, magnitudes: FloatArray, how: Sampling
) -> Tensor:
    """Call :func:`augment` for n images [n, C, H, W], with an operation and magnitude [n] each.

    >>> images = torch.tensor([[10, 200]] * 2, dtype=torch.uint8).view(2, 1, 1, 2)
    >>> operations = np.array([Operation.SOLARIZE, Operation.TRANSLATE_X])
    >>> augment_batch(images, operations, np.array([0.5, 1.2]), Sampling(fill=0.0)).flatten(1)
    tensor([[10, 55],
            [ 0, 10]], dtype=torch.uint8)
    """
    _check_dtype(images)
    is_square = images.shape[-1] == images.shape[-2]
    pairs = list(zip(operations.tolist(), magnitudes.tolist(), strict=True))
    groups = np.array([_group(*pair, is_square) for pair in pairs], dtype=np.int64)
    parameters = np.array([_parameter(*pair) for pair in pairs])

    def carry_out(group: int, chosen: Tensor, numbers: Tensor, rows: IndexArray) -> Tensor:
        if group == _WARP:
            return how.warp(chosen, operations[rows], magnitudes[rows])
        return _carry_out(group, chosen, numbers)

    steps = {group: partial(carry_out, group) for group in set(groups.tolist())}
    return apply_by_group(images, groups, steps, parameters)


def _carry_out(group: int, images: Tensor, parameters: Tensor) -> Tensor:
    """Apply all but warps to images [n, C, H, W], with parameters float64 [n, 1, 1, 1]."""
    if group in _WITH_PARAMETER:
        return _WITH_PARAMETER[group](images, parameters)
    if group in _WITHOUT_PARAMETER:
        return _WITHOUT_PARAMETER[group](images)
    if group > _QUARTER_TURNS:
        return torch.rot90(images, group - _QUARTER_TURNS, dims=(-2, -1))
    return images


def _group(operation: int, magnitude: float, is_square: bool) -> int:
    """Return the group of an image: an operation, all sampled warps, or a number of quarter turns.

    torchvision rotates by right angles without sampling.
    """
    if operation not in _GEOMETRIC:
        return operation
    if operation == Operation.ROTATE:
        turns = magnitude / 90.0
        if turns.is_integer() and (is_square or turns % 2 == 0):
            quarters = int(turns) % 4
            return _QUARTER_TURNS + quarters if quarters else Operation.IDENTITY
    return _WARP


def _parameter(operation: int, magnitude: float) -> float:
    """Return the parameter of a color operation: a factor, a number of levels or a threshold."""
    if operation == Operation.POSTERIZE:
        return 2.0 ** int(magnitude)
    return 1.0 + magnitude if operation in _WITH_FACTOR else magnitude


def _check_dtype(images: Tensor) -> None:
    if images.dtype is not torch.uint8 and not images.is_floating_point():
        raise TypeError(f"images have dtype {images.dtype}. Remedy: pass uint8, or float in [0, 1]")


_RAND_HIGHEST = highest_magnitudes(shear=0.3, translate=0.0, rotate=30.0, factor=0.9)
_RAND_HIGHEST_SHARE_OF_SIDE = 150.0 / 331.0
_RAND_FEWEST_BITS = 4
_TRIVIAL_HIGHEST = highest_magnitudes(shear=0.99, translate=32.0, rotate=135.0, factor=0.99)
_TRIVIAL_FEWEST_BITS = 2


class AugmentPolicy(Recipe):
    """Base of recipes that choose among the operations of :class:`Operation`.

    Numbers: for each operation in order, its :class:`Operation` and its magnitude.

    Args:
        interpolation: "nearest" or "bilinear".
        fill: value outside the image: one number, one for each channel, or None.
    """

    def __init__(self, interpolation: Interpolation, fill: Fill) -> None:
        self.interpolation = as_interpolation(interpolation, ("nearest", "bilinear"))
        self.fill = as_fill(fill)
        self._sampling = Sampling(self.interpolation, self.fill)

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        for operation, magnitude in zip(numbers[::2], numbers[1::2], strict=True):
            image = augment(image, int(operation), magnitude, self._sampling)
        return image

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        for column in range(0, numbers.shape[1], 2):
            operations = numbers[:, column].astype(np.int64)
            magnitudes = numbers[:, column + 1].astype(np.float64)
            images = augment_batch(images, operations, magnitudes, self._sampling)
        return images


def magnitudes_for_sizes(
    operations: IndexArray,
    bins: IndexArray,
    num_bins: int,
    sizes: IndexArray,
    share_of_side: float = _RAND_HIGHEST_SHARE_OF_SIDE,
) -> FloatArray:
    """Return :func:`magnitudes` on the scale of RandAugment, AutoAugment and AugMix.

    Args:
        operations: int64 [n].
        bins: int64 [n]: 0 <= bin < num_bins.
        num_bins: at least 2.
        sizes: int64 [n, 2]: height and width of the images, in pixels.
        share_of_side: largest shift of the last bin, as a fraction of width or height.
    """
    highest = _RAND_HIGHEST[operations]
    for translation, side in ((Operation.TRANSLATE_X, 1), (Operation.TRANSLATE_Y, 0)):
        highest = np.where(operations == translation, share_of_side * sizes[:, side], highest)
    return magnitudes(operations, bins, num_bins, highest, _RAND_FEWEST_BITS)


class RandAugment(AugmentPolicy):
    """Apply some of 14 operations in order, as ``torchvision.transforms.v2.RandAugment``.

    Cubuk, Zoph, Shlens and Le, "RandAugment: Practical automated data augmentation with a reduced
    search space", NeurIPS 2020.

    Numbers: for each operation in order, its :class:`Operation` and its magnitude.

    Args:
        num_ops: number of operations, at least 0; an operation may occur several times.
        magnitude: bin of all magnitudes, 0 <= magnitude < num_magnitude_bins.
        num_magnitude_bins: number of magnitudes, at least 2.
        interpolation: "nearest" or "bilinear".
        fill: value outside the image: one number, or one per channel. None gives zeros, into
            which the border is blended.

    >>> recipe = RandAugment(num_ops=2)
    >>> recipe.draw(np.array([[0.4, 0.9, 0.3, 0.1]]), np.array([[375, 500]])).numbers
    array([[  5.        ,   9.        ,   4.        , -50.98187256]])
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: Interpolation = "nearest",
        fill: Fill = None,
    ) -> None:
        super().__init__(interpolation, fill)
        self.num_ops = operator.index(num_ops)
        self.magnitude = operator.index(magnitude)
        self.num_magnitude_bins = checked_num_bins(num_magnitude_bins)
        if self.num_ops < 0:
            raise ValueError(f"{num_ops = } must not be negative")
        if not 0 <= self.magnitude < self.num_magnitude_bins:
            raise ValueError(
                f"{magnitude = } is outside {num_magnitude_bins = }. Remedy: pass "
                f"0 <= magnitude < {num_magnitude_bins}"
            )
        self.num_draws = 2 * self.num_ops
        self.number_names = tuple(
            f"{name}_{number}"
            for number in range(1, self.num_ops + 1)
            for name in ("operation", "magnitude")
        )

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        numbers = np.empty((len(sizes), 2 * self.num_ops))
        for column in range(0, 2 * self.num_ops, 2):
            operations = pick_operations(uniforms[:, column])
            bins = np.full(len(operations), self.magnitude)
            values = magnitudes_for_sizes(operations, bins, self.num_magnitude_bins, sizes)
            numbers[:, column] = operations
            numbers[:, column + 1] = with_signs(operations, values, uniforms[:, column + 1])
        return Draw(numbers, sizes)


class TrivialAugmentWide(AugmentPolicy):
    """Apply one of 14 operations, as ``torchvision.transforms.v2.TrivialAugmentWide``.

    Müller and Hutter, "TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation", ICCV
    2021.

    Numbers: the :class:`Operation` and its magnitude.

    Args:
        num_magnitude_bins: number of magnitudes, at least 2.
        interpolation: "nearest" or "bilinear".
        fill: value outside the image: one number, or one per channel. None gives zeros, into
            which the border is blended.

    >>> TrivialAugmentWide().draw(np.array([[0.4, 0.7, 0.9]]), np.array([[375, 500]])).numbers
    array([[ 5. , 94.5]])
    """

    num_draws = 3
    number_names = ("operation", "magnitude")

    def __init__(
        self,
        num_magnitude_bins: int = 31,
        interpolation: Interpolation = "nearest",
        fill: Fill = None,
    ) -> None:
        super().__init__(interpolation, fill)
        self.num_magnitude_bins = checked_num_bins(num_magnitude_bins)

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        operations = pick_operations(uniforms[:, 0])
        bins = np.floor(uniforms[:, 1] * self.num_magnitude_bins).astype(np.int64)
        highest = _TRIVIAL_HIGHEST[operations]
        values = magnitudes(
            operations, bins, self.num_magnitude_bins, highest, _TRIVIAL_FEWEST_BITS
        )
        values = with_signs(operations, values, uniforms[:, 2])
        return Draw(np.stack((operations.astype(np.float64), values), axis=1), sizes)

"""RandAugment and TrivialAugmentWide: random operations for each image."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import (
    Fill,
    Interpolation,
    as_fill,
    as_interpolation,
)
from stateful_gpu_loader.transforms.policies.operations import (
    Operation,
    Sampling,
    augment,
    augment_batch,
    checked_num_bins,
    highest_magnitudes,
    magnitudes,
    pick_operations,
    with_signs,
)
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, Recipe

_RAND_HIGHEST = highest_magnitudes(shear=0.3, translate=0.0, rotate=30.0, factor=0.9)
_RAND_HIGHEST_SHARE_OF_SIDE = 150.0 / 331.0
_RAND_FEWEST_BITS = 4
_TRIVIAL_HIGHEST = highest_magnitudes(shear=0.99, translate=32.0, rotate=135.0, factor=0.99)
_TRIVIAL_FEWEST_BITS = 2


class AugmentPolicy(Recipe):
    """Base of recipes that choose among the operations of :mod:`.operations`.

    Numbers: for each operation in turn, which one and its magnitude.

    Args:
        interpolation: "nearest" or "bilinear".
        fill: what lies outside the image: one number, one for each channel, or None.

    Raises:
        TypeError, ValueError: an argument is of another kind or not supported.
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


class RandAugment(AugmentPolicy):
    """Some of 14 operations after each other, as ``torchvision.transforms.v2.RandAugment``.

    Cubuk, Zoph, Shlens and Le, "RandAugment: Practical automated data augmentation with a reduced
    search space", NeurIPS 2020.

    Numbers: for each operation in turn, which one, counted as
    :class:`~.operations.Operation`, and its magnitude.

    Args:
        num_ops: how many operations, 0 or more; one may come several times.
        magnitude: the bin of all their magnitudes, 0 <= magnitude < num_magnitude_bins.
        num_magnitude_bins: how many magnitudes there are, at least 2.
        interpolation: "nearest" or "bilinear", where pixels move.
        fill: what lies outside the image: one number, one for each channel, or None for zeros
            into which the border is blended.

    Raises:
        TypeError, ValueError: an argument is of another kind or outside its range.

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
                f"{magnitude = } is no bin of {num_magnitude_bins = }. Remedy: pass "
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
            values = self._magnitudes(operations, sizes)
            numbers[:, column] = operations
            numbers[:, column + 1] = with_signs(operations, values, uniforms[:, column + 1])
        return Draw(numbers, sizes)

    def _magnitudes(self, operations: IndexArray, sizes: IndexArray) -> FloatArray:
        highest = _RAND_HIGHEST[operations]
        for translation, side in ((Operation.TRANSLATE_X, 1), (Operation.TRANSLATE_Y, 0)):
            furthest = _RAND_HIGHEST_SHARE_OF_SIDE * sizes[:, side]
            highest = np.where(operations == translation, furthest, highest)
        bins = np.full(len(operations), self.magnitude)
        return magnitudes(operations, bins, self.num_magnitude_bins, highest, _RAND_FEWEST_BITS)


class TrivialAugmentWide(AugmentPolicy):
    """One of 14 operations, as ``torchvision.transforms.v2.TrivialAugmentWide``.

    Müller and Hutter, "TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation", ICCV
    2021.

    Numbers: the operation, counted as :class:`~.operations.Operation`, and its magnitude.

    Args:
        num_magnitude_bins: how many magnitudes there are, at least 2.
        interpolation: "nearest" or "bilinear", where pixels move.
        fill: what lies outside the image: one number, one for each channel, or None for zeros
            into which the border is blended.

    Raises:
        TypeError, ValueError: an argument is of another kind or outside its range.

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

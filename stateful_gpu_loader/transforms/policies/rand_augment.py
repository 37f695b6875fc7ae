"""RandAugment: a few random operations for each image, all of one strength."""

from __future__ import annotations

import operator

import numpy as np

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import Fill, Interpolation
from stateful_gpu_loader.transforms.policies.augment_policy import AugmentPolicy
from stateful_gpu_loader.transforms.policies.augment_space import (
    Operation,
    checked_num_bins,
    magnitudes,
    pick_operations,
    with_signs,
)
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray

_HIGHEST = {
    Operation.SHEAR_X: 0.3,
    Operation.SHEAR_Y: 0.3,
    Operation.ROTATE: 30.0,
    Operation.BRIGHTNESS: 0.9,
    Operation.COLOR: 0.9,
    Operation.CONTRAST: 0.9,
    Operation.SHARPNESS: 0.9,
}
_HIGHEST_OF_ALL = np.array([_HIGHEST.get(operation, 0.0) for operation in Operation])
_HIGHEST_SHARE_OF_SIDE = 150.0 / 331.0
_FEWEST_BITS = 4


class RandAugment(AugmentPolicy):
    """Some of 14 operations after each other, as ``torchvision.transforms.v2.RandAugment``.

    Cubuk, Zoph, Shlens and Le, "RandAugment: Practical automated data augmentation with a reduced
    search space", NeurIPS 2020.

    Numbers: for each operation in turn, which one, counted as
    :class:`~.augment_space.Operation`, and its magnitude.

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
        highest = _HIGHEST_OF_ALL[operations]
        for translation, side in ((Operation.TRANSLATE_X, 1), (Operation.TRANSLATE_Y, 0)):
            furthest = _HIGHEST_SHARE_OF_SIDE * sizes[:, side]
            highest = np.where(operations == translation, furthest, highest)
        bins = np.full(len(operations), self.magnitude)
        return magnitudes(operations, bins, self.num_magnitude_bins, highest, _FEWEST_BITS)

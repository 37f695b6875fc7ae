"""TrivialAugmentWide: one random operation for each image, as strong as chance has it."""

from __future__ import annotations

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
    Operation.SHEAR_X: 0.99,
    Operation.SHEAR_Y: 0.99,
    Operation.TRANSLATE_X: 32.0,
    Operation.TRANSLATE_Y: 32.0,
    Operation.ROTATE: 135.0,
    Operation.BRIGHTNESS: 0.99,
    Operation.COLOR: 0.99,
    Operation.CONTRAST: 0.99,
    Operation.SHARPNESS: 0.99,
}
_HIGHEST_OF_ALL = np.array([_HIGHEST.get(operation, 0.0) for operation in Operation])
_FEWEST_BITS = 2


class TrivialAugmentWide(AugmentPolicy):
    """One of 14 operations, as ``torchvision.transforms.v2.TrivialAugmentWide``.

    Müller and Hutter, "TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation", ICCV
    2021.

    Numbers: the operation, counted as :class:`~.augment_space.Operation`, and its magnitude.

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
        highest = _HIGHEST_OF_ALL[operations]
        values = magnitudes(operations, bins, self.num_magnitude_bins, highest, _FEWEST_BITS)
        values = with_signs(operations, values, uniforms[:, 2])
        return Draw(np.stack((operations.astype(np.float64), values), axis=1), sizes)

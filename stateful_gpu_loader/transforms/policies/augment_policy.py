"""AugmentPolicy: what TrivialAugmentWide and RandAugment share: their pixels."""

from __future__ import annotations

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
from stateful_gpu_loader.transforms.policies.augment_operations import augment, augment_batch
from stateful_gpu_loader.transforms.policies.augment_warps import Sampling
from stateful_gpu_loader.transforms.recipe import FloatArray, Recipe


class AugmentPolicy(Recipe):
    """Base of recipes that choose among the operations of :mod:`.augment_space`.

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

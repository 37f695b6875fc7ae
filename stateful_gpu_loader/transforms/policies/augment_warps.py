"""The shears, translations and rotations of TrivialAugmentWide and RandAugment, in one call."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.geometry.warp import inverse_affine_matrices, warp
from stateful_gpu_loader.transforms.policies.augment_space import Operation
from stateful_gpu_loader.transforms.recipe import FloatArray


@dataclass(frozen=True)
class Sampling:
    """How pixels are made where others move there."""

    interpolation: str = "nearest"
    """"nearest" or "bilinear"."""
    fill: float | tuple[float, ...] | None = None
    """What lies outside the image, see :func:`warp`."""

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
    """Inverse affine matrices [n, 6]: shears keep the upper left corner, rotations the center."""
    matrices = np.empty((len(operations), 6))
    is_shear = operations <= Operation.SHEAR_Y
    is_rotation = operations == Operation.ROTATE
    is_translation = ~(is_shear | is_rotation)
    if is_shear.any():
        # Python's: torchvision's too, and NumPy's last bit depends on the CPU.
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
    """Pairs (x, y) [n, 2] of a value and 0."""
    return np.stack((np.where(is_vertical, 0.0, values), np.where(is_vertical, values, 0.0)), -1)

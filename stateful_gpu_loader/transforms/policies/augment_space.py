"""The operations of TrivialAugmentWide and RandAugment, and the magnitude of each bin."""

from __future__ import annotations

import operator
from enum import IntEnum
from typing import Any

import numpy as np

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.recipe import FloatArray


class Operation(IntEnum):
    """What is done to an image, in torchvision's order, and what its magnitude means."""

    IDENTITY = 0
    SHEAR_X = 1
    """Pixels to the side for each pixel down."""
    SHEAR_Y = 2
    """Pixels down for each pixel to the side."""
    TRANSLATE_X = 3
    """Pixels to the right; the fraction is cut off."""
    TRANSLATE_Y = 4
    """Pixels down; the fraction is cut off."""
    ROTATE = 5
    """Degrees, counter-clockwise."""
    BRIGHTNESS = 6
    """The factor, less 1; so for the next three."""
    COLOR = 7
    CONTRAST = 8
    SHARPNESS = 9
    POSTERIZE = 10
    """Bits that are kept."""
    SOLARIZE = 11
    """Threshold, as a share of the brightest value."""
    AUTO_CONTRAST = 12
    EQUALIZE = 13


_IS_SIGNED = np.array([Operation.SHEAR_X <= one <= Operation.SHARPNESS for one in Operation])


def pick_operations(uniforms: FloatArray) -> IndexArray:
    """Operations [n], all as likely, from uniforms [n] in [0, 1).

    >>> pick_operations(np.array([0.0, 0.5, 0.99]))
    array([ 0,  7, 13])
    """
    operations: IndexArray = np.floor(uniforms * len(Operation)).astype(np.int64)
    return operations


def magnitudes(
    operations: IndexArray, bins: IndexArray, num_bins: int, highest: FloatArray, fewest_bits: int
) -> FloatArray:
    """The magnitude of a bin, as torchvision reads it off a line of ``num_bins`` float32.

    Args:
        operations: int64 [n].
        bins: int64 [n]: 0 <= bin < num_bins.
        num_bins: at least 2.
        highest: float64 [n]: the magnitude in the last bin; not read for POSTERIZE and SOLARIZE.
        fewest_bits: what POSTERIZE keeps in the last bin; in the first it keeps all 8.

    Returns:
        float64 [n]; 0 where an operation has none.

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
    """Half of the magnitudes [n] that have a direction, by uniforms [n], turned about.

    >>> with_signs(np.array([5, 5, 10]), np.array([30.0, 30.0, 4.0]), np.array([0.2, 0.7, 0.2]))
    array([-30.,  30.,   4.])
    """
    return np.where(_IS_SIGNED[operations] & (uniforms < 0.5) & (values != 0), -values, values)


def checked_num_bins(num_magnitude_bins: Any) -> int:
    """A whole number of bins.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is below 2, which makes no line.
    """
    count = operator.index(num_magnitude_bins)
    if count < 2:
        raise ValueError(f"{num_magnitude_bins = } makes no line. Remedy: pass at least 2")
    return count


def _linspace(start: FloatArray, end: FloatArray, num_bins: int, bins: IndexArray) -> FloatArray:
    """``torch.linspace``, from the nearer end, with one rounding to float32 as on CPUs with FMA.

    In float64 the products are exact, so it is the same everywhere.
    """
    first, last = start.astype(np.float32), end.astype(np.float32)
    step = ((last - first) / np.float32(num_bins - 1)).astype(np.float64)
    from_first = first + step * bins
    from_last = last - step * (num_bins - 1 - bins)
    line = np.where(bins < num_bins // 2, from_first, from_last)
    values: FloatArray = line.astype(np.float32).astype(np.float64)
    return values

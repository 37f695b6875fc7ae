"""Boxes of random area and aspect ratio, the same on every machine."""

from __future__ import annotations

import math

import numpy as np

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.recipe import FloatArray, between

NUM_ATTEMPTS = 10
"""Boxes that are tried for each image, as torchvision does."""

_HALVINGS = 8
_NUM_TERMS = 8


def portable_exp(exponents: FloatArray) -> FloatArray:
    """e ** exponents, to about 1e-13, from additions and multiplications alone.

    Those are rounded the same everywhere. NumPy's exp is not: its last bit depends on the CPU,
    and a box may depend on that bit.
    """
    small = exponents * 2.0**-_HALVINGS
    power = np.ones_like(small)
    for term in range(_NUM_TERMS, 0, -1):
        power = 1.0 + power * small / term
    for _ in range(_HALVINGS):
        power = power * power
    return power


def portable_log(value: float) -> float:
    """log(value) to a multiple of 2**-40, on which all C libraries agree."""
    return round(math.log(value) * 2**40) / 2**40


def log_range(ratio: tuple[float, float]) -> tuple[float, float]:
    """The logarithms of the lowest and the highest aspect ratio."""
    return portable_log(ratio[0]), portable_log(ratio[1])


def attempted_sides(
    uniforms: FloatArray,
    sizes: IndexArray,
    scale: tuple[float, float],
    log_ratio: tuple[float, float],
) -> tuple[FloatArray, FloatArray]:
    """The sides of ten boxes for each image, of uniform area and log-uniform aspect ratio.

    Args:
        uniforms: float64 [n, 2 * NUM_ATTEMPTS] in [0, 1).
        sizes: int64 [n, 2]: height and width of the images, in pixels.
        scale: lowest and highest area, as a fraction of the image's.
        log_ratio: from :func:`log_range`.

    Returns:
        Two arrays float64 [n, NUM_ATTEMPTS] of whole pixels: the first side is the second times
        the ratio.
    """
    areas = sizes.prod(axis=1, keepdims=True) * between(scale, uniforms[:, :NUM_ATTEMPTS])
    ratios = portable_exp(between(log_ratio, uniforms[:, NUM_ATTEMPTS:]))
    # Half to even, as Python's round, which torchvision calls here.
    return np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))

"""Logarithms and powers that are the same on every machine, for boxes that may hang on them."""

from __future__ import annotations

import math

import numpy as np

from stateful_gpu_loader.transforms.recipe import FloatArray

_HALVINGS = 8
_NUM_TERMS = 8


def portable_exp(exponents: FloatArray) -> FloatArray:
    """e ** exponents, to about 1e-13, from additions and multiplications alone.

    Those are rounded the same everywhere. NumPy's exp is not: its last bit depends on the CPU,
    and a box may hang on it.
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

"""Powers that are the same on every machine, of which random boxes are made."""

from __future__ import annotations

import math

import numpy as np

from stateful_gpu_loader.transforms.geometry.crops import portable_exp


def test_powers_are_those_of_the_library() -> None:
    """Within 1e-12 of math.exp, over ratios from 1:100 to 100:1."""
    exponents = np.linspace(-4.7, 4.7, 1001)
    expected = np.array([math.exp(value) for value in exponents])
    np.testing.assert_allclose(portable_exp(exponents), expected, rtol=1e-12)
    assert portable_exp(np.zeros(1)) == 1.0

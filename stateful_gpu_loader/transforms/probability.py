"""WithProbability: what the recipes share that act on some images and leave the others."""

from __future__ import annotations

import numpy as np

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import as_probability
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, Recipe


class WithProbability(Recipe):
    """Base of recipes that act with probability p.

    Numbers: 1 to act, 0 to leave the image as it is.

    Args:
        p: the probability.

    Raises:
        ValueError: not 0 <= p <= 1.
    """

    num_draws = 1

    def __init__(self, p: float) -> None:
        self.p = as_probability(p)

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        return Draw((uniforms < self.p).astype(np.int64), sizes)

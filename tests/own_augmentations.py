"""Augmentations that draw from generators of their own, as albumentations 2.0 does it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np


class _Transform:
    """albumentations' BasicTransform, in what its randomness is made of."""

    __module__ = "albumentations.core.transforms_interface"

    def __init__(self) -> None:
        self.set_random_seed(None)

    def set_random_seed(self, seed: int | None) -> None:
        self.random_generator = np.random.default_rng(seed)
        self.py_random = random.Random(seed)

    def set_random_state(self, generator: np.random.Generator, py_random: random.Random) -> None:
        self.random_generator = generator
        self.py_random = py_random


class Flip(_Transform):
    """Whether it flips."""

    __module__ = "albumentations.augmentations.geometric.flip"

    def __call__(self, drawn: list[float]) -> list[float]:
        return [*drawn, self.py_random.random(), float(self.random_generator.random())]


class Compose(_Transform):
    """Gives each of its transforms the same seed, as albumentations' own does."""

    __module__ = "albumentations.core.composition"

    def __init__(self, transforms: list[Any], seed: int | None = None) -> None:
        self.transforms = transforms
        self.set_random_seed(seed)

    def set_random_seed(self, seed: int | None) -> None:
        self.seed = seed
        super().set_random_seed(seed)
        for transform in self.transforms:
            transform.set_random_seed(seed)

    def set_random_state(self, generator: np.random.Generator, py_random: random.Random) -> None:
        super().set_random_state(generator, py_random)
        for transform in self.transforms:
            transform.set_random_state(generator, py_random)

    def __call__(self, *, image: list[float]) -> dict[str, list[float]]:
        for transform in self.transforms:
            image = transform(image)
        return {"image": [*image, self.py_random.random()]}

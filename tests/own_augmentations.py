"""Augmentations with private generators, as in albumentations 2.0.

Also albumentations itself, and the places where datasets and loaders hold augmentations.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Dataset, Subset

from stateful_gpu_loader import MixedDataset
from tests.map_datasets import Indices

N = 12


class _Transform:
    """The randomness of albumentations' BasicTransform."""

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
    """Returns whether it flips."""

    __module__ = "albumentations.augmentations.geometric.flip"

    def __call__(self, drawn: list[float]) -> list[float]:
        return [*drawn, self.py_random.random(), float(self.random_generator.random())]


class Compose(_Transform):
    """Gives each of its transforms the same seed, as albumentations' Compose does."""

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


def flips(seed: int | None = None) -> Compose:
    return Compose([Flip(), Flip()], seed)


class Augmented(Dataset[Any]):
    """Calls the augmentations that it was given, and holds them as they are."""

    def __init__(self, *steps: Any) -> None:
        self.steps: Any = list(steps)

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, list[float]]:
        image = [random.random()]
        for step in self.steps:
            image = step(image=image)["image"]
        return index, image


class Attribute(Augmented):
    """Holds its augmentations in an attribute, which one of its methods calls."""

    def __init__(self) -> None:
        super().__init__()
        self.augment = flips()
        self.steps = (self._apply,)

    def _apply(self, *, image: Any) -> Any:
        return self.augment(image=image)


class Wrapped:
    """A user's transform around a transform of albumentations."""

    def __init__(self, augment: Any) -> None:
        self.augment = augment

    def __call__(self, *, image: Any) -> Any:
        return self.augment(image=image)


AUGMENT = flips()


class ByGlobal(Indices):
    """Its augmentations are a global variable of its module."""

    def __getitem__(self, index: int) -> Any:
        return index, AUGMENT(image=[])["image"]


class Albumentations(Dataset[Any]):
    """Images by albumentations itself, and whether each flip was applied.

    Args:
        kind: name of the albumentations class that composes the transforms.
    """

    def __init__(self, kind: str) -> None:
        import albumentations as A

        self.augment = getattr(A, kind)(
            [
                A.HorizontalFlip(p=0.5),
                A.VerticalFlip(p=0.5),
                A.RandomCrop(16, 16),
                A.OneOf([A.RandomBrightnessContrast(), A.GaussNoise()]),
            ]
        )

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        image = np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3)
        done = self.augment(image=image)
        steps = done.get("replay", {"transforms": []})["transforms"]
        return done["image"], [step["applied"] for step in steps]


def _closure() -> Any:
    augment = flips()
    return lambda sample: (sample, augment(image=[])["image"])


HOLDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "an attribute": lambda: {"dataset": Attribute()},
    "a list": lambda: {"dataset": Augmented(flips(), flips())},
    "a list, seeded by the user": lambda: {"dataset": Augmented(flips(seed=137))},
    "an attribute's attribute": lambda: {"dataset": Augmented(Wrapped(flips()))},
    "Subset and ConcatDataset": lambda: {
        "dataset": ConcatDataset([Subset(Augmented(flips()), [1, 3, 8]), Augmented(flips())])
    },
    "a mixture": lambda: {
        "dataset": MixedDataset([Augmented(flips()), Indices(4)]),
        "shuffle": None,
    },
    "a global variable": lambda: {"dataset": ByGlobal(N)},
    "the loader's transforms": lambda: {
        "dataset": Indices(N),
        "transform": [_closure(), _closure()],
    },
}
"""Arguments of loaders, by the place that holds the augmentations."""

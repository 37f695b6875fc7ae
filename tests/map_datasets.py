"""Datasets for the tests. All are picklable, so every start method can use them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset


class Indices(Dataset[int]):
    """``dataset[i] == i``; of any length, without memory."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return index


class Noisy(Indices):
    """Each item draws from all three global generators, as augmentations do."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "index": super().__getitem__(index),
            "random": random.gauss(0, 1),
            "numpy": np.random.standard_normal(3),
            "torch": torch.randn(2) + torch.rand(()),
        }


class NoisyBatches(Noisy):
    """Fetches a whole batch at once, with one draw for the whole batch."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        shared = torch.rand(())
        return [{"shared": shared, **self[index]} for index in indices]


class OwnGenerator(Indices):
    """Draws from a private generator, which only ``set_sample_seed`` reaches."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.generator = np.random.default_rng()

    def set_sample_seed(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(self.generator.random())


class Caching(Indices):
    """Keeps what each sample drew at its first read, as a cache in memory does."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.kept: dict[int, tuple[float, ...]] = {}

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index not in self.kept:
            self.kept[index] = random.random(), float(np.random.rand()), float(torch.rand(()))
        return {"index": super().__getitem__(index), "draws": self.kept[index]}


class Jitter:
    """A transform with a private generator, which ``set_sample_seed`` seeds."""

    def __init__(self) -> None:
        self.generator = random.Random()

    def set_sample_seed(self, seed: int) -> None:
        self.generator = random.Random(seed)

    def __call__(self, sample: Any) -> Any:
        return sample, self.generator.random()


class Failing(Indices):
    """Raises for some indices."""

    def __init__(self, length: int, failing: set[int]) -> None:
        super().__init__(length)
        self.failing = failing

    def __getitem__(self, index: int) -> int:
        if index in self.failing:
            raise KeyError(f"no sample {index}")
        return index


def mix_batch(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """A collate function that draws, like MixUp."""
    weight = float(torch.rand(())) + random.random() + float(np.random.rand())
    return {
        "index": torch.tensor([sample["index"] for sample in samples]),
        "mixed": torch.stack([sample["torch"] for sample in samples]) * weight,
    }


def add_noise(sample: dict[str, Any]) -> dict[str, Any]:
    """A transform of the whole sample that draws."""
    return {**sample, "noise": torch.rand(()), "choice": random.choice([1, 2, 3])}

"""Datasets and transforms that do not repeat their samples, each for another reason."""

from __future__ import annotations

import ctypes
import itertools
import random
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stateful_gpu_loader import StatefulGPULoader
from tests.map_datasets import Indices

_TAKEN = 0
_SERIAL = itertools.count()
_LIBC = ctypes.CDLL(None)


class Applied(Indices):
    """Returns ``{"index": i, "value": function(i)}``."""

    def __init__(self, function: Callable[[int], Any], length: int = 12) -> None:
        super().__init__(length)
        self.function = function

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": super().__getitem__(index), "value": self.function(index)}


class OwnGenerator:
    """Adds noise from a private generator."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __call__(self, index: int) -> float:
        if isinstance(self.generator, torch.Generator):
            return index + float(torch.rand((), generator=self.generator))
        return index + float(self.generator.random())


class RunningMean:
    """Subtracts the mean of all earlier inputs."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def __call__(self, index: int) -> float:
        self.total, self.count = self.total + index + 1, self.count + 1
        return index - self.total / self.count


def clock(index: int) -> float:
    return index + time.time()


def identifier(index: int) -> str:
    return f"{index} {uuid.uuid4()}"


def unseeded(index: int) -> float:
    return index + float(np.random.default_rng().random())


def counted(index: int) -> int:
    global _TAKEN
    _TAKEN += 1
    return index + _TAKEN


def numbered(index: int) -> int:
    return index + next(_SERIAL)


def decoded(index: int) -> int:
    """Draw from a native generator, whose state Python does not see."""
    return index + _LIBC.rand()


def first_of_a_set(index: int) -> str:
    """Return the first of a set of texts, whose order differs between processes."""
    return " ".join({f"class {number} of {index}" for number in range(20)})


class ReadsFile:
    """Returns the content of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, index: int) -> str:
        return f"{index} {self.path.read_text()}"


def augmented(index: int) -> float:
    """Augment with draws from the global generators."""
    return index + random.random() + float(np.random.rand()) + float(torch.rand(()))


def make_exact() -> StatefulGPULoader[Any]:
    return StatefulGPULoader(Applied(augmented), batch_size=4, shuffle=True, seed=1)


def make_of_sets() -> StatefulGPULoader[Any]:
    return StatefulGPULoader(Applied(first_of_a_set), batch_size=4)

"""A module with its own generators, and functions that draw from them."""

from __future__ import annotations

import random
from typing import Any

RNG = random.Random(1)
DRAW = random.Random(2).random
UNUSED = random.Random(3)


def draw() -> float:
    return RNG.random()


def noisier(index: int) -> Any:
    return index, draw()


def bound(value: Any) -> Any:
    return value, DRAW()


def unused(value: Any) -> Any:
    return value

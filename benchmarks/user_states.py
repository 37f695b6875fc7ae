"""Typical user datasets and samplers with states of known size."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from benchmarks.datasets import Numbers

_NUM_INTS, _NUM_BYTES = 1000, 10**6


class Recent(Dataset[int]):
    """State: the last 1000 indices, of which one changes with every sample."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._recent = deque(range(_NUM_INTS), maxlen=_NUM_INTS)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> int:
        self._recent.append(index)
        return self._numbers[index]

    def state_dict(self) -> dict[str, Any]:
        return {"recent": list(self._recent)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._recent.extend(state_dict["recent"])


class Buffered(Dataset[int]):
    """State: a tensor of 1 MB, of which one byte, or none, changes with every sample."""

    def __init__(self, numbers: Numbers, *, changes: bool) -> None:
        self._numbers = numbers
        self._changes = changes
        self._buffer = torch.zeros(_NUM_BYTES, dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> int:
        if self._changes:
            self._buffer[index % _NUM_BYTES] += 1
        return self._numbers[index]

    def state_dict(self) -> dict[str, Any]:
        return {"buffer": self._buffer.clone()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._buffer = state_dict["buffer"]


class DrawingSampler(Sampler[int]):
    """Draws each index; its state is a place and torch's generator, 5 KB."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._place = 0
        self._generator = torch.Generator().manual_seed(42)

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[int]:
        while self._place < self._n:
            self._place += 1
            yield int(torch.randint(self._n, (), generator=self._generator))
        self._place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self._place, "generator": self._generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._place = state_dict["place"]
        self._generator.set_state(state_dict["generator"])

"""Samplers and datasets with torchdata's two state methods, one for each place of a state."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from tests.map_datasets import Indices

LENGTH = 11


class Countdown:
    """An iterator with state, under names that torchdata uses for other things."""

    def __init__(self, step: int | None) -> None:
        self.step = step
        self.next = LENGTH - 1
        self.generator = random.Random(0)

    def __iter__(self) -> Countdown:
        return self

    def __next__(self) -> Any:
        if self.next < 0:
            raise StopIteration
        taken = [self.next - i for i in range(self.step or 1) if i <= self.next]
        self.next -= len(taken)
        return taken[0] if self.step is None else taken

    def state_dict(self) -> dict[str, Any]:
        return {"yielded": self.next, "generator": self.generator.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["yielded"]
        self.generator.setstate(state["generator"])


class IteratorSampler(torch.utils.data.Sampler[Any]):
    """Its iterators have state, and yield indices or batches of indices."""

    def __init__(self, step: int | None = None) -> None:
        self.step = step

    def __len__(self) -> int:
        return -(-LENGTH // (self.step or 1))

    def __iter__(self) -> Countdown:
        return Countdown(self.step)


class Counting(Indices):
    """A map-style dataset that counts its reads."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.served: list[int] = []

    def __getitem__(self, index: int) -> int:
        self.served.append(index)
        return super().__getitem__(index)

    def state_dict(self) -> dict[str, Any]:
        return {"served": list(self.served), "name": {"of": {}}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.served = list(state["served"])


class Stream(IterableDataset[int]):
    """A worker's share of ``range(length)``, without state."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.place = 0

    def share(self) -> list[int]:
        info = torch.utils.data.get_worker_info()
        number, of = (0, 1) if info is None else (info.id, info.num_workers)
        return list(range(number, self.length, of))

    def __iter__(self) -> Any:
        return iter(self.share())


class Place:
    """Place in a stream, as state."""

    place: int

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


class StatefulStream(Place, Stream):
    """The dataset has the state."""

    def __iter__(self) -> Iterator[int]:
        numbers = self.share()
        while self.place < len(numbers):
            self.place += 1
            yield numbers[self.place - 1]


class StreamIterator(Place):
    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.place = 0

    def __iter__(self) -> StreamIterator:
        return self

    def __next__(self) -> int:
        self.place += 1
        if self.place > len(self.numbers):
            raise StopIteration
        return self.numbers[self.place - 1]


class IteratorStream(Stream):
    """The iterator has the state."""

    def __iter__(self) -> StreamIterator:
        return StreamIterator(self.share())


class SelfStream(Place, Stream):
    """The dataset is its own iterator."""

    def __iter__(self) -> SelfStream:
        self.numbers = self.share()
        return self

    def __next__(self) -> int:
        return StreamIterator.__next__(self)  # type: ignore[arg-type]

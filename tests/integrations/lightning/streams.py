"""Datasets of the fits: with and without a length, an end, and a state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DistributedSampler, IterableDataset

from stateful_gpu_loader import CallableSource, SampleInfo, StatefulGPULoader
from tests.map_datasets import Noisy


class Stream(IterableDataset[Any]):
    """Numbers, each with its draw; without a length and without a state."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.length, step):
            yield {"index": number, "torch": torch.randn(2)}


class SizedStream(Stream):
    """Has a length."""

    def __len__(self) -> int:
        return self.length


class StatefulStream(Stream):
    """Has a state; its numbers continue from epoch to epoch."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.place = self.total = 0
        self.was_loaded = False

    def __iter__(self) -> Iterator[Any]:
        if not self.was_loaded:
            self.place = 0
        self.was_loaded = False
        while self.place < self.length:
            self.place += 1
            self.total += 1
            yield {"index": self.total, "torch": torch.randn(2)}
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the place."""
        return {"place": self.place, "total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the place."""
        self.place, self.total = state["place"], state["total"]
        self.was_loaded = True


def read(info: SampleInfo) -> torch.Tensor:
    """Return a sample of a source without a length, which ends after 18."""
    if info.idx_in_epoch >= 18:
        raise StopIteration
    return torch.tensor([float(info.idx_in_epoch), float(info.epoch_idx)])


def called(**arguments: Any) -> StatefulGPULoader[Any]:
    """Return a loader over a function, without a length."""
    return StatefulGPULoader(CallableSource(read), **{"batch_size": 4, "seed": 5, **arguments})


def noisy(length: int = 20, **arguments: Any) -> StatefulGPULoader[Any]:
    """Return a map-style loader that draws from the global generators."""
    given = {"batch_size": 4, "shuffle": True, "seed": 5, **arguments}
    return StatefulGPULoader(Noisy(length), **given)


def distributed(length: int = 20) -> StatefulGPULoader[Any]:
    """Return a loader with torch's sampler, whose epoch Lightning sets."""
    dataset = Noisy(length)
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True)
    return StatefulGPULoader(dataset, batch_size=4, sampler=sampler, seed=5)


def stream(length: int = 18, kind: type[Stream] = Stream, **arguments: Any) -> Any:
    """Return a loader of an iterable dataset."""
    return StatefulGPULoader(kind(length), **{"batch_size": 4, "seed": 6, **arguments})

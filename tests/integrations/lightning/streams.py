"""Datasets of the fits: with and without a length, an end, and a state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DistributedSampler, IterableDataset

from stateful_gpu_loader import CallableSource, SampleInfo, StatefulGPULoader
from tests.map_datasets import Noisy


class Stream(IterableDataset[Any]):
    """As many numbers, each with what is drawn for it; without a length, without a state."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.length, step):
            yield {"index": number, "torch": torch.randn(2)}


class SizedStream(Stream):
    """It says how long it is."""

    def __len__(self) -> int:
        return self.length


class Telling(Stream):
    """With a state; its numbers go on from epoch to epoch."""

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
        """Where it stands."""
        return {"place": self.place, "total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there."""
        self.place, self.total = state["place"], state["total"]
        self.was_loaded = True


def read(info: SampleInfo) -> torch.Tensor:
    """A sample of a source without a length, which ends after 18."""
    if info.idx_in_epoch >= 18:
        raise StopIteration
    return torch.tensor([float(info.idx_in_epoch), float(info.epoch_idx)])


def called(**arguments: Any) -> StatefulGPULoader[Any]:
    """A loader over a function; nobody knows its length."""
    return StatefulGPULoader(CallableSource(read), **{"batch_size": 4, "seed": 5, **arguments})


def noisy(length: int = 20, **arguments: Any) -> StatefulGPULoader[Any]:
    """A map-style loader that draws from the global generators."""
    given = {"batch_size": 4, "shuffle": True, "seed": 5, **arguments}
    return StatefulGPULoader(Noisy(length), **given)


def distributed(length: int = 20) -> StatefulGPULoader[Any]:
    """With torch's sampler, to which Lightning tells the epoch."""
    dataset = Noisy(length)
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True)
    return StatefulGPULoader(dataset, batch_size=4, sampler=sampler, seed=5)


def stream(length: int = 18, kind: type[Stream] = Stream, **arguments: Any) -> Any:
    """A loader of an iterable dataset."""
    return StatefulGPULoader(kind(length), **{"batch_size": 4, "seed": 6, **arguments})

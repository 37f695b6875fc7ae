"""Makers of loaders, one for every kind of stream that workers make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stateful_gpu_loader import StatefulGPULoader
from tests.map_datasets import Noisy
from tests.user_objects import (
    IterableWithStatefulIterator,
    LazySampler,
    OwnIterator,
    PlainIterable,
    StatefulDataset,
    StatefulIterable,
    StatefulSampler,
)

N = 40
UNEVEN = [3, 17, 9, 0, 6]
Make = Callable[..., StatefulGPULoader[Any]]


class Large(Noisy):
    """Items of 256 KB. A batch is twice the capacity of the pipe that carries it."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "large": np.full(1 << 15, index, dtype=np.int64)}


def _as_it_is(samples: Any) -> Any:
    return samples


def make_map(**arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(Noisy(N), **{"batch_size": 4, "seed": 1, "shuffle": True, **arguments})


def make_large(**arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(
        Large(2 * N), **{"batch_size": 8, "seed": 1, "collate_fn": _as_it_is, **arguments}
    )


def make_stateful(**arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(StatefulDataset(N), **{"batch_size": 4, "seed": 1, **arguments})


def make_samplers(**arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(
        StatefulDataset(N),
        **{"batch_size": 4, "seed": 1, "sampler": StatefulSampler(N), **arguments},
    )


def make_lazy(**arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(
        Noisy(N), **{"batch_size": 2, "seed": 1, "sampler": LazySampler(), **arguments}
    )


def make_rare(**arguments: Any) -> StatefulGPULoader[Any]:
    return make_stateful(**{"snapshot_every_n_steps": 3, **arguments})


def iterable(kind: type[PlainIterable]) -> Make:
    def make(**arguments: Any) -> StatefulGPULoader[Any]:
        return StatefulGPULoader(kind(UNEVEN), **{"batch_size": 2, "seed": 1, **arguments})

    return make


MAKERS: dict[str, Make] = {
    "map": make_map,
    "large batches": make_large,
    "dataset with state": make_stateful,
    "rare snapshots": make_rare,
    "sampler and dataset with state": make_samplers,
    "sampler without state": make_lazy,
    "iterable with state": iterable(StatefulIterable),
    "iterator with state": iterable(IterableWithStatefulIterator),
    "own iterator": iterable(OwnIterator),
    "plain iterable": iterable(PlainIterable),
}

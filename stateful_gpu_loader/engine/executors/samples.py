"""Batches of any map-style dataset, its randomness keyed sample by sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import (
    ConcatDataset,
    StackDataset,
    Subset,
    default_collate,
    default_convert,
)

from stateful_gpu_loader.engine.pipeline import noting_sample
from stateful_gpu_loader.randomness import Stream, sample_seeds, seed_global_generators
from stateful_gpu_loader.records import Request, SampleKey

DRAWS_NOTHING = (default_collate, default_convert)
"""Collate functions that leave the global generators alone."""

_SEEDS = 1024


class SampleExecutor:
    """``dataset[index]``, transform and collate under generators seeded from the key.

    So a dataset that draws from ``random``, ``numpy.random`` or torch gives the same sample in
    any worker (A5). A dataset with generators of its own, also one inside torch's Subset,
    ConcatDataset or StackDataset, may offer ``set_sample_seed(int)``, which is called before each
    item, or before each of its own ``__getitems__``.

    Args:
        dataset: map-style.
        transform: a callable on one whole sample, or None.
        collate_fn: makes the batch from a list of samples, or converts one sample.
        batched: False gives each request's only sample to ``collate_fn``, as ``batch_size=None``.
    """

    uses_global_generators = True

    def __init__(
        self,
        dataset: Any,
        *,
        transform: Callable[[Any], Any] | None,
        collate_fn: Callable[[Any], Any],
        batched: bool,
    ) -> None:
        self._dataset = dataset
        self._transform = transform
        self._collate_fn = collate_fn
        self._batched = batched
        self._native = batched and has_native_batches(dataset)
        self._set_sample_seeds = list(_sample_seed_setters(dataset))
        self._seeds = SeedBlock()

    def __call__(self, request: Request, check: Callable[[], None]) -> Any:
        fetch = self._native_batch if self._native else self._items
        samples = fetch(request, check)
        return collate(request, samples, self._collate_fn, batched=self._batched)

    def fetch(self, key: SampleKey) -> Any:
        """One sample, before its transform."""
        return self._dataset[key.index]

    def _items(self, request: Request, check: Callable[[], None]) -> list[Any]:
        samples = []
        for key, seed in zip(request.keys(), self._seeds.of(request), strict=True):
            check()
            with noting_sample(key):
                self._seed(seed)
                sample = self.fetch(key)
                samples.append(sample if self._transform is None else self._transform(sample))
        return samples

    def _native_batch(self, request: Request, check: Callable[[], None]) -> Any:
        self._seed(batch_seed(request, Stream.GETITEMS))
        samples = self._dataset.__getitems__(request.indices.tolist())
        if self._transform is None:
            return samples
        transformed = []
        for key, seed, sample in zip(request.keys(), self._seeds.of(request), samples, strict=True):
            check()
            with noting_sample(key):
                self._seed(seed)
                transformed.append(self._transform(sample))
        return transformed

    def _seed(self, seed: int) -> None:
        seed_global_generators(seed)
        for set_sample_seed in self._set_sample_seeds:
            set_sample_seed(seed)


def collate(
    request: Request, samples: Any, collate_fn: Callable[[Any], Any], *, batched: bool
) -> Any:
    """Collate under the batch's first position; torch's own functions draw nothing."""
    if collate_fn not in DRAWS_NOTHING:
        seed_global_generators(batch_seed(request, Stream.COLLATE))
    return collate_fn(samples if batched else samples[0])


def batch_seed(request: Request, stream: Stream) -> int:
    """A 64-bit seed of the request's first position."""
    return sample_seeds(request.seed, request.epoch, request.positions[:1], stream)[0]


def has_native_batches(dataset: Any) -> bool:
    """Whether the dataset fetches a batch by a ``__getitems__`` of its own.

    torch's Subset and StackDataset always have one, which only passes on to the datasets below:
    they are read item by item unless one of those has its own.

    >>> has_native_batches(Subset([10, 20, 30], [0, 2]))
    False
    """
    own = getattr(type(dataset), "__getitems__", None)
    if own in (Subset.__getitems__, StackDataset.__getitems__):
        return any(has_native_batches(part) for part in _parts(dataset))
    return callable(getattr(dataset, "__getitems__", None))


def _sample_seed_setters(dataset: Any) -> Iterator[Callable[[int], None]]:
    own = getattr(dataset, "set_sample_seed", None)
    if callable(own):
        yield own
    for part in _parts(dataset):
        yield from _sample_seed_setters(part)


def _parts(dataset: Any) -> list[Any]:
    """The datasets that a wrapper of torch's is made of."""
    if isinstance(dataset, Subset):
        return [dataset.dataset]
    if isinstance(dataset, (ConcatDataset, StackDataset)):
        parts: Any = dataset.datasets
        return list(parts.values()) if isinstance(parts, dict) else list(parts)
    return []


class SeedBlock:
    """Seeds of neighbouring positions, drawn in one call: a call costs as much as 300 seeds."""

    def __init__(self) -> None:
        self._key: tuple[int, int, int] | None = None
        self._seeds: list[int] = []

    def of(self, request: Request) -> list[int]:
        """One seed for each of the request's positions."""
        seeds = []
        for position in request.positions.tolist():
            number, offset = divmod(position, _SEEDS)
            key = (request.seed, request.epoch, number)
            if key != self._key:
                self._draw(key)
            seeds.append(self._seeds[offset])
        return seeds

    def _draw(self, key: tuple[int, int, int]) -> None:
        seed, epoch, number = key
        positions = number * _SEEDS + np.arange(_SEEDS, dtype=np.int64)
        self._seeds = sample_seeds(seed, epoch, positions, Stream.SAMPLE_GENERATORS)
        self._key = key

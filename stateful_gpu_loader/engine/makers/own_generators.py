"""Private generators in the user's objects: some can be seeded for each sample, some cannot.

The loader seeds the global generators for each sample. Draws from a private generator depend on all
earlier draws, unless that generator is seeded, too.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset

from stateful_gpu_loader.engine.makers.reachable import Found, Reached, is_generator, reachable
from stateful_gpu_loader.randomness.global_generators import seed_global_generators
from stateful_gpu_loader.state.schema import Stateful

_KEYED_ANYWAY = (random._inst, np.random.mtrand._rand, torch.default_generator)
_KEYED_NAMES = ("random_generator", "py_random")
"""Attributes with the generators of albumentations' transforms, which the loader seeds."""
_GOLDEN = 0x9E3779B97F4A7C15
"""Odd distance between seeds, 2**64 divided by the golden ratio."""
_MAX_SHOWN = 8


def seed_setters(dataset: Any, transform: Any) -> Iterator[Callable[[int], None]]:
    """Yield the functions to call with each sample's seed.

    ``set_sample_seed`` of the dataset and the transform comes last.
    """
    found = reachable({"dataset": dataset, "transform": transform}).found
    keyed = [each for each in found if _is_keyed(each.thing)]
    if keyed:
        # A transform shares its generators with its parts.
        held = tuple(f"{path}{mark}" for path, _ in keyed for mark in ".[")
        yield AlbumentationsSeed([thing for path, thing in keyed if not path.startswith(held)])
    outer = [*parts_of(dataset), transform]
    ids = {id(part) for part in outer}
    inner = [thing for _, thing in found if _seeds_itself(thing) and id(thing) not in ids]
    for number, thing in enumerate(inner, 1):
        yield partial(_set_another_seed, thing, number)
    for part in outer:
        own = getattr(part, "set_sample_seed", None)
        if callable(own):
            yield own


class SampleGenerators:
    """Generators that a sample may draw from: the global ones, and private ones that can be seeded.

    Args:
        dataset, transform: objects that are searched for private generators.
    """

    def __init__(self, dataset: Any, transform: Any = None) -> None:
        self._setters = list(seed_setters(dataset, transform))

    @property
    def has_private(self) -> bool:
        """Whether private generators are seeded for each sample as well."""
        return bool(self._setters)

    def seed(self, seed: int) -> None:
        seed_global_generators(seed)
        for set_sample_seed in self._setters:
            set_sample_seed(seed)


class AlbumentationsSeed:
    """Seeds transforms of albumentations, which draw from private generators.

    All of them share one pair of generators. With albumentations' own ``set_random_seed`` two flips
    of probability 0.5 would always coincide.
    """

    def __init__(self, transforms: list[Any]) -> None:
        self._transforms = transforms
        for transform in transforms:
            if getattr(transform, "seed", None) is not None:
                # With a seed, AlbumentationsX would seed them again, but only in workers.
                transform.set_random_seed(None)

    def __call__(self, seed: int) -> None:
        # These must differ from the global generator's numbers.
        pair = np.random.default_rng(seed), random.Random(seed + 1)
        for transform in self._transforms:
            transform.set_random_state(*pair)


def warn_of_own_generators(dataset: Any, transform: Any) -> None:
    """Warn about generators that are not seeded: samples drawn from them differ after a resume."""
    found = _reached(dataset, transform).found
    seeded = {id(each) for each in _KEYED_ANYWAY}
    for _, thing in found:
        if _is_keyed(thing):
            seeded |= {id(value) for name, value in vars(thing).items() if name in _KEYED_NAMES}
    by_system = [each for each in found if _draws_from_the_system(each.thing)]
    by_state = [
        each
        for each in found
        if is_generator(each.thing)
        and id(each.thing) not in seeded
        and not _draws_from_the_system(each.thing)
    ]
    if by_state:
        warnings.warn(
            f"{_listed(by_state)}: private generators, which the loader cannot seed. Samples drawn "
            "from them differ after a resume, and on another number of workers. Remedy: draw from "
            "random, numpy.random or torch, which the loader seeds before each item; or give the "
            "object with the generator a method set_sample_seed(seed: int), which the loader calls "
            "before each item. It seeds the generator, or does nothing if no sample is drawn from "
            "it",
            stacklevel=2,
        )
    if by_system:
        warnings.warn(
            f"{_listed(by_system)}: random.SystemRandom draws from the operating system and cannot "
            "be seeded. Samples drawn from it never repeat. Remedy: draw from random, numpy.random "
            "or torch, which the loader seeds before each item",
            stacklevel=2,
        )


def unsearched(dataset: Any, transform: Any) -> Mapping[str, list[str]]:
    """Return the places that could not be searched for private generators.

    The keys are ``"dataset"`` and ``"transform"``.
    """
    return _reached(dataset, transform).unsearched


def parts_of(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and, recursively, the datasets inside torch's wrappers."""
    yield dataset
    for part in inner_datasets(dataset):
        yield from parts_of(part)


def inner_datasets(dataset: Any) -> list[Any]:
    """Return the datasets inside one of torch's wrappers."""
    if isinstance(dataset, Subset):
        return [dataset.dataset]
    if isinstance(dataset, (ConcatDataset, StackDataset)):
        parts: Any = dataset.datasets
        return list(parts.values()) if isinstance(parts, dict) else list(parts)
    return []


def _reached(dataset: Any, transform: Any) -> Reached:
    """Return the reachable objects without seeded or saved generators."""
    outer = [*parts_of(dataset), transform]
    exempt = {
        id(part)
        for part in outer
        if callable(getattr(part, "set_sample_seed", None)) or _saves_itself(part)
    }
    return reachable(
        {"dataset": dataset, "transform": transform},
        is_left_out=lambda thing: id(thing) in exempt or _seeds_itself(thing),
    )


def _seeds_itself(thing: Any) -> bool:
    return callable(getattr(type(thing), "set_sample_seed", None))


def _saves_itself(part: Any) -> bool:
    # A torch module saves its parameters, but no generator.
    is_plain_module = getattr(type(part), "state_dict", None) is torch.nn.Module.state_dict
    return isinstance(part, Stateful) and not is_plain_module


def _set_another_seed(thing: Any, number: int, seed: int) -> None:
    """Seed an object with numbers that differ from its neighbours'."""
    thing.set_sample_seed((seed + number * _GOLDEN) % 2**64)


def _draws_from_the_system(thing: Any) -> bool:
    return thing is random.SystemRandom or issubclass(type(thing), random.SystemRandom)


def _listed(found: list[Found]) -> str:
    paths = [path for path, _ in found]
    more = len(paths) - _MAX_SHOWN
    return ", ".join(paths[:_MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _is_keyed(thing: Any) -> bool:
    kind = type(thing)
    if not callable(getattr(kind, "set_random_state", None)):
        return False
    return "albumentations" in {base.__module__.partition(".")[0] for base in kind.__mro__}

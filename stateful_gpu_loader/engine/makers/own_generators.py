"""Random generators in the user's objects: some can be seeded for each sample, some cannot.

The loader seeds the global generators for each sample. What a dataset or transform draws from its
own generator depends on everything drawn before, unless that one is seeded, too.
"""

from __future__ import annotations

import functools
import inspect
import random
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset

from stateful_gpu_loader.state.schema import Stateful

GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_KEYED_ANYWAY = (random._inst, np.random.mtrand._rand, torch.default_generator)
_DEEPEST = 3
"""How many attributes deep generators are searched; items of a list or dict do not count."""
_DEEPEST_TO_WARN_OF = 2
_LONGEST = 32
"""Lists and dicts with more items are taken for data and not searched."""
_MOST = 1000
"""Number of objects that are searched, at about a microsecond each."""


def seed_setters(dataset: Any, transform: Any) -> Iterator[Callable[[int], None]]:
    """Yield the functions to call with each sample's seed.

    The user's own ``set_sample_seed`` comes last, so that it can override the others.
    """
    held = _held(dataset, transform, _DEEPEST)
    found = {id(thing): thing for _, _, thing in held if _is_keyed(thing)}
    if found:
        yield AlbumentationsSeed(list(found.values()))
    for part in (*parts_of(dataset), transform):
        own = getattr(part, "set_sample_seed", None)
        if callable(own):
            yield own


class AlbumentationsSeed:
    """Seeds transforms of albumentations, which draw from generators of their own.

    All of them share one pair of generators. albumentations' own ``set_random_seed`` would give
    each the same numbers, so that two flips of probability 0.5 always happened together.
    """

    def __init__(self, transforms: list[Any]) -> None:
        self._transforms = transforms
        for transform in transforms:
            if getattr(transform, "seed", None) is not None:
                # With a seed, AlbumentationsX would seed its generators again, but in workers only.
                transform.set_random_seed(None)

    def __call__(self, seed: int) -> None:
        # These must differ from the numbers of the global generator, which has the same seed.
        pair = np.random.default_rng(seed), random.Random(seed + 1)
        for transform in self._transforms:
            transform.set_random_state(*pair)


def warn_of_own_generators(dataset: Any, transform: Any) -> None:
    """Warn of generators that are not seeded: samples drawn from them differ after a resume."""
    found = [
        f"{type(owner).__name__}{path}"
        for owner, path, value in _held(dataset, transform, _DEEPEST_TO_WARN_OF)
        if isinstance(value, GENERATORS)
        and not any(value is each for each in _KEYED_ANYWAY)
        and not (isinstance(owner, Stateful) or callable(getattr(owner, "set_sample_seed", None)))
    ]
    if found:
        warnings.warn(
            f"{', '.join(found[:4])}: a generator of one's own, which the loader cannot set. If "
            "items are drawn from it, they are not the same after a resume, nor on another number "
            "of workers. Remedy: draw from random, numpy.random or torch, which the loader seeds "
            "before each item; or give the dataset, or the transform, that it belongs to a method "
            "set_sample_seed(seed: int), called before each item, that seeds it (or does nothing, "
            "if no item is drawn from it)",
            stacklevel=2,
        )


def parts_of(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and, recursively, those that torch's wrappers contain."""
    yield dataset
    for part in inner_datasets(dataset):
        yield from parts_of(part)


def inner_datasets(dataset: Any) -> list[Any]:
    """Return the datasets that a wrapper of torch's contains."""
    if isinstance(dataset, Subset):
        return [dataset.dataset]
    if isinstance(dataset, (ConcatDataset, StackDataset)):
        parts: Any = dataset.datasets
        return list(parts.values()) if isinstance(parts, dict) else list(parts)
    return []


def _is_keyed(thing: Any) -> bool:
    modules = {base.__module__.partition(".")[0] for base in type(thing).__mro__}
    return "albumentations" in modules and callable(getattr(thing, "set_random_state", None))


def _held(dataset: Any, transform: Any, depth: int) -> Iterator[tuple[Any, str, Any]]:
    """Yield owner, path and object of all that the dataset, its parts and the transform contain."""
    owners = [*parts_of(dataset), transform]
    apart = {id(owner) for owner in owners}
    for owner in owners:
        for path, thing in walk("", owner, depth, apart - {id(owner)}):
            yield owner, path, thing


def walk(path: str, thing: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the paths and objects that an object holds, itself first, each object once.

    Args:
        path: path of the object.
        depth: how many attributes deep.
        seen: ids of objects that are left out; those that are met are added.
    """
    if id(thing) in seen or len(seen) >= _MOST or _is_opaque(thing):
        return
    seen.add(id(thing))
    yield path, thing
    if isinstance(thing, GENERATORS) or _is_keyed(thing):
        return
    if isinstance(thing, (list, tuple, dict)):
        if len(thing) <= _LONGEST:
            items = thing.items() if isinstance(thing, dict) else enumerate(thing)
            for key, value in list(items):
                yield from walk(f"{path}[{key!r}]", value, depth, seen)
    elif depth:
        for name, value in _attributes(thing):
            yield from walk(f"{path}.{name}", value, depth - 1, seen)


def _attributes(thing: Any) -> list[tuple[str, Any]]:
    """Return the attributes of an object, or the variables that a function refers to."""
    if isinstance(thing, functools.partial):
        return [("func", thing.func), ("args", thing.args), ("keywords", thing.keywords)]
    if isinstance(thing, types.MethodType):
        return [("__self__", thing.__self__)]
    if isinstance(thing, types.FunctionType):
        try:
            names = inspect.getclosurevars(thing)
        except ValueError:  # it refers to names that are not defined yet
            return []
        return [*names.nonlocals.items(), *names.globals.items()]
    return list(getattr(thing, "__dict__", {}).items())


def _is_opaque(thing: Any) -> bool:
    kinds = (str, bytes, int, float, type(None), type, types.ModuleType, torch.Tensor, np.ndarray)
    is_ours = type(thing).__module__.startswith("stateful_gpu_loader.")
    return isinstance(thing, kinds) or (is_ours and not hasattr(thing, "transforms"))

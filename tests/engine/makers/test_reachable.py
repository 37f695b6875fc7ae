"""The search for objects that user code reaches while it makes a sample."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import functools
import random
import types
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Sampler, StackDataset, Subset
from torchvision.transforms import Compose, Lambda, RandomApply, ToTensor, v2

from stateful_gpu_loader.engine.makers import reachable as module
from stateful_gpu_loader.engine.makers.reachable import is_generator, reachable
from tests import generators_of_modules as helpers

RNG = helpers.RNG
HERE = __name__
HELPERS = helpers.__name__


def paths(dataset: Any, transform: Any = None) -> list[str]:
    found = reachable({"dataset": dataset, "transform": transform}).found
    known = (random._inst, np.random.mtrand._rand, torch.default_generator)  # type: ignore[attr-defined]
    return [
        path
        for path, thing in found
        if is_generator(thing) and not any(thing is each for each in known)
    ]


class Items(Dataset[int]):
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


class Noise:
    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def __call__(self, value: Any) -> Any:
        return value


class NoiseModule(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(1)

    def forward(self, value: Any) -> Any:
        return value


class Slotted:
    __slots__ = ("rng",)

    def __init__(self) -> None:
        self.rng = random.Random(1)


class SlottedBelow(Slotted):
    __slots__ = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    rng: random.Random


class Randomizable:
    """MONAI's class of the same name: all objects share a generator until they are seeded."""

    R = np.random.RandomState(1)

    def randomize(self) -> float:
        return float(self.R.rand())

    def set_random_state(self, seed: int) -> None:
        self.R = np.random.RandomState(seed)


class RandFlip(Randomizable):
    def __call__(self, value: Any) -> Any:
        return value, self.randomize()


class RandCompose(Randomizable):
    """Draws nothing, but is Randomizable, like MONAI's Compose."""

    def __init__(self, *transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, value: Any) -> Any:
        for transform in self.transforms:
            value = transform(value)
        return value


class Jitter(v2.Transform):
    """Only torchvision's code calls this method, no user code."""

    R = random.Random(1)

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        return inpt, self.R.random()


class Inherited(RandFlip):
    def __call__(self, value: Any) -> Any:
        return super().__call__(value)


class BySuper(Items):
    @property
    def noise(self) -> float:
        return RNG.random()

    def __getitem__(self, index: int) -> Any:
        return index, self.noise


class ByHelper(Items):
    def __getitem__(self, index: int) -> Any:
        return noisy(index)


def noisy(index: int) -> Any:
    return helpers.noisier(index)


class ByImport(Items):
    def __getitem__(self, index: int) -> Any:
        from tests.generators_of_modules import draw

        return index, draw()


class ByClass(Items):
    class Shared:
        rng = random.Random(1)

    def __getitem__(self, index: int) -> Any:
        return index, self.Shared.rng.random()


class ByWrapped(Items):
    @functools.lru_cache(maxsize=2)  # noqa: B019
    def noise(self) -> float:
        return RNG.random()

    def __getitem__(self, index: int) -> Any:
        return index, self.noise()


class ByStep(Items):
    """Calls a method of an object that it holds."""

    def __getitem__(self, index: int) -> Any:
        return self.step.apply(index)


class Step:
    def apply(self, value: Any) -> Any:
        return value, RNG.random()


class ByDefault(Items):
    def __getitem__(self, index: int, rng: Any = random.Random(1)) -> Any:  # noqa: B008
        return index, rng.random()


def closure() -> Any:
    rng = random.Random(1)
    return lambda value: value + rng.random()


def by_keyword(value: Any, *, rng: Any = np.random.default_rng(1)) -> Any:  # noqa: B008
    return value + rng.random()


def with_generator(value: Any, generator: Any) -> Any:
    return value + torch.rand((), generator=generator)


def rng() -> random.Random:
    return random.Random(1)


HOLDERS: dict[str, tuple[Any, list[str]]] = {
    "an attribute": (Items(rng=rng()), ["dataset.rng"]),
    "torchvision's Compose, v2": (
        Items(transform=v2.Compose([v2.ToImage(), Noise(rng())])),
        ["dataset.transform.transforms[1].rng"],
    ),
    "torchvision's Lambda in RandomApply": (
        Items(transform=Compose([RandomApply([Lambda(closure())])])),
        ["dataset.transform.transforms[0].transforms[0].lambd.rng"],
    ),
    "torch's Sequential": (
        Items(transform=torch.nn.Sequential(torch.nn.Identity(), NoiseModule())),
        ["dataset.transform[1].rng"],
    ),
    "lists and tuples": (Items(steps=[(0, [Noise(rng())])]), ["dataset.steps[0][1][0].rng"]),
    "a deque": (Items(steps=collections.deque([rng()])), ["dataset.steps[0]"]),
    "a dict": (Items(transform={"train": Noise(rng())}), ["dataset.transform['train'].rng"]),
    "other mappings": (
        Items(
            a=types.MappingProxyType({1: rng()}),
            b=collections.UserDict(x=rng()),
            c=collections.defaultdict(list, y=[rng()]),
        ),
        ["dataset.a[1]", "dataset.b.data['x']", "dataset.c['y'][0]"],
    ),
    "an array of objects": (Items(a=np.array([None, rng()], object)), ["dataset.a[1]"]),
    "slots": (Items(step=Slotted()), ["dataset.step.rng"]),
    "inherited slots": (Items(step=SlottedBelow()), ["dataset.step.rng"]),
    "a dataclass": (Items(settings=Settings(rng())), ["dataset.settings.rng"]),
    "a class attribute": (Items(transform=RandFlip()), ["dataset.transform.R"]),
    "a class attribute, through super()": (
        Items(transform=RandCompose(RandCompose(), Inherited())),
        ["dataset.transform.transforms[1].R"],
    ),
    "a class attribute, through torchvision": (
        Items(transform=v2.Compose([Jitter()])),
        ["dataset.transform.transforms[0].R"],
    ),
    "an attribute of a class that is named": (ByClass(), ["dataset.Shared.rng"]),
    "a closure": (Items(transform=closure()), ["dataset.transform.rng"]),
    "a default argument": (ByDefault(), ["dataset.__getitem__.rng"]),
    "a keyword's default": (Items(transform=by_keyword), ["dataset.transform.rng"]),
    "a partial": (
        Items(transform=functools.partial(with_generator, generator=torch.Generator())),
        ["dataset.transform.keywords['generator']"],
    ),
    "a partial's arguments": (
        Items(transform=functools.partial(with_generator, 1, torch.Generator())),
        ["dataset.transform.args[1]"],
    ),
    "a bound method": (Items(draw=rng().gauss), ["dataset.draw.__self__"]),
    "a native method": (Items(draw=rng().random), ["dataset.draw.__self__"]),
    "a bit generator": (Items(bits=np.random.PCG64(1)), ["dataset.bits"]),
    "a global, in a property": (BySuper(), [f"{HERE}.RNG"]),
    "a global, in a helper's helper": (ByHelper(), [f"{HELPERS}.RNG"]),
    "a global, imported by the method": (ByImport(), [f"{HELPERS}.RNG"]),
    "a global, in a cached method": (ByWrapped(), [f"{HERE}.RNG"]),
    "a global, in a held object's method": (ByStep(step=Step()), [f"{HERE}.RNG"]),
    "a global's method": (Items(transform=helpers.bound), [f"{HELPERS}.DRAW.__self__"]),
    "Subset": (Subset(Items(rng=rng()), [0]), ["dataset.dataset.rng"]),
    "a ConcatDataset of many": (
        ConcatDataset([*(Items() for _ in range(500)), Items(rng=rng()), *[Items()] * 400]),
        ["dataset.datasets[500].rng"],
    ),
    "StackDataset": (StackDataset(a=Items(rng=rng())), ["dataset.datasets['a'].rng"]),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_private_generator_is_found_by_its_path(holder: str) -> None:
    """A20."""
    dataset, expected = HOLDERS[holder]
    assert paths(dataset) == expected


def test_a_transform_of_the_loader_is_searched() -> None:
    """A20: the same holders, without a dataset around them."""
    assert paths(range(4), [Noise(rng())]) == ["transform[0].rng"]
    assert paths(range(4), closure()) == ["transform.rng"]
    assert paths(range(4), RandFlip().__call__) == ["transform.__self__.R"]


def test_a_generator_that_two_objects_share_is_found_once() -> None:
    shared = rng()
    assert paths(Items(a=Noise(shared), b=[shared])) == ["dataset.a.rng"]


class DrawsWhenBuilt(Items):
    """Uses class and global generators, but not for a sample."""

    R = random.Random(1)

    def __init__(self) -> None:
        self.order = [RNG.random(), self.R.random()]

    def shuffle(self) -> None:
        RNG.shuffle(self.order)


class DrawsPublicly(Items):
    def __getitem__(self, index: int) -> Any:
        local = np.random.default_rng(index), random.Random(index), torch.Generator()
        return local, random.random(), np.random.rand(), torch.rand(())


class Order(Sampler[int]):
    def __init__(self) -> None:
        self.rng = rng()


@pytest.mark.parametrize(
    "dataset",
    [
        DrawsWhenBuilt(),
        DrawsPublicly(),
        Items(transform=RandCompose(ToTensor())),
        Items(sampler=Order()),
        Items(draw=random.random, choose=np.random.choice, device=torch.default_generator),
        Items(module=helpers, kind=Randomizable, function=helpers.unused),
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_generators_that_no_sample_uses_are_not_found(dataset: Any) -> None:
    assert paths(dataset) == []


def test_a_seeded_object_whose_code_draws_nothing_is_not_found() -> None:
    """MONAI gives its Compose a private generator when it is built."""
    transform = RandCompose(RandFlip())
    for each in (transform, *transform.transforms):
        each.set_random_state(3)
    assert paths(Items(transform=transform)) == ["dataset.transform.transforms[0].R"]


# Limits.


def test_a_million_paths_are_not_looked_at_one_by_one() -> None:
    class Counted(list[Any]):
        looked_at = 0

        def __getitem__(self, index: Any) -> Any:
            Counted.looked_at += 1
            return super().__getitem__(index)

        def __iter__(self) -> Any:
            raise AssertionError("it calls a method of the user's")

        __len__ = __iter__

    names = [f"{i}.jpg" for i in range(1000)] * 1000
    pairs = list(zip(names, range(len(names)), strict=True))
    reached = reachable({"dataset": Items(a=names, b=pairs, c=Counted(names), d=dict(pairs[:500]))})
    assert len(reached.found) < 10
    assert reached.unsearched == {}
    assert Counted.looked_at == 0


def test_entries_of_a_long_list_of_objects_are_sampled_and_reported() -> None:
    dataset = Items(steps=[Noise(rng()) for _ in range(2000)])
    reached = reachable({"dataset": dataset})
    found = [path for path, thing in reached.found if is_generator(thing)]
    assert found[0] == "dataset.steps[0].rng"
    assert found[-1] == "dataset.steps[1999].rng"
    assert len(found) == 8
    assert reached.unsearched == {"dataset": ["1992 entries of dataset.steps"]}


def test_a_reached_limit_is_reported_for_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_OBJECTS", 50)
    dataset = Items(steps=[[Noise(None)] for _ in range(100)])
    reached = reachable({"transform": Noise(rng()), "dataset": dataset})
    assert reached.unsearched == {"dataset": ["objects beyond the first 50"]}
    assert "transform.rng" in [path for path, _ in reached.found]


def test_an_object_that_is_called_in_native_code_is_reported() -> None:
    reached = reachable({"transform": functools.partial(ctypes.CDLL(None).rand)})
    assert reached.unsearched == {"transform": ["transform.func, native code of _FuncPtr"]}


class Hostile:
    """Raises from every method that a search might call."""

    def fail(self, *arguments: Any) -> Any:
        raise AssertionError("it calls code of the user's")

    __getattr__ = __len__ = __iter__ = __eq__ = __bool__ = __repr__ = fail  # type: ignore[assignment]
    __hash__ = object.__hash__
    lazy = property(fail)
    __class__ = property(fail)  # type: ignore[assignment]


def test_no_code_of_the_user_runs() -> None:
    hostile = Hostile()
    vars(hostile)["rng"] = rng()
    assert paths(Items(a=hostile, b={hostile: rng()})) == ["dataset.a.rng", "dataset.b[Hostile]"]

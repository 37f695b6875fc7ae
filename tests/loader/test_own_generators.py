"""Generators of the user's own: albumentations' are keyed, others are warned of."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from stateful_gpu_loader import FolderSource, MixedDataset, StatefulGPULoader
from tests.conformance import assert_exact_resume
from tests.images import encode, photograph
from tests.map_datasets import Indices, OwnGenerator
from tests.own_augmentations import Compose, Flip

N = 12
Make = Callable[[], dict[str, Any]]


class Augmented(Dataset[Any]):
    """Draws by what it was given, held as it was given."""

    def __init__(self, *steps: Any, held: Any = None) -> None:
        self.steps: Any = list(steps)
        self.held = held

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, list[float]]:
        image = [random.random()]
        for step in self.steps:
            image = step(image=image)["image"]
        return index, image


class Wrapped:
    """A transform of the user's around one of albumentations."""

    def __init__(self, augment: Any) -> None:
        self.augment = augment

    def __call__(self, *, image: Any) -> Any:
        return self.augment(image=image)


class Unchanged(Wrapped):
    def __call__(self, sample: Any) -> Any:  # type: ignore[override]
        return sample


def flips(seed: int | None = None) -> Compose:
    return Compose([Flip(), Flip()], seed)


def closure() -> Any:
    augment = flips()
    return lambda sample: (sample, augment(image=[])["image"])


class Attribute(Augmented):
    def __init__(self) -> None:
        super().__init__()
        self.augment = flips()
        self.steps = (self._apply,)

    def _apply(self, *, image: Any) -> Any:
        return self.augment(image=image)


CASES: dict[str, Make] = {
    "an attribute": lambda: {"dataset": Attribute()},
    "in a list": lambda: {"dataset": Augmented(flips(), flips())},
    "seeded by the user": lambda: {"dataset": Augmented(flips(seed=137))},
    "an attribute's attribute": lambda: {"dataset": Augmented(Wrapped(flips()))},
    "inside Subset and ConcatDataset": lambda: {
        "dataset": ConcatDataset([Subset(Augmented(flips()), [1, 3, 8]), Augmented(flips())])
    },
    "inside a mixture": lambda: {"dataset": MixedDataset([Augmented(flips()), Indices(4)])},
    "the loader's transform": lambda: {"dataset": Indices(N), "transform": closure()},
    "one of the loader's transforms": lambda: {
        "dataset": Indices(N),
        "transform": [closure(), closure()],
    },
}


def make(case: Make, **arguments: Any) -> StatefulGPULoader[Any]:
    given = {"batch_size": 4, "shuffle": True, "seed": 3, "collate_fn": list, **case(), **arguments}
    if isinstance(given["dataset"], MixedDataset):
        given["shuffle"] = None
    return StatefulGPULoader(**given)


@pytest.mark.processes
@pytest.mark.parametrize("name", CASES)
def test_albumentations_resumes_exactly(name: str) -> None:
    """Without a line of the user's, on any number of workers."""
    make_it = partial(make, CASES[name])
    assert_exact_resume(make_it, other=({"num_workers": 2},))


def test_the_draws_of_several_transforms_are_not_the_same() -> None:
    """set_random_seed would give each transform the same stream, and the dataset's own
    draws from the global generator must be others, too."""
    data = Augmented(Compose([Flip(), Flip()]), Compose([Flip()]))
    for _, drawn in (sample for batch in make(lambda: {"dataset": data}) for sample in batch):
        assert len(drawn) == len(set(drawn))


def test_real_albumentations_resume_exactly() -> None:
    """With the package itself: its flips come independently of each other."""
    import albumentations

    image = np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3)

    class Images(Dataset[Any]):
        def __init__(self, kind: Any) -> None:
            self.augment = kind(
                [
                    albumentations.HorizontalFlip(p=0.5),
                    albumentations.VerticalFlip(p=0.5),
                    albumentations.RandomCrop(16, 16),
                    albumentations.OneOf(
                        [albumentations.RandomBrightnessContrast(), albumentations.GaussNoise()]
                    ),
                ]
            )

        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> Any:
            done = self.augment(image=image)
            return done["image"], [
                step["applied"] for step in done.get("replay", {"transforms": []})["transforms"]
            ]

    for kind in (albumentations.Compose, albumentations.ReplayCompose):

        def build(kind: Any = kind, **arguments: Any) -> StatefulGPULoader[Any]:
            return make(lambda: {"dataset": Images(kind), "batch_size": 16}, **arguments)

        assert_exact_resume(build, other=({"num_workers": 2},))
    applied = {tuple(flags[:2]) for batch in build() for _, flags in batch}
    assert applied == {(False, False), (False, True), (True, False), (True, True)}


class Holding(Indices):
    """Holds whatever it is given, and draws nothing from it."""

    def __init__(self, held: Any) -> None:
        super().__init__(N)
        self.held = held


class HoldingWithState(Holding):
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize(
    "generator",
    [
        random.Random(1),
        np.random.default_rng(1),
        np.random.RandomState(1),
        torch.Generator().manual_seed(1),
    ],
    ids=lambda generator: type(generator).__name__,
)
@pytest.mark.parametrize(
    ("hold", "path"),
    [
        (lambda held: {"dataset": Holding(held)}, "dataset.held"),
        (
            lambda held: {"dataset": Subset(Holding(Wrapped(held)), [0])},
            "dataset.dataset.held.augment",
        ),
        (lambda held: {"dataset": Indices(N), "transform": Unchanged(held)}, "transform.augment"),
    ],
)
def test_a_generator_that_nobody_keys_is_warned_of_once(
    generator: Any, hold: Callable[[Any], dict[str, Any]], path: str
) -> None:
    """The attribute and the remedies, at the first pass and at no other."""
    loader = StatefulGPULoader(batch_size=4, **hold(generator))
    batches = iter(loader)
    with pytest.warns(UserWarning, match=rf"^{re.escape(path)}: .*set_sample_seed"):
        next(batches)
    list(batches)
    list(loader)


@pytest.mark.parametrize(
    "dataset",
    [
        OwnGenerator(N),
        HoldingWithState(random.Random(1)),
        Holding(torch.default_generator),
        Holding([np.random.mtrand._rand, random._inst]),  # type: ignore[attr-defined]
        Holding(flips()),
    ],
    ids=["set_sample_seed", "state", "torch's", "NumPy's and Python's", "keyed"],
)
def test_other_generators_are_not_warned_of(dataset: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(StatefulGPULoader(dataset, batch_size=4))


def test_sources_of_the_package_are_not_warned_of(tmp_path: Any) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.jpg").write_bytes(bytes(encode(photograph("coffee")).numpy()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(StatefulGPULoader(FolderSource(tmp_path), batch_size=1))


def test_a_transform_with_set_sample_seed_is_seeded_by_it() -> None:
    """The method that silences the warning is the one that is called."""

    class Drawing:
        def __init__(self) -> None:
            self.generator = random.Random(0)

        def set_sample_seed(self, seed: int) -> None:
            self.generator.seed(seed)

        def __call__(self, sample: Any) -> float:
            return self.generator.random()

    def build(**arguments: Any) -> StatefulGPULoader[Any]:
        return StatefulGPULoader(range(12), batch_size=2, seed=1, transform=Drawing(), **arguments)

    assert_exact_resume(build)

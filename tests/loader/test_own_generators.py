"""Private generators: albumentations' are keyed, others cause a warning."""

from __future__ import annotations

import ctypes
import random
import re
import secrets
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import datasets as hf_datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset, TensorDataset
from torchvision import datasets, transforms
from torchvision.transforms import v2

from stateful_gpu_loader import (
    CallableSource,
    FolderSource,
    ShardedDataset,
    StatefulGPULoader,
)
from tests.conformance import assert_same_rest, loaded, refusal, uninterrupted
from tests.images import write_photo_folder
from tests.map_datasets import Indices, OwnGenerator
from tests.own_augmentations import Albumentations, Augmented, Compose, Flip, N, Wrapped, flips
from tests.stream_kinds import Arguments, with_augmentations


class Unchanged(Wrapped):
    def __call__(self, sample: Any) -> Any:  # type: ignore[override]
        return sample


def test_several_transforms_have_different_draws() -> None:
    """set_random_seed would give each transform the same stream.

    The dataset's own draws from the global generator must be different, too.
    """
    data = Augmented(Compose([Flip(), Flip()]), Compose([Flip()]))
    for _, drawn in (
        sample for batch in with_augmentations(lambda: {"dataset": data}) for sample in batch
    ):
        assert len(drawn) == len(set(drawn))


def test_albumentations_flips_are_independent_of_each_other() -> None:
    """With the real package; each transform has its own stream."""
    data = Albumentations("ReplayCompose")
    applied = {
        tuple(flags[:2])
        for batch in with_augmentations(lambda: {"dataset": data, "batch_size": 16})
        for _, flags in batch
    }
    assert applied == {(False, False), (False, True), (True, False), (True, True)}


class Holding(Indices):
    """Holds the object that it is given, and draws nothing from it."""

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
def test_an_unseeded_generator_is_warned_of_once(
    generator: Any, hold: Callable[[Any], dict[str, Any]], path: str
) -> None:
    """The warning has the attribute and the remedies, and comes only at the first pass."""
    loader = StatefulGPULoader(batch_size=4, **hold(generator))
    batches = iter(loader)
    with pytest.warns(UserWarning, match=rf"^{re.escape(path)}: .*set_sample_seed"):
        next(batches)
    list(batches)
    list(loader)


class Randomizable:
    """MONAI's class of the same name: all transforms share a generator."""

    R = np.random.RandomState(1)

    def __call__(self, sample: Any) -> Any:
        return sample, self.R.rand()


SHARED = np.random.default_rng(1)


class Drawing(Indices):
    def __getitem__(self, index: int) -> Any:
        return index, draw_shared()


def draw_shared() -> float:
    return float(SHARED.random())


def closed() -> Any:
    generator = random.Random(1)
    return lambda sample: (sample, generator.random())


def defaulting(sample: Any, generator: Any = random.Random(1)) -> Any:  # noqa: B008
    return sample, generator.random()


class Transformed(Indices):
    def __init__(self, transform: Any) -> None:
        super().__init__(N)
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        return self.transform(super().__getitem__(index))


def of_torch(sample: Any, generator: torch.Generator) -> Any:
    return sample, float(torch.rand((), generator=generator))


UNSEEN: dict[str, tuple[Arguments, str]] = {
    "torchvision's Compose": (
        lambda: {"dataset": Transformed(transforms.Compose([closed()]))},
        "dataset.transform.transforms[0].generator",
    ),
    "Compose of v2, of the loader": (
        lambda: {"dataset": Indices(N), "transform": v2.Compose([Randomizable()])},
        "transform.transforms[0].R",
    ),
    "a dict": (
        lambda: {"dataset": Transformed({"train": closed()}["train"])},
        "dataset.transform.generator",
    ),
    "a class attribute": (
        lambda: {"dataset": Transformed(Randomizable())},
        "dataset.transform.R",
    ),
    "a default argument, in a list": (
        lambda: {"dataset": Indices(N), "transform": [defaulting, closed()]},
        "transform[0].generator, transform[1].generator",
    ),
    "an argument": (
        lambda: {
            "dataset": Indices(N),
            "transform": partial(of_torch, generator=torch.Generator().manual_seed(1)),
        },
        "transform.keywords['generator']",
    ),
    "a global variable": (lambda: {"dataset": Drawing(N)}, f"{__name__}.SHARED"),
    "a function in CallableSource": (
        lambda: {
            "dataset": CallableSource(lambda info: draw_shared(), length=N),
            "shuffle": None,
        },
        f"{__name__}.SHARED",
    ),
}


@pytest.mark.parametrize("holder", UNSEEN)
def test_samples_drawn_from_a_hidden_generator_are_warned_of(holder: str) -> None:
    """A20: the samples differ after a resume, and the warning names the path."""
    case, paths = UNSEEN[holder]
    loader = with_augmentations(case)
    batches = iter(loader)
    with pytest.warns(UserWarning, match=rf"^{re.escape(paths)}: .*set_sample_seed"):
        next(batches)
    state = loader.state_dict()
    expected = list(batches)
    resumed = loaded(with_augmentations(case), state)
    with pytest.warns(UserWarning, match="private generator"):
        assert list(resumed) != expected


def by_system(sample: Any) -> Any:
    return sample, random.SystemRandom().random()


@pytest.mark.parametrize(
    ("transform", "path"),
    [
        (Unchanged(random.SystemRandom()), r"transform\.augment"),
        (by_system, r"random\.SystemRandom"),
        (secrets.choice, r"transform\.__self__"),
    ],
)
def test_the_systems_random_numbers_are_warned_of(transform: Any, path: str) -> None:
    """A20: no seed makes them exact, so no method is advised."""
    loader = with_augmentations(
        lambda: {"dataset": Transformed(range), "transform": transform, "shuffle": None}
    )
    loader.dataset.transform = lambda index: [index]
    with pytest.warns(UserWarning, match=rf"^{path}: .*SystemRandom") as caught:
        next(iter(loader))
    assert len(caught) == 1
    assert "set_sample_seed" not in str(caught[0].message)


class Seedable:
    """A transform that the loader can seed."""

    def __init__(self) -> None:
        self.generator = random.Random(0)

    def set_sample_seed(self, seed: int) -> None:
        self.generator.seed(seed)

    def __call__(self, sample: Any) -> Any:
        return [*sample, self.generator.random()] if sample else [self.generator.random()]


def test_set_sample_seed_is_called_where_the_generator_is() -> None:
    """A20: the remedy works inside torchvision's Compose, and each object has its own draws."""

    def case() -> dict[str, Any]:
        steps = transforms.Compose([lambda index: [], Seedable(), Seedable()])
        return {"dataset": Transformed(steps)}

    for sample in (sample for batch in with_augmentations(case) for sample in batch):
        assert len(set(sample)) == len(sample) == 2


def test_objects_that_cannot_be_searched_are_unverified() -> None:
    """A20: the argument that holds it is reported; strict=True refuses it."""

    class Known(Indices):
        def __init__(self, held: Any) -> None:
            super().__init__(N)
            self.held = held

        def fingerprint(self) -> str:
            return "known"

    def build(held: Any) -> StatefulGPULoader[Any]:
        return StatefulGPULoader(Known(held), batch_size=4, strict=True)

    assert build([Unchanged(None)] * 100).unverified == ()
    for held in (ctypes.CDLL(None).rand, [Unchanged(None)] * 2000):
        loader = build(held)
        assert loader.unverified == ("dataset",)
        refused = refusal(build(held), loader.state_dict(), "dataset")
        assert "dataset.held" in refused.present
        build(held).load_state_dict(loader.state_dict(), accept={"dataset"})


def torchvision_folder(folder: Path) -> Any:
    write_photo_folder(folder, num_classes=2, per_class=2)
    steps = [transforms.RandomResizedCrop(8), transforms.ColorJitter(0.4), transforms.ToTensor()]
    return datasets.ImageFolder(str(folder), transforms.Compose(steps))


def torchvision_v2(folder: Path) -> Any:
    steps = [v2.RandomResizedCrop(8), v2.RandAugment(), v2.ToImage()]
    return datasets.FakeData(4, (3, 16, 16), 2, v2.Compose(steps))


def hugging_face(folder: Path) -> Any:
    data = hf_datasets.Dataset.from_dict({"value": [1, 2, 3, 4]})
    return data.map(lambda row: row).with_transform(lambda rows: rows)


def of_albumentations(folder: Path) -> Any:
    import albumentations

    steps = albumentations.Compose(
        [albumentations.HorizontalFlip(), albumentations.OneOf([albumentations.GaussNoise()])]
    )
    image = np.zeros((8, 8, 3), np.uint8)
    return Transformed(lambda index: steps(image=image)["image"])


QUIET: dict[str, Callable[[Path], Any]] = {
    "ImageFolder": torchvision_folder,
    "torchvision, v2": torchvision_v2,
    "TensorDataset": lambda folder: TensorDataset(torch.arange(4)),
    "Hugging Face's Dataset": hugging_face,
    "albumentations": of_albumentations,
    "Pillow": lambda folder: Transformed(lambda index: np.asarray(Image.new("RGB", (4, 4)))),
    "the global generators": lambda folder: Transformed(
        lambda index: random.random() + np.random.rand() + float(torch.rand(()))
    ),
    "a generator for each sample": lambda folder: Transformed(
        lambda index: np.random.default_rng(index).random() + random.Random(index).random()
    ),
    "a source of this package": lambda folder: FolderSource.from_paths(
        write_photo_folder(folder, num_classes=1, per_class=2), [0, 0]
    ),
    "set_sample_seed": lambda folder: OwnGenerator(N),
    "a generator beside a state": lambda folder: HoldingWithState(random.Random(1)),
    "torch's generator": lambda folder: Holding(torch.default_generator),
    "NumPy's and Python's": lambda folder: Holding(
        [np.random.mtrand._rand, random._inst]  # type: ignore[attr-defined]
    ),
    "keyed": lambda folder: Holding(flips()),
}


@pytest.mark.parametrize("kind", QUIET)
def test_datasets_that_draw_nothing_unseeded_are_not_warned_of(kind: str, tmp_path: Path) -> None:
    """A20: warnings are errors in tests."""
    dataset = QUIET[kind](tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(StatefulGPULoader(dataset, batch_size=2, seed=1, collate_fn=list))


class SeedableShards(ShardedDataset):
    """Draws for each sample from private generators inside a Compose."""

    def __init__(self, steps: Any) -> None:
        self.transform = steps

    def shards(self) -> list[str]:
        return ["0", "1", "2"]

    def read_shard(self, shard: str, cursor: int) -> Iterator[tuple[Any, int]]:
        for number in range(cursor, 4):
            yield torch.tensor(self.transform([int(shard), number])), number + 1


class Calls:
    """A CallableSource function that draws from private generators."""

    def __init__(self, steps: Any) -> None:
        self.transform = steps

    def __call__(self, info: Any) -> Any:
        return torch.tensor(self.transform([info.idx_in_epoch]))


@pytest.mark.parametrize("kind", ["shards", "calls"])
@pytest.mark.parametrize("step", [Seedable, Flip])
def test_private_generators_are_seeded_in_shards_and_calls(kind: str, step: Any) -> None:
    """A20: like in a map-style dataset, so the warning's remedy works."""

    def build(**arguments: Any) -> StatefulGPULoader[Any]:
        steps = transforms.Compose([step(), step()])
        source: Any = SeedableShards(steps)
        if kind == "calls":
            source = CallableSource(Calls(steps), length=N)
        return StatefulGPULoader(source, batch_size=2, seed=1, **arguments)

    expected, states = uninterrupted(build(), 1)
    resumed = loaded(build(), states[0, 2])
    assert_same_rest(resumed, expected, (0, 2), 1)

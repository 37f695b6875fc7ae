"""Callables as text: equal where the stream is equal, in every process."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate, default_convert
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

import stateful_gpu_loader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.state.descriptions import Describer, describe, describe_dataset
from stateful_gpu_loader.transforms import CenterCrop
from tests.map_datasets import Indices, mix_batch


class Named:
    """A callable with a description."""

    def __init__(self, text: str = "me, 3 files") -> None:
        self.text = text

    def fingerprint(self) -> str:
        return self.text

    def __call__(self, sample: Any) -> Any:
        return sample


class MyCrop(v2.CenterCrop):
    """A user's subclass of a torchvision transform."""


def unknown(thing: Any) -> tuple[str, ...]:
    return Describer().description(thing).unknown


def test_things_are_described_by_their_fingerprint_or_their_name() -> None:
    assert describe(Named()) == "me, 3 files"
    assert describe(mix_batch) == "tests.map_datasets.mix_batch"
    assert describe(Indices(3)) == "tests.map_datasets.Indices"
    assert describe(default_collate) == "torch.utils.data.default_collate"
    assert describe(default_convert) == "torch.utils.data.default_convert"
    assert describe(v2.functional.hflip) == "torchvision.transforms.v2.functional.horizontal_flip"
    assert "0x" not in describe(lambda sample: sample)


def test_a_partial_is_known_by_its_function_and_plain_arguments() -> None:
    """Another ``functools.partial`` of the same collate function differs."""
    assert describe(functools.partial(mix_batch, 1, length=512)) == (
        "functools.partial(tests.map_datasets.mix_batch, 1, length=512)"
    )
    assert unknown(functools.partial(json.dumps, indent=2)) == ()
    assert unknown(functools.partial(json.dumps, cls=Indices(3))) == (
        "what a tests.map_datasets.Indices does",
    )


TRANSFORMS = [
    (lambda: v1.RandomCrop(8), lambda: v1.RandomCrop(9)),
    (lambda: v1.Compose([v1.ToTensor()]), lambda: v1.Compose([v1.PILToTensor()])),
    (
        lambda: v1.Compose([v1.RandomApply([v1.ColorJitter(0.1)], p=0.3)]),
        lambda: v1.Compose([v1.RandomApply([v1.ColorJitter(0.2)], p=0.3)]),
    ),
    (
        lambda: v1.RandomApply(torch.nn.ModuleList([v1.Pad(1)])),
        lambda: v1.RandomApply(torch.nn.ModuleList([v1.Pad(2)])),
    ),
    (lambda: torch.nn.Sequential(v1.Resize(8)), lambda: torch.nn.Sequential(v1.Resize(9))),
    (
        lambda: v1.LinearTransformation(torch.eye(2), torch.zeros(2)),
        lambda: v1.LinearTransformation(torch.eye(2) * 2, torch.zeros(2)),
    ),
    (lambda: v1.AutoAugment(), lambda: v1.AutoAugment(v1.AutoAugmentPolicy.SVHN)),
    (lambda: v2.Resize(8), lambda: v2.Resize(8, interpolation=v2.InterpolationMode.NEAREST)),
    (
        lambda: v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}),
        lambda: v2.ToDtype({tv_tensors.Image: torch.float64, "others": None}),
    ),
    (
        lambda: v2.Compose([v2.RandomChoice([v2.Identity(), v2.GaussianBlur(3)])]),
        lambda: v2.Compose([v2.RandomChoice([v2.Identity(), v2.GaussianBlur(5)])]),
    ),
    (lambda: v2.Resize(8).forward, lambda: v2.Resize(9).forward),
    (
        lambda: v2.Compose([v2.ToImage(), v2.RandomCrop(8)]),
        lambda: v2.Compose([v2.RandomCrop(8), v2.ToImage()]),
    ),
]


def test_torchvision_transforms_are_known_by_class_and_settings() -> None:
    """Both generations of them, nested, and completely: nothing stays unverified."""
    for one, other in TRANSFORMS:
        assert describe(one()) == describe(one())
        assert describe(one()) != describe(other())
        assert unknown(one()) == ()


def test_two_spellings_of_one_setting_are_equal() -> None:
    """The settings that the transform keeps count, not those that were typed."""
    mode = v2.InterpolationMode.BILINEAR
    assert describe(v2.Resize(8)) == describe(v2.Resize([8], interpolation=mode))


def test_the_text_shows_the_settings() -> None:
    """A mismatch shows both values, and the reader must see the difference."""
    pipeline = v2.Compose([v2.RandomHorizontalFlip(0.25), mix_batch])
    assert describe(pipeline) == (
        "torchvision.transforms.v2.Compose(transforms=[torchvision.transforms.v2."
        "RandomHorizontalFlip(p=0.25), tests.map_datasets.mix_batch])"
    )


def test_code_of_the_users_is_known_by_name_and_noted() -> None:
    """A function may change under its name, so the name proves nothing."""
    assert unknown(mix_batch) == ("the code of tests.map_datasets.mix_batch",)
    assert len(unknown(lambda sample: sample)) == 1
    assert len(unknown(Indices(3).__getitem__)) == 1
    assert unknown(v2.Compose([v2.CenterCrop(3), mix_batch])) == unknown(mix_batch)
    assert unknown(v1.Lambda(mix_batch)) == unknown(mix_batch)
    assert len(unknown(MyCrop(3))) == 1
    assert len(unknown(torch.nn.Sequential(torch.nn.Linear(2, 2)))) == 1
    for known in (Named(), default_collate, float, np.add, torch.relu, CenterCrop(3)):
        assert unknown(known) == ()


def test_a_function_may_be_given_a_fingerprint() -> None:
    """This is how a user's collate function is verified."""

    def collate(samples: list[Any]) -> list[Any]:
        return samples

    collate.fingerprint = lambda: "pad to 512, 2"  # type: ignore[attr-defined]
    assert describe(collate) == "pad to 512, 2"
    assert unknown(collate) == ()


def test_a_cyclic_object_has_a_finite_description() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert len(unknown(endless)) == 1


def test_a_long_description_is_shortened_and_stays_distinct() -> None:
    one, other = describe(Named("x" * 5000 + "a")), describe(Named("x" * 5000 + "b"))
    assert one != other
    assert len(one) <= 400
    many = [v2.Resize(size) for size in range(1, 60)]
    assert len({describe(v2.Compose(many)), describe(v2.Compose(many[::-1]))}) == 2
    assert len(describe(v2.Compose(many))) <= 1000


@pytest.mark.filterwarnings("ignore")
def test_real_albumentations_are_known() -> None:
    """With the real package."""
    import albumentations

    def make(p: float) -> Any:
        blur = albumentations.OneOf([albumentations.Blur(p=p), albumentations.CLAHE()], p=0.2)
        return albumentations.Compose([albumentations.RandomCrop(8, 8), blur])

    assert describe(make(0.5)) == describe(make(0.5))
    assert describe(make(0.5)) != describe(make(0.6))
    assert unknown(make(0.5)) == ()
    lambdas = [albumentations.Lambda(image=mix_batch, name="mine")]
    assert unknown(albumentations.Compose(lambdas)) != ()
    assert unknown(albumentations.Compose([albumentations.Lambda(image=mix_batch)])) != ()


def test_equal_dicts_have_equal_descriptions_in_any_insertion_order() -> None:
    """Dicts are often built from sets, whose order differs between processes."""
    assert (
        describe_dataset(Held({"a": 1, "b": 2})).text
        == describe_dataset(Held({"b": 2, "a": 1})).text
    )


def test_paths_in_small_dicts_count_below_the_folder_that_they_share() -> None:
    """For lists of records, such as Hugging Face's."""
    texts = {
        describe_dataset(Held([{"image": f"{root}/{i}.jpg", "label": i} for i in range(3)])).text
        for root in ("/scratch/job1", "/scratch/job2")
    }
    assert len(texts) == 1


def test_a_function_of_a_script_is_the_same_in_processes_that_it_spawns() -> None:
    """In the child the script's module is called __mp_main__."""

    def collate() -> None: ...

    texts = []
    for module in ("__main__", "__mp_main__"):
        collate.__module__ = module
        texts.append(describe(collate))
    assert len(set(texts)) == 1


def test_a_fingerprint_that_a_wrapper_only_passes_on_is_not_its_own() -> None:
    """The fingerprint belongs to the wrapped object."""

    class Wrapper:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    class Known:
        def fingerprint(self) -> str:
            return "known"

    assert "known" not in describe(Wrapper(Known()))


class Held:
    """A user's dataset, with its content in an attribute."""

    def __init__(self, data: Any) -> None:
        self.data = data


SAVED_NAMES = [
    "datasets.lmdb.caffe2_source.Caffe2LMDBSource",
    "datasets.lmdb.caffe.CaffeLMDBSource",
    "datasets.coco.source.CocoSource",
    "datasets.folder.source.FolderSource",
    "datasets.parquet.shards.ParquetShards",
    "datasets.prepared.source.PreparedSource",
    "datasets.recordio.source.RecordIOShards",
    "datasets.recordio.source.RecordIOSource",
    "datasets.tfrecord.source.TFRecordShards",
    "datasets.tfrecord.source.TFRecordSource",
    "samplers.distributed.DistributedShuffledSampler",
    "transforms.geometry.random_resized_crop.RandomResizedCrop",
    "transforms.policies.recipes.RandAugment",
    "transforms.policies.recipes.TrivialAugmentWide",
    "transforms.batch_recipe.BatchRecipe",
]


def test_moved_classes_and_their_methods_keep_their_names_in_saved_states() -> None:
    for saved in SAVED_NAMES:
        name = saved.rpartition(".")[2]
        thing = getattr(stateful_gpu_loader, name, None) or getattr(T, name)
        assert describe(thing) == f"stateful_gpu_loader.{saved}"
        if name == "RandomResizedCrop":
            for method in (thing.apply, thing(8).apply):
                assert describe(method) == f"stateful_gpu_loader.{saved}.apply"

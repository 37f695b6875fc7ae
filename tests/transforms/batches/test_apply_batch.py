"""Compose.apply_batch: ragged batches, compared with each image alone, recipe by recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.transforms.batches import batching
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, nothing_drawn
from tests.transforms.pictures import noise
from tests.transforms.ragged_pictures import SIZES, drawn_for, one_by_one, ragged

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
NORMALIZE = T.Normalize(MEAN, STD)
FLIP, TURN = T.RandomHorizontalFlip(), T.RandomVerticalFlip()
SCALE = T.ToDtype(torch.float32, scale=True)


class Inverted(T.Recipe):
    """A user's recipe for single images only."""

    def draw(self, uniforms: FloatArray, sizes: np.ndarray) -> Draw:
        return nothing_drawn(sizes)

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        return 255 - image


class InvertedCrop(T.CenterCrop):
    """A user's recipe that changes what it inherits."""

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        return 255 - super().apply(image, numbers)


PIPELINES: dict[str, tuple[list[T.Recipe], int, int]] = {
    # Recipes, how many resamplings of the whole batch they cost, and how many more steps.
    "training": ([T.RandomResizedCrop(32), FLIP, NORMALIZE], 1, 0),
    "evaluation": ([T.Resize(40), T.CenterCrop(32), NORMALIZE], 1, 0),
    "evaluation, scaled": ([T.Resize(40), T.CenterCrop(32), SCALE, NORMALIZE], 1, 0),
    "without antialias": ([T.RandomResizedCrop(32, antialias=False), TURN], 1, 0),
    "flips before": ([FLIP, TURN, T.RandomResizedCrop((20, 30)), NORMALIZE], 1, 0),
    "flips between": ([FLIP, T.RandomCrop(33), TURN, T.Resize((40, 41)), FLIP, TURN], 1, 0),
    "crop of a crop": ([T.RandomCrop(33), FLIP, T.RandomCrop((20, 16)), T.CenterCrop(9)], 1, 0),
    "bytes": ([T.RandomResizedCrop(32), T.ToMemoryFormat(torch.channels_last)], 1, 0),
    "half": ([T.RandomResizedCrop(32), NORMALIZE, T.ToDtype(torch.float16)], 1, 0),
    "bfloat16": ([T.RandomResizedCrop(32), T.ToDtype(torch.bfloat16, scale=True)], 1, 0),
    "crop after the cast": ([T.Resize((40, 44)), SCALE, T.RandomCrop(32), FLIP, NORMALIZE], 1, 0),
    "two resizes": ([T.RandomResizedCrop(40), T.Resize((24, 30)), NORMALIZE], 2, 0),
    "color": ([T.RandomResizedCrop(32), FLIP, T.ColorJitter(0.4, 0.4, 0.4, 0.1), NORMALIZE], 1, 2),
    "crop after color": (
        [T.Resize((40, 40)), T.RandomGrayscale(0.5), T.RandomCrop(32), SCALE],
        2,
        1,
    ),
    "user's recipe": ([Inverted(), T.RandomResizedCrop(32), Inverted(), NORMALIZE], 1, 3),
    "inherited": ([InvertedCrop(30), NORMALIZE], 0, 2),
    "padding": ([T.RandomCrop(64, padding=3, pad_if_needed=True, fill=7), FLIP, NORMALIZE], 1, 1),
    "small images": ([T.CenterCrop(64), T.Resize((20, 21)), NORMALIZE], 1, 1),
    "padding between": ([T.Resize((32, 32)), T.RandomCrop(32, padding=4), FLIP, NORMALIZE], 2, 1),
    "nearest": ([T.RandomResizedCrop(32, interpolation="nearest"), FLIP, NORMALIZE], 1, 1),
    "bicubic": ([T.Resize((32, 24), interpolation="bicubic"), NORMALIZE], 0, 2),
    "expanding": ([T.RandomRotation(30, expand=True), T.RandomResizedCrop(32), NORMALIZE], 1, 1),
    "float first": ([SCALE, T.Resize((32, 32)), FLIP, NORMALIZE], 0, 4),
    "only colors": ([T.ColorJitter(0.4), T.CenterCrop(32)], 1, 1),
    "cast between": ([T.RandomCrop(33), SCALE, T.Resize((20, 22)), NORMALIZE], 1, 2),
}


@pytest.fixture
def _float_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resize uint8 by way of float32, as torchvision does on a GPU."""
    geometry = "torchvision.transforms.v2.functional._geometry"
    monkeypatch.setattr(f"{geometry}._do_native_uint8_resize_on_cpu", lambda interpolation: False)
    monkeypatch.setattr(
        "stateful_gpu_loader.transforms.geometry.resize.resizes_bytes", lambda: False
    )


@pytest.mark.usefixtures("_float_path")
@pytest.mark.parametrize("name", PIPELINES)
def test_a_batch_is_its_images(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """One pass over the pixels where possible; a byte of a resize may differ by 1."""
    launched = []

    def counted(images: list[Tensor], *others: object) -> Tensor:
        launched.append(len(images))
        return resample(images, *others)

    resample = batching.resample
    monkeypatch.setattr(batching, "resample", counted)
    carry_out = batching.Batching._carry_out
    steps = []

    def noted(self: batching.Batching, recipe: T.Recipe, *others: Any) -> None:
        steps.append(recipe)
        carry_out(self, recipe, *others)

    monkeypatch.setattr(batching.Batching, "_carry_out", noted)
    recipes, resamplings, besides = PIPELINES[name]
    pipeline, images = T.Compose(recipes), ragged()
    drawn = drawn_for(pipeline, images)
    before = [image.clone() for image in images]
    made = pipeline.apply_batch(images, drawn)
    assert all(map(torch.equal, before, images))
    assert launched == [len(images)] * resamplings
    assert len(steps) == besides
    expected = one_by_one(pipeline, images, drawn)
    assert made.dtype is expected.dtype is pipeline.output_dtype
    assert made.shape == expected.shape
    if not any("esize" in str(recipe) for recipe in recipes):
        torch.testing.assert_close(made, expected, rtol=0, atol=0)
        return
    # In levels of a byte: ImageNet's smallest deviation scales one by 1 / 0.224.
    level = 1.0 if made.dtype is torch.uint8 else 1 / (255 * 0.224 if NORMALIZE in recipes else 255)
    error = (made.double() - expected.double()).abs() / level
    blurred = {"color": 3.0, "two resizes": 2.0}.get(name, 1.03)
    assert error.max() <= blurred
    # Halves are frequent when small images are resized by 5 / 3.
    assert (error > 1e-3).double().mean() <= 3e-3


@pytest.mark.usefixtures("_float_path")
@pytest.mark.parametrize("name", ["training", "padding", "small images", "expanding", "color"])
def test_row_does_not_depend_on_the_batch_around_it(name: str) -> None:
    """Alone, or among images that need other treatment; bit for bit."""
    pipeline, images = T.Compose(PIPELINES[name][0]), ragged()
    made = pipeline.apply_batch(images, drawn_for(pipeline, images))
    for i, image in enumerate(images):
        drawn = pipeline.draw(42, 0, np.array([i]), np.array([image.shape[1:]]))
        assert torch.equal(pipeline.apply_batch([image], drawn)[0], made[i])


def test_order_of_flips_and_crops_matters() -> None:
    """A crop's box is placed in the result of an earlier flip."""
    images = [noise(8, 8)]
    crop, flip = T.RandomCrop(3), T.RandomHorizontalFlip(1.0)
    for recipes in ([crop, flip], [flip, crop]):
        pipeline = T.Compose(recipes)
        drawn = drawn_for(pipeline, images)
        made = pipeline.apply_batch(images, drawn)
        assert torch.equal(made, one_by_one(pipeline, images, drawn))


@pytest.mark.parametrize("recipes", [[], [T.ToMemoryFormat(torch.channels_last)], [FLIP]], ids=str)
def test_the_batch_has_memory_of_its_own(recipes: list[T.Recipe]) -> None:
    image = noise(8, 9)
    pipeline = T.Compose(recipes)
    made = pipeline.apply_batch([image], drawn_for(pipeline, [image]))
    kept = made.clone()
    image.zero_()
    assert torch.equal(made, kept)


def test_channels_that_normalize_adds() -> None:
    """Three numbers make three channels of one, as for single images."""
    pipeline, images = T.Compose([T.CenterCrop(8), NORMALIZE]), [noise(9, 9, channels=1)]
    drawn = drawn_for(pipeline, images)
    made = pipeline.apply_batch(images, drawn)
    assert torch.equal(made, one_by_one(pipeline, images, drawn))
    assert made.shape == (1, 3, 8, 8)


def test_results_of_several_sizes_are_refused() -> None:
    pipeline, images = T.Compose([T.Resize(40)]), ragged()
    with pytest.raises(ValueError, match=r"image 0 gives 51x40, image 1 gives 40x90.*Remedy"):
        pipeline.apply_batch(images, drawn_for(pipeline, images))


def test_images_must_match_the_numbers() -> None:
    pipeline, images = T.Compose([T.RandomResizedCrop(8)]), ragged()
    with pytest.raises(ValueError, match="5 images and numbers for 6"):
        pipeline.apply_batch(images[1:], drawn_for(pipeline, images))
    with pytest.raises(ValueError, match="at least one"):
        pipeline.apply_batch([], drawn_for(pipeline, []))
    # A decoder that returns another size than the header says.
    smaller = [image[:, :4, :4] for image in images]
    with pytest.raises(ValueError, match="does not lie inside image"):
        pipeline.apply_batch(smaller, drawn_for(pipeline, images))
    assert len(SIZES) == len(images)

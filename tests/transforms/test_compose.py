"""Compose: a whole pipeline, drawn by key."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader import transforms as T
from tests.images import PHOTOGRAPHS
from tests.transforms.pictures import decoded, sizes_of

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
TRAINING = T.Compose(
    [
        T.RandomResizedCrop(64),
        T.RandomHorizontalFlip(),
        T.ColorJitter(0.4, 0.4, 0.4, 0.1),
        T.RandomGrayscale(),
        T.Normalize(MEAN, STD),
    ]
)


def drawn_numbers(
    pipeline: T.Compose, positions: list[int], seed: int = 42, epoch: int = 0
) -> list[list[object]]:
    sizes = np.array([(300 + position, 400 - position) for position in positions])
    drawn = pipeline.draw(seed, epoch, np.array(positions), sizes.reshape(-1, 2))
    return [list(drawn.sample(i)) for i in range(len(positions))]


def test_numbers_are_a_function_of_seed_epoch_and_position() -> None:
    """Positions 5, 6, 7 get the same numbers within any other batch, and in a pickled copy."""
    whole = drawn_numbers(TRAINING, list(range(10)))
    assert drawn_numbers(TRAINING, [5, 6, 7]) == whole[5:8]
    assert drawn_numbers(TRAINING, [9, 2]) == [whole[9], whole[2]]
    assert drawn_numbers(TRAINING, []) == []
    assert drawn_numbers(pickle.loads(pickle.dumps(TRAINING)), [4]) == [whole[4]]
    keys = itertools.product((0, 1), repeat=2)
    boxes = [str(drawn_numbers(TRAINING, [3], seed, epoch)[0][0]) for seed, epoch in keys]
    assert len(set(boxes)) == 4, "no two passes crop alike"


def test_each_recipe_has_its_own_stream() -> None:
    """A recipe at the end disturbs none before it, and the same recipe twice draws twice."""
    longer = T.Compose([*TRAINING.recipes, T.RandomVerticalFlip(), T.RandomRotation(10)])
    before, after = drawn_numbers(TRAINING, [0, 1, 2]), drawn_numbers(longer, [0, 1, 2])
    assert [row[:5] for row in after] == before
    flips = T.Compose([T.RandomHorizontalFlip(), T.RandomHorizontalFlip()])
    rows = drawn_numbers(flips, list(range(64)))
    assert {(first[0], second[0]) for first, second in rows} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_divided_recipes_draw_what_they_draw_together() -> None:
    """After other recipes as well, such as those of a PreparedSource."""
    for whole in (TRAINING, TRAINING.following(2)):
        first, last = whole.divided()
        assert [type(recipe) for recipe in last.recipes] == [T.Normalize]
        drawn = drawn_numbers(whole, [0, 7])
        assert drawn_numbers(first, [0, 7]) == [row[:-1] for row in drawn]
    assert drawn_numbers(TRAINING.following(2), [0, 7]) != drawn_numbers(TRAINING, [0, 7])


def test_pixels_of_a_training_pipeline_are_torchvisions() -> None:
    """Photographs through crop, flip and normalize, into one batch."""
    pipeline = T.Compose(
        [T.RandomResizedCrop(96), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)]
    )
    images = [decoded(name) for name in PHOTOGRAPHS]
    drawn = pipeline.draw(42, 1, np.arange(len(images)), sizes_of(images))
    assert (drawn.sizes == 96).all()
    batch = torch.empty(len(images), 3, 96, 96, dtype=pipeline.output_dtype)
    for i, image in enumerate(images):
        rows = drawn.sample(i)
        pipeline.apply_into(image, rows, batch[i])
        assert torch.equal(batch[i], pipeline.apply(image, rows))
        box, (flip,), _ = rows
        expected = F.resized_crop(image, *box, [96, 96])
        expected = F.horizontal_flip(expected) if flip else expected
        expected = F.normalize(F.to_dtype(expected, torch.float32, scale=True), MEAN, STD)
        torch.testing.assert_close(batch[i], expected, rtol=0, atol=1e-6)
    assert {flip for _, (flip,), _ in map(drawn.sample, range(len(images)))} == {0, 1}


def test_channels_that_share_memory() -> None:
    """A grey image is one plane seen three times, which later recipes must handle."""
    image = decoded("rocket")
    pipeline = T.Compose([T.RandomGrayscale(1.0), T.Resize(50), T.Normalize(MEAN, STD)])
    rows = pipeline.draw(0, 0, np.arange(1), sizes_of([image])).sample(0)
    grey = F.resize(F.rgb_to_grayscale(image, num_output_channels=3), [50])
    expected = F.normalize(F.to_dtype(grey, torch.float32, scale=True), MEAN, STD)
    out = torch.empty(expected.shape)
    pipeline.apply_into(image, rows, out)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)


def test_evaluation_pipeline_is_torchvisions() -> None:
    """Sizes travel through the recipes, for images of unlike shapes in one batch."""
    pipeline = T.Compose([T.Resize(128), T.CenterCrop(112), T.ToDtype(torch.float32, scale=True)])
    reference = v2.Compose(
        [v2.Resize(128), v2.CenterCrop(112), v2.ToDtype(torch.float32, scale=True)]
    )
    images = [decoded(name) for name in PHOTOGRAPHS]
    drawn = pipeline.draw(0, 0, np.arange(len(images)), sizes_of(images))
    for i, image in enumerate(images):
        assert torch.equal(pipeline.apply(image, drawn.sample(i)), reference(image))


def test_nested_pipelines_are_flattened() -> None:
    """Nesting changes neither numbers nor fingerprint."""
    first, *others = TRAINING.recipes
    nested = T.Compose([T.Compose([first]), T.Compose([T.Compose(others), T.Compose([])])])
    assert nested.recipes == TRAINING.recipes
    assert nested.fingerprint() == TRAINING.fingerprint() == repr(TRAINING)
    assert TRAINING.fingerprint().startswith("Compose([RandomResizedCrop(size=(64, 64), ")


def test_no_recipes_leave_the_image() -> None:
    image = decoded("coffee")
    drawn = T.Compose([]).draw(0, 0, np.arange(1), sizes_of([image]))
    out = torch.empty_like(image)
    T.Compose([]).apply_into(image, drawn.sample(0), out)
    assert torch.equal(out, image)
    assert T.Compose([]).apply(image, drawn.sample(0)) is image
    assert drawn.sizes.tolist() == [[400, 600]]
    assert T.Compose([]).output_dtype is torch.uint8


def test_output_dtype_is_known_before_the_images() -> None:
    casts = [T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD), T.ToDtype(torch.float16)]
    assert T.Compose([T.CenterCrop(8)]).output_dtype is torch.uint8
    assert TRAINING.output_dtype is T.Compose(casts[:2]).output_dtype is torch.float32
    assert T.Compose(casts).output_dtype is torch.float16


def test_a_call_is_its_recipes_calls() -> None:
    """From torch's default generator, in any pipeline."""
    image = decoded("chelsea")
    torch.manual_seed(8)
    made = v2.Compose([TRAINING])(image)
    torch.manual_seed(8)
    expected = image
    for recipe in TRAINING.recipes:
        expected = recipe(expected)
    assert torch.equal(made, expected)


@pytest.mark.parametrize(
    "wrong", [[v2.RandomHorizontalFlip()], [T.CenterCrop(8), len], T.CenterCrop(8), "CenterCrop"]
)
def test_what_is_no_recipe_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="Remedy"):
        T.Compose(wrong)  # type: ignore[arg-type]


def test_sizes_positions_rows_and_room_must_match() -> None:
    with pytest.raises(ValueError, match="3 positions"):
        TRAINING.draw(0, 0, np.arange(3), np.ones((2, 2), np.int64))
    image, crop = decoded("coffee"), T.Compose([T.CenterCrop(8)])
    with pytest.raises(ValueError, match="zip"):
        TRAINING.apply(image, [[0, 0, 5, 5]])
    rows = crop.draw(0, 0, np.arange(1), sizes_of([image])).sample(0)
    for out in (torch.empty(3, 8, 8), torch.empty(3, 9, 9, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="has room for"):
            crop.apply_into(image, rows, out)


def test_the_default_dtype_of_the_process_changes_no_pixel() -> None:
    """A spawned worker has another one than the user's process."""
    recipes = T.Compose([T.ColorJitter(0.5, 0.5, 0.5, 0.2), T.RandomGrayscale(0.5)])
    image = decoded("coffee")[:, :64, :64]
    drawn = recipes.draw(1, 0, np.arange(20), sizes_of([image] * 20))
    wanted = [recipes.apply(image, drawn.sample(i)) for i in range(20)]
    torch.set_default_dtype(torch.float64)
    try:
        for i in range(20):
            assert torch.equal(recipes.apply(image, drawn.sample(i)), wanted[i])
    finally:
        torch.set_default_dtype(torch.float32)

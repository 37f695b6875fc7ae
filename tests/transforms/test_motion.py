"""Motion of points by recipes: boxes go where torchvision moves them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.transforms.recipe import Recipe

SIZE = (50, 80)
BOX = (12.0, 6.0, 30.0, 22.0)
SIZES = np.array([SIZE])


def corners(box: tuple[float, ...]) -> np.ndarray[Any, Any]:
    left, top, right, bottom = box
    return np.array([(left, top, 1), (right, top, 1), (right, bottom, 1), (left, bottom, 1)])


def moved_box(recipe: Recipe, numbers: list[float], dtype: type) -> list[float]:
    motion = recipe.motion(np.array([numbers], dtype=dtype), SIZES)
    assert motion is not None
    assert motion.shape == (1, 2, 3)
    points = corners(BOX) @ motion[0].T
    return [*points.min(axis=0).tolist(), *points.max(axis=0).tolist()]


def boxes() -> tv_tensors.BoundingBoxes:
    return tv_tensors.BoundingBoxes(torch.tensor([BOX]), format="XYXY", canvas_size=SIZE)


CROPPED = T.RandomCrop((20, 40), padding=(3, 5))
AFFINE = T.RandomAffine(20)


@pytest.mark.parametrize(
    ("recipe", "numbers", "expected"),
    [
        (T.Resize((25, 160)), [25, 160], F.resize(boxes(), [25, 160])),
        (T.CenterCrop((40, 40)), [0, 0, 0, 0, 5, 20], F.crop(boxes(), 5, 20, 200, 200)),
        (CROPPED, [3, 5, 3, 5, 2, 7], F.crop(F.pad(boxes(), [3, 5, 3, 5]), 2, 7, 200, 200)),
        (
            T.RandomResizedCrop((32, 64)),
            [4, 8, 40, 50],
            F.resize(F.crop(boxes(), 4, 8, 40, 50), [32, 64]),
        ),
        (T.RandomHorizontalFlip(), [1], F.horizontal_flip(boxes())),
        (T.RandomHorizontalFlip(), [0], boxes()),
        (T.RandomVerticalFlip(), [1], F.vertical_flip(boxes())),
        (T.Pad((3, 5, 2, 1)), [3, 5, 2, 1], F.pad(boxes(), [3, 5, 2, 1])),
        (T.RandomZoomOut(), [3, 5, 2, 1], F.pad(boxes(), [3, 5, 2, 1])),
        (T.RandomResize(9, 99), [25, 40], F.resize(boxes(), [25, 40])),
        (T.RandomPhotometricDistort(), [1] * 12, boxes()),
        (T.JPEG(50), [50], boxes()),
        (T.RandomInvert(), [1], boxes()),
        (T.RandomEqualize(), [1], boxes()),
        (T.Grayscale(3), [], boxes()),
        (T.ColorJitter(0.1), [1], boxes()),
        (T.GaussianBlur(3), [1], boxes()),
        (T.RandomErasing(), [1], boxes()),
        (T.RandomGrayscale(), [1], boxes()),
        (T.Normalize([0.5], [0.5]), [], boxes()),
        (T.ToDtype(torch.float32), [], boxes()),
        (T.ToMemoryFormat(torch.channels_last), [], boxes()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_boxes_move_as_torchvisions(recipe: Recipe, numbers: list[float], expected: Any) -> None:
    assert_encloses(moved_box(recipe, numbers, np.int64), expected, abs=1e-4)


def test_rotated_boxes_move_as_torchvisions() -> None:
    """An expanded rotation moves the center."""
    for center, angle in itertools.product((None, [10.0, 20.0]), (0.0, 10.0, -35.5, 90.0, 200.0)):
        recipe = T.RandomRotation(180, center=center)
        expected = F.rotate(boxes(), angle, center=center)
        assert_encloses(moved_box(recipe, [angle], np.float64), expected)
    recipe = T.RandomRotation((30, 30), expand=True)
    # torchvision's canvas for boxes may be a pixel smaller than its image.
    expected = F.rotate(boxes(), 30.0, expand=True)
    assert_encloses(moved_box(recipe, [30.0], np.float64), expected, abs=1.0)


def test_affine_boxes_move_as_torchvisions() -> None:
    for numbers in ([15.0, 4.0, -3.0, 1.2, 5.0, -7.0], [0.0, 0.0, 0.0, 0.5, 0.0, 0.0]):
        angle, right, down, scale, *shear = numbers
        expected = F.affine(boxes(), angle, [int(right), int(down)], scale, shear)
        assert_encloses(moved_box(AFFINE, numbers, np.float64), expected)


def assert_encloses(found: list[float], expected: Any, abs: float = 0.01) -> None:
    """Compare a box, clamped to the image, with torchvision's, which is clamped already."""
    height, width = expected.canvas_size
    left, top, right, bottom = found
    clamped = [max(left, 0), max(top, 0), min(right, width), min(bottom, height)]
    assert clamped == pytest.approx(expected[0].tolist(), abs=abs)


def test_recipes_in_a_row_move_points_one_after_the_other() -> None:
    recipes = T.Compose([T.RandomHorizontalFlip(1.0), T.CenterCrop((40, 40)), T.Resize((80, 80))])
    drawn = recipes.draw(1, 0, np.arange(1), SIZES)
    motion = recipes.motion(drawn, SIZES)
    flipped = F.crop(F.horizontal_flip(boxes()), 5, 20, 200, 200)
    points = corners(BOX) @ motion[0].T
    found = [*points.min(axis=0), *points.max(axis=0)]
    assert found == pytest.approx([2 * value for value in flipped[0].tolist()])


def test_a_recipe_that_does_not_tell_is_found() -> None:
    for policy in (T.RandAugment(), T.RandomPerspective()):
        assert T.Compose([T.Resize(8), policy]).immovable() is policy
    assert T.Compose([T.Resize(8), T.RandomRotation(5)]).immovable() is None


def test_a_subclass_with_pixels_of_its_own_does_not_inherit_where_they_go() -> None:
    class Shifted(T.CenterCrop):
        def apply(self, image: Any, numbers: Any) -> Any:
            return super().apply(image, numbers).roll(3, -1)

    recipes = T.Compose([Shifted(8)])
    assert recipes.immovable() is recipes.recipes[0]
    with pytest.raises(TypeError, match="cannot move boxes"):
        recipes.motion(recipes.draw(1, 0, np.arange(1), SIZES), SIZES)

"""The part of an image that the first recipes keep determines all of their pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.decoders.decoder import part_of
from stateful_gpu_loader.transforms import Compose, Recipe
from stateful_gpu_loader.transforms.geometry.resize import INTERPOLATIONS
from tests.images import photograph

NORMALIZE = T.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])
CHAINS: dict[str, tuple[list[Recipe], int]] = {
    "random resized": ([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), NORMALIZE], 1),
    "random": ([T.RandomCrop(30), NORMALIZE], 1),
    "center": ([T.CenterCrop((20, 33))], 1),
    "flips before": (
        [T.RandomVerticalFlip(0.7), T.RandomHorizontalFlip(0.7), T.RandomResizedCrop(24)],
        3,
    ),
    "flips between": (
        [T.RandomHorizontalFlip(), T.RandomCrop(40), T.RandomVerticalFlip(), T.CenterCrop(24)],
        4,
    ),
    "bytes before": (
        [
            T.ToDtype(torch.uint8, scale=True),
            T.ToMemoryFormat(torch.channels_last),
            T.RandomCrop(9),
        ],
        3,
    ),
    "crop, flip, resize": ([T.RandomCrop(48), T.RandomHorizontalFlip(), T.Resize((9, 31))], 3),
    "nothing to keep": ([T.RandomHorizontalFlip(), NORMALIZE], 0),
    "floats before": ([T.ToDtype(torch.float32, scale=True), T.RandomCrop(30)], 0),
    "colors before": ([T.ColorJitter(0.4), T.RandomCrop(30)], 0),
    "padding": ([T.RandomCrop(30, padding=2)], 0),
    "padding after a crop": ([T.RandomCrop(30), T.RandomCrop(30, padding=2)], 1),
    **{
        f"random resized, {interpolation}": (
            [T.RandomResizedCrop(24, interpolation=interpolation)],
            1,
        )
        for interpolation in INTERPOLATIONS
    },
    "not antialiased": ([T.RandomResizedCrop(24, antialias=False)], 1),
}


def image(height: int = 61, width: int = 83) -> torch.Tensor:
    """Photograph as decoders return it: a view of interleaved memory."""
    pixels = photograph("chelsea").crop((100, 80, 100 + width, 80 + height))
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1)


@pytest.mark.parametrize("name", CHAINS)
def test_the_kept_part_gives_the_pixels_of_the_whole_image(name: str) -> None:
    chain, num_cut = CHAINS[name]
    recipes, whole = Compose(chain), image()
    size = (whole.shape[1], whole.shape[2])
    drawn = recipes.draw(5, 0, np.arange(12), np.array([size] * 12))
    for i in range(12):
        cut, found = recipes.cut(size, drawn.rows[i])
        part = part_of(whole, cut.box).permute(1, 2, 0).contiguous().permute(2, 0, 1)
        expected = recipes.apply(whole, drawn.rows[i])
        assert found == num_cut
        assert torch.equal(recipes.apply(part, drawn.rows[i], num_cut), expected)
        out = torch.empty(expected.shape, dtype=expected.dtype)
        recipes.apply_into(part, drawn.rows[i], out, num_cut)
        assert torch.equal(out, expected)


def cut_by(recipes: Compose) -> tuple[Any, int, Any]:
    """Return the cut of an image of 61 x 83, how many recipes it replaces, and their numbers."""
    rows = recipes.draw(5, 0, np.arange(1), np.array([(61, 83)])).rows[0]
    return *recipes.cut((61, 83), rows), rows


def test_the_kept_part_is_as_small_as_the_crop() -> None:
    cut, *_ = cut_by(Compose([T.RandomHorizontalFlip(1.0), T.CenterCrop((11, 21)), T.Resize(7)]))
    assert (cut.box, cut.mirrored, cut.resized) == ((25, 31, 11, 21), (False, True), (7, 13))


def test_only_what_comes_before_the_first_resize_is_kept_by() -> None:
    cut, num_cut, _ = cut_by(Compose([T.Resize(40), T.CenterCrop(24)]))
    assert (cut.box, cut.resized, num_cut) == ((0, 0, 61, 83), (40, 54), 1)


def test_a_part_may_come_at_a_smaller_scale() -> None:
    """The recipes still give the drawn sizes."""
    recipes = Compose([T.CenterCrop(60), T.RandomHorizontalFlip(1.0), T.Resize((20, 25))])
    cut, num_cut, rows = cut_by(recipes)
    smaller = F.resize_image(part_of(image(), cut.box), [30, 30])
    made = recipes.apply(smaller, rows, num_cut)
    assert torch.equal(made, F.resize_image(smaller.flip(2), [20, 25]))


class Own(T.RandomCrop):
    """A user's recipe whose pixels depend on all of the image."""

    def apply(self, image: Any, numbers: Any) -> Any:
        return super().apply(image.flip(1), numbers)


class Inverting:
    def apply(self, image: torch.Tensor, numbers: Any) -> torch.Tensor:
        parent: Any = super()
        inverted: torch.Tensor = 255 - parent.apply(image, numbers)
        return inverted


class InvertedCrop(Inverting, T.RandomCrop):
    pass


@pytest.mark.parametrize("kind", [Own, InvertedCrop])
def test_a_recipe_that_overrides_apply_gets_the_whole_image(kind: Any) -> None:
    """By itself, or by a mixin."""
    assert cut_by(Compose([kind(30)]))[:2] == (((0, 0, 61, 83), (False, False), None), 0)

"""Properties of every batch recipe: pure functions, torchvision's arguments and calls."""

from __future__ import annotations

import inspect
import pickle
from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import default_collate
from torchvision import tv_tensors
from torchvision.transforms import v2

from stateful_gpu_loader.transforms.mixing import CutMix, MixUp
from stateful_gpu_loader.transforms.recipe import BatchRecipe
from tests.transforms.augmented_batches import batch

RECIPES = [MixUp(num_classes=5), CutMix(num_classes=5)]
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: type(r).__name__)


@every_recipe
def test_arguments_are_torchvisions(recipe: BatchRecipe) -> None:
    """The same names in the same order with the same defaults, as keywords."""
    ours = inspect.signature(type(recipe)).parameters.values()
    theirs = inspect.signature(getattr(v2, type(recipe).__name__)).parameters.values()
    assert [(p.name, p.default, p.kind) for p in ours] == [
        (p.name, p.default, p.kind) for p in theirs
    ]


@every_recipe
def test_numbers_are_plain_and_of_their_uniforms_alone(recipe: BatchRecipe) -> None:
    """Floats that any state or process can carry; torch's generator does not move."""
    torch.manual_seed(1)
    state = torch.get_rng_state()
    for row in np.random.default_rng(0).random((20, recipe.num_draws)):
        numbers = recipe.draw(row, 8, (30, 20))
        assert {type(number) for number in numbers} == {float}
        assert recipe.draw(row.copy(), 8, (30, 20)) == numbers
    assert torch.equal(torch.get_rng_state(), state)


@every_recipe
def test_a_call_draws_from_torchs_default_generator(recipe: BatchRecipe) -> None:
    """So it works in any collate_fn. It draws exactly its budget."""
    images, labels = batch(4)
    torch.manual_seed(7)
    made, after = recipe(images, labels), torch.rand(1)
    torch.manual_seed(7)
    uniforms = torch.rand(recipe.num_draws, dtype=torch.float64).numpy()
    expected = recipe.apply(images, labels, recipe.draw(uniforms, 4, (7, 9)))
    assert all(map(torch.equal, made, expected))
    assert torch.equal(torch.rand(1), after)


@every_recipe
def test_a_batch_is_made_of_its_uniforms(recipe: BatchRecipe) -> None:
    """The loader calls it, or its pickled copy, with uniforms of the batch's key.

    The generator does not move.
    """
    images, labels = batch(4)
    uniforms = np.linspace(0.3, 0.6, recipe.num_draws)
    state = torch.get_rng_state()
    expected = recipe.apply(images, labels, recipe.draw(uniforms, 4, (7, 9)))
    for each in (recipe, pickle.loads(pickle.dumps(recipe))):
        made = each.transform([images, labels, "rest"], uniforms)
        assert type(made) is list
        assert all(map(torch.equal, made[:2], expected))
        assert made[2:] == ["rest"]
    assert torch.equal(torch.get_rng_state(), state)


Sample = namedtuple("Sample", ["image", "label", "name"])


@every_recipe
def test_a_call_keeps_the_structure(recipe: BatchRecipe) -> None:
    """Two arguments, a list, a named tuple, tv_tensors, default_collate; further items pass."""
    images, labels = batch(3)
    for inputs in (
        (images, labels),
        (tv_tensors.Image(images), labels),
        ([images, labels],),
        ((images, labels),),
        (default_collate(list(zip(images, labels.tolist(), strict=True))),),
        (images, labels, "x"),
        ([images, labels, ["a", "b", "c"]],),
        (Sample(images, labels, ["a", "b", "c"]),),
    ):
        made = recipe(*inputs)
        expected = getattr(v2, type(recipe).__name__)(num_classes=5)(*inputs)
        assert type(made) is type(expected)
        assert [type(item) for item in made] == [type(item) for item in expected]
        assert [getattr(i, "shape", i) for i in made] == [getattr(i, "shape", i) for i in expected]
        torch.testing.assert_close(made[1].sum(1), torch.ones(3))


def test_fingerprint_is_canonical() -> None:
    """Made from arguments alone; golden, since states hold it."""
    golden = "MixUp(alpha=1.0, num_classes=10, labels_getter='default')"
    assert MixUp(alpha=1, num_classes=np.int64(10)).fingerprint() == golden
    assert repr(CutMix()) == "CutMix(alpha=1.0, num_classes=None, labels_getter='default')"


class Halve(BatchRecipe):
    """A user's own batch recipe."""

    def __init__(self, times: int) -> None:
        self.times = times

    def draw(self, uniforms: np.ndarray, num_samples: int, size: tuple[int, int]) -> tuple[()]:
        return ()

    def apply(
        self, images: Tensor, labels: Tensor, numbers: Sequence[float]
    ) -> tuple[Tensor, Tensor]:
        return images * 0.5**self.times, labels


def test_a_users_batch_recipe_works_and_has_another_fingerprint() -> None:
    """Identity is compared, position is adopted."""
    images, labels = batch(2)
    assert torch.equal(Halve(2)(images, labels)[0], images / 4)
    assert Halve(2).fingerprint() == f"{__name__}.Halve(times=2)"


@every_recipe
@pytest.mark.parametrize(
    ("num_classes", "images", "labels", "match"),
    [
        (None, (2, 3, 4, 4), torch.zeros(2).long(), "num_classes="),
        (3, (2, 3, 4, 4), torch.zeros(2, 4), r"num_classes=3.*\[2, 4\]"),
        (3, (2, 3, 4, 4), torch.zeros(3).long(), r"\[2, 3, 4, 4\] and 3"),
        (3, (3, 4, 4), torch.zeros(3).long(), r"\[3, 4, 4\]"),
        (3, (2, 3, 4, 4), torch.zeros(2, 1, 3), r"\[2, 1, 3\]"),
    ],
)
def test_batches_that_do_not_fit_are_refused(
    recipe: BatchRecipe, num_classes: int | None, images: Any, labels: Tensor, match: str
) -> None:
    """By the same type of error as torchvision's, in ``apply`` as in a call."""
    pixels, kind = torch.zeros(images), type(recipe)
    made: Any = kind(num_classes=num_classes)
    with pytest.raises(ValueError, match=match):
        made.apply(pixels, labels, (0.0, 0.0, 1.0, 1.0, 0.5)[: kind.num_draws])
    with pytest.raises(ValueError, match="Remedy"):
        made(pixels, labels)
    with pytest.raises(ValueError, match=r"."):
        getattr(v2, kind.__name__)(num_classes=num_classes)(pixels, labels)


@every_recipe
@pytest.mark.parametrize(
    ("inputs", "error", "match"),
    [
        ((torch.zeros(2, 3, 4, 4),), ValueError, r"Tensor \[2, 3, 4, 4\]"),
        (([torch.zeros(2, 3, 4, 4)],), ValueError, "list of 1"),
        (({"image": 1, "label": 2},), ValueError, "dict"),
        ((np.zeros((2, 3, 4, 4)), torch.zeros(2).long()), ValueError, "ndarray for the images"),
        ((tv_tensors.Mask(torch.zeros(2, 3, 4, 4)), torch.zeros(2).long()), ValueError, "Mask"),
        ((torch.zeros(2, 3, 4, 4), [0, 1]), ValueError, "list of 2 for the labels"),
        ((torch.zeros(2, 3, 4, 4), torch.zeros(2).int()), TypeError, "int32"),
    ],
    ids=["images alone", "list of one", "dict", "numpy", "mask", "list of labels", "int32"],
)
def test_a_call_refuses_what_is_no_batch(
    recipe: BatchRecipe, inputs: tuple[Any, ...], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        recipe(*inputs)

"""RandomApply and RandomChoice: which recipes act, on which images, with which draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.randomness.philox import Stream, uniforms
from tests.transforms.pictures import decoded, rows_for, sizes_of

JITTERS = [T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.GaussianBlur(3)]
CROPS = T.RandomChoice(
    [T.RandomResizedCrop(48), T.RandomResizedCrop(48, interpolation="bicubic")], p=[1, 3]
)
SEVERAL = T.RandomChoice(
    [
        T.Compose([T.RandomResizedCrop(40), T.RandomRotation(30), T.RandomHorizontalFlip()]),
        T.RandomApply([T.Resize((40, 40)), T.RandomGrayscale(0.5)], p=1.0),
        T.CenterCrop(40),
    ]
)


@pytest.mark.parametrize("recipe", [T.RandomApply(JITTERS, 0.4), CROPS, SEVERAL], ids=repr)
def test_what_acts_gets_the_numbers_that_it_drew(recipe: Any) -> None:
    """Each image equals the result of its part alone, drawn from the part's own uniforms."""
    image = decoded("coffee")[:, :60, :90]
    n = 40
    rows = np.random.default_rng(0).random((n, recipe.num_draws))
    drawn = recipe.draw(rows, sizes_of([image] * n))
    parts = [T.Compose([step]) for step in recipe.transforms]
    if isinstance(recipe, T.RandomApply):
        parts = [T.Compose([]), T.Compose(recipe.transforms)]
    starts = np.cumsum([1, *(sum(r.num_draws for r in part.recipes) for part in parts)])
    assert starts[-1] == recipe.num_draws
    seen = set()
    for i, numbers in enumerate(drawn.numbers.tolist()):
        chosen = int(numbers[0])
        seen.add(chosen)
        expected, start = image, starts[chosen]
        for step in parts[chosen].recipes:
            given = rows[i : i + 1, start : start + step.num_draws]
            alone = step.draw(given, sizes_of([expected]))
            expected = step.apply(expected, alone.numbers[0].tolist())
            start += step.num_draws
        assert torch.equal(recipe.apply(image, numbers), expected)
        assert drawn.sizes[i].tolist() == list(expected.shape[1:])
    assert seen == set(range(len(parts)))


def test_how_often_each_acts() -> None:
    image = decoded("coffee")
    applied = rows_for(T.RandomApply(JITTERS, 0.3), image, 4000)
    assert stats.binomtest(sum(int(row[0]) for row in applied), 4000, 0.3).pvalue > 1e-3
    chosen = np.bincount([int(row[0]) for row in rows_for(CROPS, image, 4000)])
    assert stats.chisquare(chosen, [1000, 3000]).pvalue > 1e-3
    alike = np.bincount([int(row[0]) for row in rows_for(SEVERAL, image, 3000)])
    assert stats.chisquare(alike).pvalue > 1e-3
    never = T.RandomChoice([T.CenterCrop(2), T.CenterCrop(3), T.CenterCrop(4)], p=[0, 1, 0])
    edges = never.draw(np.array([[0.0], [1 - 2.0**-32]]), np.full((2, 2), 9))
    assert edges.sizes.tolist() == [[3, 3], [3, 3]]


GOLDEN_APPLY: list[list[float]] = [
    [1.0, 0.0, 0.0, 0.0, 0.0, 254.0, 159.0, 1.0, 1.0, -15.453356564976275],
    [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, -4.932898236438632],
    [1.0, 0.0, 0.0, 0.0, 0.0, 131.0, 6.0, 1.0, 1.0, -12.745421575382352],
]
GOLDEN_CHOICE = [
    [1, 0, 0, 0, 0, 0, 96, 375, 400],
    [1, 0, 0, 0, 0, 0, 0, 1, 1],
    [1, 0, 0, 0, 0, 986, 0, 27, 20],
]


def test_golden_numbers() -> None:
    """Any change breaks every saved state."""
    positions, sizes = np.array([0, 1, 2**40 + 3]), np.array([[375, 500], [1, 1], [2000, 20]])
    for recipe, numbers in (
        (
            T.RandomApply([T.RandomCrop(1), T.RandomRotation(30)], p=0.9),
            GOLDEN_APPLY,
        ),
        (CROPS, GOLDEN_CHOICE),
    ):
        drawn = recipe.draw(uniforms(42, 1, positions, Stream.RECIPES, recipe.num_draws), sizes)
        assert drawn.numbers.tolist() == numbers


def test_names_of_numbers() -> None:
    recipe = T.RandomApply([T.RandomCrop(4), T.RandomRotation(30)])
    assert recipe.number_names == (
        *("acts", "pad_left_1", "pad_top_1", "pad_right_1", "pad_bottom_1", "top_1", "left_1"),
        *("height_before_2", "width_before_2", "angle_2"),
    )


def test_boxes_move_with_what_acts() -> None:
    """Each image has the motion of its part, sizes in between included."""
    inside = T.Compose([T.RandomCrop((20, 30)), T.RandomHorizontalFlip(1.0)])
    recipe = T.RandomApply([inside], p=0.5)
    sizes = np.array([[50, 80], [40, 60]])
    given = np.random.default_rng(1).random((2, recipe.num_draws))
    given[:, 0] = 0.1, 0.9
    drawn = recipe.draw(given, sizes)
    motion = recipe.motion(drawn.numbers, sizes)
    assert motion is not None
    top, left = drawn.numbers[0, 5:7]
    assert motion[0].tolist() == [[-1, 0, 30 + left], [0, 1, -top]]
    assert motion[1].tolist() == [[1, 0, 0], [0, 1, 0]]


def test_one_that_does_not_tell_where_points_go_is_found_inside() -> None:
    policy = T.RandAugment()
    inside = T.RandomChoice([T.CenterCrop(8), T.Compose([T.Resize(9), policy])])
    assert T.Compose([T.RandomApply([inside])]).immovable() is policy
    assert (
        inside.motion(
            inside.draw(np.full((1, inside.num_draws), 0.9), np.full((1, 2), 99)).numbers,
            np.full((1, 2), 99),
        )
        is None
    )
    assert T.Compose([T.RandomApply([T.Resize(8)])]).immovable() is None


def test_only_the_part_that_is_needed_is_decoded() -> None:
    """A chosen recipe folds into a cut as it does alone; several in a row do not."""
    recipes = T.Compose([T.RandomApply([T.ColorJitter(0.1)], 0.0), CROPS])
    drawn = recipes.draw(3, 0, np.arange(6), np.full((6, 2), (375, 500)))
    image = decoded("coffee")[:, :375, :500]
    for i in range(6):
        rows = drawn.sample(i)
        cut, num_cut = recipes.cut((375, 500), rows)
        assert num_cut == 2
        chosen = int(rows[1][0])
        top, left, height, width = map(int, rows[1][1 + 4 * chosen : 5 + 4 * chosen])
        assert cut.box == (top, left, height, width)
        part = image[:, top : top + height, left : left + width]
        assert torch.equal(recipes.apply(part, rows, num_cut), recipes.apply(image, rows))
    assert (
        T.Compose([T.RandomApply(JITTERS, 1.0), CROPS]).cut(
            (375, 500),
            T.Compose([T.RandomApply(JITTERS, 1.0), CROPS])
            .draw(3, 0, np.arange(1), np.full((1, 2), (375, 500)))
            .sample(0),
        )[1]
        == 0
    )


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: T.RandomApply([]), ValueError, "no recipe"),
        (lambda: T.RandomApply([len]), TypeError, "not a recipe"),
        (lambda: T.RandomApply([T.Normalize([0], [1])]), ValueError, "changes|change the dtype"),
        (lambda: T.RandomApply([T.CenterCrop(3)], 1.5), ValueError, "p = 1.5"),
        (lambda: T.RandomChoice([T.CenterCrop(3)], [1, 2]), ValueError, "must be 1 numbers"),
        (lambda: T.RandomChoice([T.CenterCrop(3)], [0]), ValueError, "not all 0"),
        (lambda: T.RandomChoice([T.CenterCrop(3)] * 2, [1, -1]), ValueError, "negative"),
    ],
)
def test_bad_arguments(make: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()

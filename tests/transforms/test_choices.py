"""RandomApply, RandomChoice, RandomOrder: which recipes act, on which images, with which draws."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import v2

from stateful_gpu_loader import transforms as T
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


ORDERED = T.RandomOrder(
    [T.RandomCrop(40, 8), T.Compose([T.Resize(50), T.RandomRotation(30)]), T.ColorJitter(0.4)]
)


def test_each_order_is_that_of_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each recipe draws from its own uniforms, for the size that it gets in its turn."""
    image = decoded("coffee")[:, :60, :90]
    n = 40
    given = np.random.default_rng(0).random((n, ORDERED.num_draws))
    drawn = ORDERED.draw(given, sizes_of([image] * n))
    starts = (3, 5, 6)  # after three uniforms for the order: a crop draws two, a rotation one

    class Part:
        """One part in torchvision's RandomOrder."""

        def __init__(self, part: Any, uniforms: Any) -> None:
            self.part, self.uniforms = T.Compose([part]), uniforms

        def __call__(self, image: Any) -> Any:
            start = 0
            for step in self.part.recipes:
                uniforms = self.uniforms[None, start : start + step.num_draws]
                image = step.apply(
                    image, step.draw(uniforms, sizes_of([image])).numbers[0].tolist()
                )
                start += step.num_draws
            return image

    orders = set()
    for i, numbers in enumerate(drawn.numbers.tolist()):
        order = [int(part) for part in numbers[:3]]
        orders.add(tuple(order))
        parts = zip(ORDERED.transforms, starts, strict=True)
        theirs = v2.RandomOrder([Part(part, given[i, start:]) for part, start in parts])
        with monkeypatch.context() as patch:
            patch.setattr(torch, "randperm", lambda n, order=order: torch.tensor(order))
            expected = theirs(image)
        assert torch.equal(ORDERED.apply(image, numbers), expected)
        assert drawn.sizes[i].tolist() == list(expected.shape[1:])
    assert orders == set(itertools.permutations(range(3)))


def test_boxes_move_in_the_order_that_was_drawn() -> None:
    recipe = T.RandomOrder(
        [T.RandomHorizontalFlip(1.0), T.CenterCrop((20, 30)), T.Pad((4, 2, 6, 0))]
    )
    sizes = np.array([[50, 80]] * 60)
    drawn = recipe.draw(np.random.default_rng(1).random((60, recipe.num_draws)), sizes)
    motion = recipe.motion(drawn.numbers, sizes)
    assert motion is not None
    assert set(map(tuple, drawn.sizes.tolist())) == {(20, 30), (22, 40)}
    # A single bright pixel, and its centre, go to the same place.
    image = torch.zeros(1, 50, 80)
    image[0, 27, 37] = 1.0
    for row, moved, after in zip(drawn.numbers.tolist(), motion, drawn.sizes, strict=True):
        x, y = moved @ [37.5, 27.5, 1.0]
        made = recipe.apply(image, row)
        assert made.shape[1:] == tuple(after)
        assert made[0, int(y), int(x)] == 1.0


def test_how_often_each_acts() -> None:
    image = decoded("coffee")
    applied = rows_for(T.RandomApply(JITTERS, 0.3), image, 4000)
    assert stats.binomtest(sum(int(row[0]) for row in applied), 4000, 0.3).pvalue > 1e-3
    chosen = np.bincount([int(row[0]) for row in rows_for(CROPS, image, 4000)])
    assert stats.chisquare(chosen, [1000, 3000]).pvalue > 1e-3
    alike = np.bincount([int(row[0]) for row in rows_for(SEVERAL, image, 3000)])
    assert stats.chisquare(alike).pvalue > 1e-3
    orders = [row[:3] for row in rows_for(ORDERED, image, 3000)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-3
    never = T.RandomChoice([T.CenterCrop(2), T.CenterCrop(3), T.CenterCrop(4)], p=[0, 1, 0])
    edges = never.draw(np.array([[0.0], [1 - 2.0**-32]]), np.full((2, 2), 9))
    assert edges.sizes.tolist() == [[3, 3], [3, 3]]


def test_names_of_numbers() -> None:
    recipe = T.RandomApply([T.RandomCrop(4), T.RandomRotation(30)])
    ordered = T.RandomOrder([T.RandomRotation(30), T.RandomHorizontalFlip()])
    assert ordered.number_names == (
        *("turn_1", "turn_2", "height_before_turn_2", "width_before_turn_2"),
        *("angle_1", "acts_2"),
    )
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
    policy, sizes = T.RandAugment(), np.full((1, 2), 99)
    inside = T.RandomChoice([T.CenterCrop(8), T.Compose([T.Resize(9), policy])])
    assert T.Compose([T.RandomApply([inside])]).immovable() is policy
    for recipe in (inside, T.RandomOrder([T.RandAugment(), T.CenterCrop(8)])):
        drawn = recipe.draw(np.full((1, recipe.num_draws), 0.9), sizes)
        assert recipe.motion(drawn.numbers, sizes) is None
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
    several = T.Compose([T.RandomApply(JITTERS, 1.0), CROPS])
    rows = several.draw(3, 0, np.arange(1), np.full((1, 2), (375, 500))).sample(0)
    assert several.cut((375, 500), rows)[1] == 0


def test_bad_arguments() -> None:
    crop, normalize = T.CenterCrop(3), T.Normalize([0], [1])
    wrong: list[tuple[Any, list[Any], type[Exception], str]] = [
        (T.RandomApply, [[]], ValueError, "no recipe"),
        (T.RandomApply, [[len]], TypeError, "not a recipe"),
        (T.RandomOrder, [[]], ValueError, "no recipe"),
        (T.RandomOrder, [[normalize]], ValueError, "change the dtype"),
        (T.RandomApply, [[normalize]], ValueError, "changes|change the dtype"),
        (T.RandomApply, [[crop], 1.5], ValueError, "p = 1.5"),
        (T.RandomChoice, [[crop], [1, 2]], ValueError, "must be 1 numbers"),
        (T.RandomChoice, [[crop], [0]], ValueError, "not all 0"),
        (T.RandomChoice, [[crop] * 2, [1, -1]], ValueError, "negative"),
    ]
    for kind, arguments, error, match in wrong:
        with pytest.raises(error, match=match):
            kind(*arguments)

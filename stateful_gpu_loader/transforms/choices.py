"""RandomApply, RandomChoice and RandomOrder: recipes that apply other recipes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import as_probability
from stateful_gpu_loader.transforms.batches.device import apply_by_group
from stateful_gpu_loader.transforms.compose import Compose
from stateful_gpu_loader.transforms.cut import Cut
from stateful_gpu_loader.transforms.motion import at_rest, one_after_the_other
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, Recipe, nothing_drawn


class _Part:
    """Recipes in a row that are applied together or not at all.

    Its numbers are the recipes' numbers, with the height and width between two recipes.

    Args:
        owner: name of the recipe that has this part, for errors.
        steps: recipes, in order; a Compose is flattened.
        first: number of its first recipe among all parts' recipes, from 1.

    Raises:
        TypeError: a step is not a recipe.
        ValueError: a recipe changes the dtype of images.
    """

    def __init__(self, owner: str, steps: Sequence[Recipe | Compose], first: int) -> None:
        self.recipes = Compose(steps).recipes
        for recipe in self.recipes:
            if any(
                recipe.dtype_after(dtype) is not dtype for dtype in (torch.uint8, torch.float32)
            ):
                raise ValueError(
                    f"{owner} has {recipe!r}, which would change the dtype of some images of a "
                    f"batch. Remedy: put it before or after {owner}"
                )
        self.num_draws = sum(recipe.num_draws for recipe in self.recipes)
        draws = self._draws(np.empty((0, self.num_draws)), np.empty((0, 2), dtype=np.int64))
        self._widths = [draw.numbers.shape[1] for draw in draws]
        self.num_numbers = sum(self._widths) + 2 * max(len(draws) - 1, 0)
        self._dtypes = [draw.numbers.dtype for draw in draws]
        self.dtype = np.result_type(np.int64, *self._dtypes)
        self.number_names: list[str] = []
        for place, recipe in enumerate(self.recipes, start=first):
            if place > first:
                self.number_names += [f"height_before_{place}", f"width_before_{place}"]
            self.number_names += [f"{name}_{place}" for name in recipe.number_names]

    def _draws(self, uniforms: FloatArray, sizes: IndexArray) -> list[Draw]:
        draws, start = [], 0
        for recipe in self.recipes:
            draws.append(recipe.draw(uniforms[:, start : start + recipe.num_draws], sizes))
            start, sizes = start + recipe.num_draws, draws[-1].sizes
        return draws

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        """Draw for all recipes, as :meth:`Recipe.draw` does."""
        draws = self._draws(uniforms, sizes)
        if not draws:
            return nothing_drawn(sizes)
        before = [array for draw in draws[:-1] for array in (draw.numbers, draw.sizes)]
        return Draw(np.concatenate([*before, draws[-1].numbers], axis=1), draws[-1].sizes)

    def each(self, numbers: Any) -> list[tuple[Recipe, Any]]:
        """Return each recipe with its own numbers, from numbers [..., num_numbers]."""
        rows, start = [], 0
        for width, dtype in zip(self._widths, self._dtypes, strict=True):
            rows.append(numbers[..., start : start + width].astype(dtype))
            start += width + 2
        return list(zip(self.recipes, rows, strict=True))

    def motion(self, numbers: IndexArray | FloatArray, sizes: IndexArray) -> FloatArray | None:
        """Return the recipes' combined motion, see :meth:`Recipe.motion`."""
        moved, end = at_rest(len(sizes)), 0
        for recipe, columns in self.each(numbers):
            motion = recipe.motion(columns, sizes)
            if motion is None:
                return None
            moved, end = one_after_the_other(moved, motion), end + columns.shape[1] + 2
            sizes = numbers[:, end - 2 : end].astype(np.int64)
        return moved


class _OfParts(Recipe):
    """Base of recipes that apply some of several parts, or all of them in some order.

    Numbers: the recipe's own, then the numbers of all parts, 0 for parts that do not act. Names of
    recipe i's numbers end with ``_i``, counted from 1; ``height_before_i`` and ``width_before_i``
    are the size of its input.
    """

    def _divide(
        self, parts: Sequence[Sequence[Recipe | Compose]], *, names: Sequence[str], num_draws: int
    ) -> None:
        """Set the parts.

        Args:
            names: names of the recipe's own numbers.
            num_draws: number of the recipe's own uniforms.
        """
        self._parts: list[_Part] = []
        self._columns: list[slice] = []
        self._uniforms: list[slice] = []
        place, column = 1, len(names)
        for steps in parts:
            part = _Part(type(self).__name__, steps, place)
            self._parts.append(part)
            self._columns.append(slice(column, column + part.num_numbers))
            self._uniforms.append(slice(num_draws, num_draws + part.num_draws))
            place, column = place + len(part.recipes), column + part.num_numbers
            num_draws += part.num_draws
        self.num_draws = num_draws
        of_parts = [name for part in self._parts for name in part.number_names]
        all_names = (*names, *of_parts)
        self.number_names = all_names if len(all_names) == column else ()

    def _no_numbers(self, n: int) -> IndexArray | FloatArray:
        dtype = np.result_type(*(part.dtype for part in self._parts))
        return np.zeros((n, self._columns[-1].stop), dtype=dtype)

    def _draw_chosen(
        self,
        chosen: IndexArray,
        uniforms: FloatArray,
        sizes: IndexArray,
        numbers: IndexArray | FloatArray,
    ) -> IndexArray:
        """Draw for one part of each image, into ``numbers``; return the sizes after it."""
        after: IndexArray = sizes.copy()
        for i, part in enumerate(self._parts):
            rows = np.flatnonzero(chosen == i)
            drawn = part.draw(uniforms[rows, self._uniforms[i]], sizes[rows])
            numbers[rows, self._columns[i]], after[rows] = drawn.numbers, drawn.sizes
        return after

    def _motion_of_chosen(
        self, chosen: IndexArray | FloatArray, numbers: IndexArray | FloatArray, sizes: IndexArray
    ) -> FloatArray | None:
        """Return the motion of one part of each image."""
        moved = at_rest(len(sizes))
        for i, (part, columns) in enumerate(zip(self._parts, self._columns, strict=True)):
            rows = np.flatnonzero(chosen == i)
            motion = part.motion(numbers[rows, columns], sizes[rows])
            if motion is None:
                return None
            moved[rows] = motion
        return moved

    def _steps(self, part: int, numbers: Sequence[float]) -> list[tuple[Recipe, list[float]]]:
        """Return the recipes of a part, each with its numbers for an image."""
        each = self._parts[part].each(np.array(numbers[self._columns[part]]))
        return [(recipe, row.tolist()) for recipe, row in each]

    def _apply_parts(
        self, parts: Sequence[int], images: Tensor, numbers: IndexArray | FloatArray
    ) -> Tensor:
        """Apply parts in a row to images, [n, C, H, W], with numbers [n, k]."""
        for part in parts:
            for recipe, columns in self._parts[part].each(numbers[:, self._columns[part]]):
                images = recipe.apply_batch(images, columns)
        return images

    def immovable(self) -> Recipe | None:
        recipes = [recipe for part in self._parts for recipe in part.recipes]
        return next(filter(None, (recipe.immovable() for recipe in recipes)), None)


class _OneOfSeveral(_OfParts):
    """Base of recipes that choose one of several parts for each image.

    Its own number is the chosen part, counted from 0.
    """

    @abstractmethod
    def _chosen(self, uniforms: FloatArray) -> IndexArray:
        """Return the chosen part for each image, int64 [n], from uniforms [n]."""

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        numbers, chosen = self._no_numbers(len(sizes)), self._chosen(uniforms[:, 0])
        numbers[:, 0] = chosen
        return Draw(numbers, self._draw_chosen(chosen, uniforms, sizes, numbers))

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        for recipe, row in self._steps(int(numbers[0]), numbers):
            image = recipe.apply(image, row)
        return image

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        def act(part: int, chosen: Tensor, _: Tensor, rows: IndexArray) -> Tensor:
            return self._apply_parts([part], chosen, numbers[rows])

        operations = {part: partial(act, part) for part in range(len(self._parts))}
        return apply_by_group(images, numbers[:, 0].astype(np.int64), operations)

    def cut(self, cut: Cut, numbers: Sequence[float]) -> Cut | None:
        recipes = self._steps(int(numbers[0]), numbers)
        if len(recipes) > 1:
            return None
        for recipe, row in recipes:
            return recipe.cut(cut, row)
        return cut

    def apply_to_cut(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        for recipe, row in self._steps(int(numbers[0]), numbers):
            image = recipe.apply_to_cut(image, row)
        return image

    def motion(self, numbers: IndexArray | FloatArray, sizes: IndexArray) -> FloatArray | None:
        return self._motion_of_chosen(numbers[:, 0], numbers, sizes)


class RandomApply(_OneOfSeveral):
    """Apply other recipes with a probability, as ``torchvision.transforms.v2.RandomApply``.

    Numbers: 1 to apply the recipes, else 0; then the recipes' numbers, or 0. Names end with ``_1``
    for the first recipe, ``_2`` for the second; ``height_before_2`` and ``width_before_2`` are the
    size of the second recipe's input.

    Args:
        transforms: recipes, in order; none may change the dtype of images.
        p: the probability that all of them are applied.

    >>> from stateful_gpu_loader.transforms import GaussianBlur
    >>> recipe = RandomApply([GaussianBlur(23)], p=0.1)
    >>> recipe.draw(np.array([[0.05, 0.5], [0.2, 0.5]]), np.array([[375, 500]] * 2)).numbers
    array([[1.  , 1.05],
           [0.  , 0.  ]])
    """

    def __init__(self, transforms: Sequence[Recipe | Compose], p: float = 0.5) -> None:
        self.transforms = _checked(transforms).recipes
        self.p = as_probability(p)
        self._divide([(), self.transforms], names=["acts"], num_draws=1)

    def _chosen(self, uniforms: FloatArray) -> IndexArray:
        return (uniforms < self.p).astype(np.int64)


class RandomChoice(_OneOfSeveral):
    """Apply one of several recipes, as ``torchvision.transforms.v2.RandomChoice``.

    Numbers: the chosen recipe, counted from 0; then the numbers of all recipes, 0 for recipes that
    are not chosen. Names end with ``_1`` for the first recipe, ``_2`` for the second.

    Args:
        transforms: recipes to choose from; a Compose is one choice. None may change the dtype of
            images.
        p: weights of the recipes, on any scale; None for equal weights.

    >>> from stateful_gpu_loader.transforms import CenterCrop, Resize
    >>> recipe = RandomChoice([Resize(256), CenterCrop(224)], p=[3, 1])
    >>> recipe.draw(np.array([[0.7], [0.8]]), np.array([[375, 500]] * 2)).sizes
    array([[256, 341],
           [224, 224]])
    """

    def __init__(
        self, transforms: Sequence[Recipe | Compose], p: Sequence[float] | None = None
    ) -> None:
        self.transforms = _as_parts(transforms)
        self.p = _as_weights(p, len(self.transforms))
        self._bounds = np.cumsum(self.p)
        self._divide([[step] for step in self.transforms], names=["choice"], num_draws=1)

    def _chosen(self, uniforms: FloatArray) -> IndexArray:
        chosen = np.searchsorted(self._bounds, uniforms * self._bounds[-1], side="right")
        parts: IndexArray = np.minimum(chosen, len(self._bounds) - 1).astype(np.int64)
        return parts


class RandomOrder(_OfParts):
    """Apply recipes in a random order, as ``torchvision.transforms.v2.RandomOrder``.

    Numbers: ``turn_1`` to ``turn_n`` are the recipes in their order, counted from 0.
    ``height_before_turn_2`` and ``width_before_turn_2`` are the size before the second turn. Then
    come the numbers of all recipes. Names end with ``_1`` for the first recipe, ``_2`` for the
    second.

    Args:
        transforms: recipes; a Compose keeps its own order. None may change the dtype of images.

    >>> from stateful_gpu_loader.transforms import RandomHorizontalFlip, RandomInvert
    >>> recipe = RandomOrder([RandomHorizontalFlip(), RandomInvert()])
    >>> recipe.draw(np.array([[0.7, 0.2, 0.9, 0.1]]), np.array([[375, 500]])).numbers
    array([[  1,   0, 375, 500,   0,   1]])
    """

    def __init__(self, transforms: Sequence[Recipe | Compose]) -> None:
        self.transforms = _as_parts(transforms)
        n = len(self.transforms)
        names = [f"turn_{turn}" for turn in range(1, n + 1)]
        for turn in range(2, n + 1):
            names += [f"height_before_turn_{turn}", f"width_before_turn_{turn}"]
        self._divide([[step] for step in self.transforms], names=names, num_draws=n)

    def _sizes_before(self, turn: int) -> slice:
        """Return the columns of the size before a turn, counted from 0, except the first."""
        start = len(self._parts) + 2 * (turn - 1)
        return slice(start, start + 2)

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        numbers, n = self._no_numbers(len(sizes)), len(self._parts)
        orders = np.argsort(uniforms[:, :n], axis=1, kind="stable")
        numbers[:, :n] = orders
        for turn in range(n):
            if turn:
                numbers[:, self._sizes_before(turn)] = sizes
            sizes = self._draw_chosen(orders[:, turn], uniforms, sizes, numbers)
        return Draw(numbers, sizes)

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        for part in map(int, numbers[: len(self._parts)]):
            for recipe, row in self._steps(part, numbers):
                image = recipe.apply(image, row)
        return image

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        """Apply with one call per recipe and order, because sizes between recipes may differ."""

        def act(order: list[int], chosen: Tensor, _: Tensor, rows: IndexArray) -> Tensor:
            return self._apply_parts(order, chosen, numbers[rows])

        drawn = numbers[:, : len(self._parts)].astype(np.int64)
        orders, groups = np.unique(drawn, axis=0, return_inverse=True)
        operations = {i: partial(act, order) for i, order in enumerate(orders.tolist())}
        return apply_by_group(images, groups.reshape(-1), operations)

    def motion(self, numbers: IndexArray | FloatArray, sizes: IndexArray) -> FloatArray | None:
        moved = at_rest(len(sizes))
        for turn in range(len(self._parts)):
            if turn:
                sizes = numbers[:, self._sizes_before(turn)].astype(np.int64)
            motion = self._motion_of_chosen(numbers[:, turn], numbers, sizes)
            if motion is None:
                return None
            moved = one_after_the_other(moved, motion)
        return moved


def _as_parts(transforms: Any) -> tuple[Recipe | Compose, ...]:
    """Return each step as one part."""
    _checked(transforms)
    steps = [Compose([step]) for step in transforms]
    return tuple(step.recipes[0] if len(step.recipes) == 1 else step for step in steps)


def _checked(transforms: Any) -> Compose:
    steps = Compose(transforms)
    if not steps.recipes:
        raise ValueError(f"{transforms = } has no recipe. Remedy: pass at least one")
    return steps


def _as_weights(p: Any, n: int) -> tuple[float, ...]:
    """Return probabilities of n choices, with a sum of 1."""
    if p is None:
        return (1.0 / n,) * n
    weights = [float(weight) for weight in p]
    total = math.fsum(weights)
    if len(weights) != n or not all(weight >= 0 for weight in weights) or not 0 < total < math.inf:
        raise ValueError(f"{p = } must be {n} numbers, none negative and not all 0")
    return tuple(weight / total for weight in weights)

"""RandomApply and RandomChoice: recipes that randomly choose which other recipes to apply."""

from __future__ import annotations

import math
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

    Its numbers are those of the recipes, with the height and width between two recipes.

    Args:
        owner: name of the recipe that has this part, for errors.
        steps: recipes, in order; a Compose is replaced by its recipes.
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
        """Return how the recipes together move points, see :meth:`Recipe.motion`."""
        moved, end = at_rest(len(sizes)), 0
        for recipe, columns in self.each(numbers):
            motion = recipe.motion(columns, sizes)
            if motion is None:
                return None
            moved, end = one_after_the_other(moved, motion), end + columns.shape[1] + 2
            sizes = numbers[:, end - 2 : end].astype(np.int64)
        return moved


class _OneOfSeveral(Recipe):
    """Base of recipes that choose one of several parts for each image.

    Numbers: the chosen part, counted from 0; then the numbers of all parts, 0 for parts that are
    not chosen. Names of recipe i's numbers end with ``_i``, counted from 1; ``height_before_i``
    and ``width_before_i`` are the size of its input.
    """

    _name: str
    """Name of the first number."""

    def _divide(self, *parts: Sequence[Recipe | Compose]) -> None:
        self._parts: list[_Part] = []
        self._columns: list[slice] = []
        place = column = 1
        for steps in parts:
            part = _Part(type(self).__name__, steps, place)
            self._parts.append(part)
            self._columns.append(slice(column, column + part.num_numbers))
            place, column = place + len(part.recipes), column + part.num_numbers
        self.num_draws = 1 + sum(part.num_draws for part in self._parts)
        names = [name for part in self._parts for name in part.number_names]
        self.number_names = (self._name, *names) if len(names) == column - 1 else ()

    def _chosen(self, uniforms: FloatArray) -> IndexArray:
        """Return the chosen part for each image, int64 [n], from uniforms [n]."""
        raise NotImplementedError

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        chosen = self._chosen(uniforms[:, 0])
        dtype = np.result_type(*(part.dtype for part in self._parts))
        numbers = np.zeros((len(sizes), self._columns[-1].stop), dtype=dtype)
        numbers[:, 0] = chosen
        after, start = sizes.copy(), 1
        for i, (part, columns) in enumerate(zip(self._parts, self._columns, strict=True)):
            rows = np.flatnonzero(chosen == i)
            drawn = part.draw(uniforms[rows, start : start + part.num_draws], sizes[rows])
            numbers[rows, columns], after[rows] = drawn.numbers, drawn.sizes
            start += part.num_draws
        return Draw(numbers, after)

    def _part_of(self, numbers: Sequence[float]) -> list[tuple[Recipe, list[float]]]:
        """Return the recipes that are applied to an image, each with its numbers."""
        chosen = int(numbers[0])
        each = self._parts[chosen].each(np.array(numbers[self._columns[chosen]]))
        return [(recipe, row.tolist()) for recipe, row in each]

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        for recipe, row in self._part_of(numbers):
            image = recipe.apply(image, row)
        return image

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        def act(part: int, chosen: Tensor, _: Tensor, rows: IndexArray) -> Tensor:
            for recipe, columns in self._parts[part].each(numbers[rows, self._columns[part]]):
                chosen = recipe.apply_batch(chosen, columns)
            return chosen

        operations = {part: partial(act, part) for part in range(len(self._parts))}
        return apply_by_group(images, numbers[:, 0].astype(np.int64), operations)

    def cut(self, cut: Cut, numbers: Sequence[float]) -> Cut | None:
        recipes = self._part_of(numbers)
        if len(recipes) > 1:
            return None
        for recipe, row in recipes:
            return recipe.cut(cut, row)
        return cut

    def apply_to_cut(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        for recipe, row in self._part_of(numbers):
            image = recipe.apply_to_cut(image, row)
        return image

    def immovable(self) -> Recipe | None:
        recipes = [recipe for part in self._parts for recipe in part.recipes]
        return next(filter(None, (recipe.immovable() for recipe in recipes)), None)

    def motion(self, numbers: IndexArray | FloatArray, sizes: IndexArray) -> FloatArray | None:
        moved = at_rest(len(sizes))
        for i, (part, columns) in enumerate(zip(self._parts, self._columns, strict=True)):
            rows = np.flatnonzero(numbers[:, 0] == i)
            motion = part.motion(numbers[rows, columns], sizes[rows])
            if motion is None:
                return None
            moved[rows] = motion
        return moved


class RandomApply(_OneOfSeveral):
    """Apply other recipes with a probability, as ``torchvision.transforms.v2.RandomApply``.

    Numbers: 1 to apply the recipes, else 0; then the recipes' numbers, 0 if
    they are not applied. Names end with ``_1`` for the first recipe, ``_2`` for the second;
    ``height_before_2`` and ``width_before_2`` are the size of the second recipe's input.

    Args:
        transforms: recipes, in order; none may change the dtype of images.
        p: the probability that all of them are applied.

    Raises:
        TypeError, ValueError: an argument is invalid.

    >>> from stateful_gpu_loader.transforms import GaussianBlur
    >>> recipe = RandomApply([GaussianBlur(23)], p=0.1)
    >>> recipe.draw(np.array([[0.05, 0.5], [0.2, 0.5]]), np.array([[375, 500]] * 2)).numbers
    array([[1.  , 1.05],
           [0.  , 0.  ]])
    """

    _name = "acts"

    def __init__(self, transforms: Sequence[Recipe | Compose], p: float = 0.5) -> None:
        self.transforms = _checked(transforms).recipes
        self.p = as_probability(p)
        self._divide((), self.transforms)

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

    Raises:
        TypeError, ValueError: an argument is invalid.

    >>> from stateful_gpu_loader.transforms import CenterCrop, Resize
    >>> recipe = RandomChoice([Resize(256), CenterCrop(224)], p=[3, 1])
    >>> recipe.draw(np.array([[0.7], [0.8]]), np.array([[375, 500]] * 2)).sizes
    array([[256, 341],
           [224, 224]])
    """

    _name = "choice"

    def __init__(
        self, transforms: Sequence[Recipe | Compose], p: Sequence[float] | None = None
    ) -> None:
        _checked(transforms)
        steps = [Compose([step]) for step in transforms]
        self.transforms = tuple(s.recipes[0] if len(s.recipes) == 1 else s for s in steps)
        self.p = _as_weights(p, len(steps))
        self._bounds = np.cumsum(self.p)
        self._divide(*([step] for step in self.transforms))

    def _chosen(self, uniforms: FloatArray) -> IndexArray:
        chosen = np.searchsorted(self._bounds, uniforms * self._bounds[-1], side="right")
        parts: IndexArray = np.minimum(chosen, len(self._bounds) - 1).astype(np.int64)
        return parts


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

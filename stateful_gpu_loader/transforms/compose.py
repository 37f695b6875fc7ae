"""Compose: recipes one after the other, each with a stream of draws of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.randomness import Stream, uniforms
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.recipe import Draw, Recipe, copy_into

Rows = Sequence[Sequence[float]]
"""The numbers of one sample: one row for each recipe."""


@dataclass(frozen=True, eq=False)
class PipelineDraw:
    """What all recipes decided for the n samples of a batch."""

    draws: tuple[Draw, ...]
    """One for each recipe, in order."""
    sizes: IndexArray
    """int64 [n, 2]: height and width after the last recipe, in pixels."""

    def sample(self, i: int) -> Rows:
        """The numbers of sample i, one row for each recipe, as plain Python numbers."""
        return self._rows[i]

    @cached_property
    def _rows(self) -> list[tuple[list[float], ...]]:
        if not self.draws:
            return [()] * len(self.sizes)
        return list(zip(*(draw.numbers.tolist() for draw in self.draws), strict=True))


class Compose:
    """Recipes one after the other.

    Recipe i draws from stream ``Stream.RECIPES + i``: one added at the end disturbs none before
    it.

    Args:
        transforms: recipes, in order; those of a nested Compose take its place.

    Raises:
        TypeError: something in it is no recipe.

    >>> from stateful_gpu_loader.transforms import Normalize, RandomResizedCrop
    >>> recipes = Compose([RandomResizedCrop(224), Normalize([0.5], [0.5])])
    >>> drawn = recipes.draw(42, 0, np.array([7, 8]), np.array([[375, 500], [480, 640]]))
    >>> drawn.sample(1), drawn.sizes[1]
    (([114, 462, 172, 145], []), array([224, 224]))
    >>> image = torch.zeros(3, 480, 640, dtype=torch.uint8)
    >>> batch = torch.empty(2, 3, 224, 224, dtype=recipes.output_dtype)
    >>> recipes.apply_into(image, drawn.sample(1), batch[1])
    """

    def __init__(self, transforms: Sequence[Recipe | Compose]) -> None:
        recipes: list[Recipe] = []
        for step in _checked_sequence(transforms):
            if isinstance(step, Compose):
                recipes.extend(step.recipes)
            elif isinstance(step, Recipe):
                recipes.append(step)
            else:
                raise TypeError(
                    f"Compose got {step!r} of type {type(step).__name__}, which is no recipe. "
                    "Remedy: take the recipe of that name from stateful_gpu_loader.transforms, or "
                    "put all into torchvision.transforms.v2.Compose, which calls recipes as well"
                )
        self.recipes: tuple[Recipe, ...] = tuple(recipes)

    def draw(self, seed: int, epoch: int, positions: IndexArray, sizes: IndexArray) -> PipelineDraw:
        """Decide for a whole batch; row i depends on position i and size i alone (law 1).

        Args:
            seed: 64 bits.
            epoch: 0 <= epoch < 2**32.
            positions: int64 [n]: positions in the epoch's global order.
            sizes: int64 [n, 2]: height and width of the decoded images, in pixels.

        Raises:
            ValueError: positions and sizes do not match, or an image is too small for a recipe.
        """
        sizes = np.asarray(sizes, dtype=np.int64)
        if sizes.shape != (len(positions), 2):
            raise ValueError(
                f"there are {len(positions)} positions and sizes of shape {list(sizes.shape)}. "
                "Remedy: pass a height and a width for each position"
            )
        draws = []
        for stream, recipe in enumerate(self.recipes, start=Stream.RECIPES):
            # Philox costs 60 us even for no draws at all.
            given = (
                uniforms(seed, epoch, positions, stream, recipe.num_draws)
                if recipe.num_draws
                else np.empty((len(positions), 0))
            )
            draws.append(recipe.draw(given, sizes))
            sizes = draws[-1].sizes
        return PipelineDraw(tuple(draws), sizes)

    def apply(self, image: Tensor, rows: Rows) -> Tensor:
        """Make the pixels of one image; ``image`` stays as it is, the result may be a view of it.

        Args:
            image: [C, H, W], uint8 or float, of the size that ``rows`` were drawn for.
            rows: from :meth:`PipelineDraw.sample`.
        """
        for recipe, numbers in zip(self.recipes, rows, strict=True):
            image = recipe.apply(image, numbers)
        return image

    def apply_into(self, image: Tensor, rows: Rows, out: Tensor) -> None:
        """As :meth:`apply`, into ``out``: a row of the batch, [C, H, W].

        Raises:
            ValueError: the result has another shape or dtype than ``out``.
        """
        if not self.recipes:
            copy_into(image, out)
            return
        *before, last = zip(self.recipes, rows, strict=True)
        for recipe, numbers in before:
            image = recipe.apply(image, numbers)
        recipe, numbers = last
        recipe.apply_into(image, numbers, out)

    def __call__(self, image: Tensor) -> Tensor:
        """Draw from torch's default generator and apply, recipe by recipe."""
        for recipe in self.recipes:
            image = recipe(image)
        return image

    @property
    def output_dtype(self) -> torch.dtype:
        """The dtype of the batch, for decoded images: uint8."""
        dtype = torch.uint8
        for recipe in self.recipes:
            dtype = recipe.dtype_after(dtype)
        return dtype

    def fingerprint(self) -> str:
        """The recipes and their arguments as text: equal texts give equal pixels.

        >>> from stateful_gpu_loader.transforms import CenterCrop, RandomHorizontalFlip
        >>> Compose([CenterCrop(224), Compose([RandomHorizontalFlip()])]).fingerprint()
        'Compose([CenterCrop(size=(224, 224)), RandomHorizontalFlip(p=0.5)])'
        """
        return f"Compose([{', '.join(recipe.fingerprint() for recipe in self.recipes)}])"

    def __repr__(self) -> str:
        return self.fingerprint()


def _checked_sequence(transforms: object) -> Sequence[object]:
    if not isinstance(transforms, Sequence) or isinstance(transforms, str):
        raise TypeError(
            f"Compose got {transforms!r} of type {type(transforms).__name__}. "
            "Remedy: pass a list of recipes"
        )
    return transforms

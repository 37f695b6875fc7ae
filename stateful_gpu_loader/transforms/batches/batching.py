"""Batching: applies recipes to a ragged batch of images, on any device.

Recipes are folded (:meth:`Recipe.place`, :meth:`Recipe.pointwise`) until one cannot be. Then one
resampling applies them all. The code that makes a sample's pixels depends on the recipes and the
sample's numbers alone, except for crops, which are exact either way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.decoders.decoder import Image, as_tensor
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.batches.placement import Placement, Pointwise
from stateful_gpu_loader.transforms.batches.ragged import resample
from stateful_gpu_loader.transforms.recipe import FloatArray, Recipe


class Batching:
    """n images and their pending operations.

    Args:
        images: n >= 1 images, [C, H, W] of any strides, with one dtype and device; they are not
            changed. A :class:`StridedImage` becomes a tensor only if needed.
        memory_format: of every batch that is made.

    >>> from stateful_gpu_loader.transforms import CenterCrop, Normalize
    >>> images = [torch.full((1, 4, 4), 51, dtype=torch.uint8), torch.zeros(1, 2, 3).byte()]
    >>> batching = Batching(images, torch.contiguous_format)
    >>> batching.apply(CenterCrop((1, 2)), np.array([[0, 0, 0, 0, 1, 1], [0] * 6]), [(1, 2)] * 2)
    >>> batching.apply(Normalize([0.2], [0.1]), np.empty((2, 0)), [(1, 2)] * 2)
    >>> batching.finish()[:, 0, 0]
    tensor([[ 0.,  0.],
            [-2., -2.]])
    """

    def __init__(self, images: Sequence[Image], memory_format: torch.memory_format) -> None:
        self._memory_format = memory_format
        self._start(list(images))

    def apply(
        self, recipe: Recipe, numbers: IndexArray | FloatArray, sizes: Sequence[tuple[int, int]]
    ) -> None:
        """Apply a recipe now, or fold it in for later.

        Args:
            recipe: the next recipe.
            numbers: [n, k], as :attr:`Draw.numbers`.
            sizes: height and width of each image after the recipe, in pixels.
        """
        if self._folds(recipe, numbers):
            return
        if self._is_pending:
            self._settle()
            if self._folds(recipe, numbers):
                return
        self._carry_out(recipe, numbers, sizes)

    def finish(self) -> Tensor:
        """Return the batch [n, C, h, w], in its own memory.

        Raises:
            RuntimeError: the images differ in size.
        """
        if self._is_pending:
            self._settle()
        images = self._images
        batch = images if isinstance(images, Tensor) else torch.stack([*map(as_tensor, images)])
        return batch.contiguous(memory_format=self._memory_format)

    def _start(self, images: Sequence[Image] | Tensor) -> None:
        """Start again with these images, or with the rows of a batch."""
        self._images = images
        self._placement = Placement.of(_sizes_of(images))
        self._pointwise = Pointwise()
        self._is_pending = False

    def _folds(self, recipe: Recipe, numbers: IndexArray | FloatArray) -> bool:
        if self._images[0].dtype is not torch.uint8:
            return False
        placed = recipe.place(self._placement, numbers)
        # Moves, but not resizes, which round, commute with the steps.
        if placed is not None and (
            self._pointwise == Pointwise() or placed.antialias == self._placement.antialias
        ):
            self._placement = placed
        else:
            pointwise = recipe.pointwise(self._pointwise) if self._is_pending else None
            if pointwise is None or not pointwise.fits(self._images[0].shape[0]):
                return False
            self._pointwise = pointwise
        self._is_pending = True
        return True

    def _settle(self) -> None:
        """Apply the folded recipes: one resampling for each size of results."""
        placement, images = self._placement, self._images
        if isinstance(images, Tensor):
            images = images.unbind(0)  # one torch call instead of one per image

        def make(members: list[int]) -> Tensor:
            chosen, part = [images[i] for i in members], placement.take(np.array(members))
            return resample(chosen, part, self._pointwise, self._memory_format)

        self._start(_in_groups(map(tuple, placement.sizes.tolist()), make))

    def _carry_out(
        self,
        recipe: Recipe,
        numbers: IndexArray | FloatArray,
        sizes: Sequence[tuple[int, int]],
    ) -> None:
        """Call the recipe once for all images with the same sizes before and after it."""

        def make(members: list[int]) -> Tensor:
            images = self._images
            if not isinstance(images, Tensor) or len(members) < len(images):
                images = torch.stack([as_tensor(images[i]) for i in members])
            return recipe.apply_batch(images, numbers[np.array(members)])

        before = map(tuple, self._placement.sizes.tolist())
        self._start(_in_groups(zip(before, sizes, strict=True), make))


def _sizes_of(images: Sequence[Image] | Tensor) -> IndexArray:
    """Return height and width of each image: int64 [n, 2]."""
    if isinstance(images, Tensor):
        return np.tile(np.array(images.shape[2:], dtype=np.int64), (len(images), 1))
    return np.array([image.shape[1:] for image in images], dtype=np.int64)


def _in_groups(
    keys: Iterable[object], make: Callable[[list[int]], Tensor]
) -> list[Tensor] | Tensor:
    """Call ``make`` once for each distinct key; return one batch, or the images in order."""
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        groups[key].append(i)
    made: dict[int, Tensor] = {}
    for members in groups.values():
        batch = make(members)
        if len(batch) != len(members):
            raise ValueError(
                f"a recipe made {len(batch)} images from {len(members)}. Remedy: return one image "
                "for each from its apply_batch"
            )
        if len(groups) == 1:
            return batch
        made.update(zip(members, batch.unbind(0), strict=True))
    return [made[i] for i in range(len(made))]

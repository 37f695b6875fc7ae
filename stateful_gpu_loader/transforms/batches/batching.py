"""Batching: a ragged batch of images on its way through the recipes, on any device.

Recipes that fold (:meth:`Recipe.place`, :meth:`Recipe.pointwise`) cost nothing until one comes
that does not; then a single resampling carries them out. Which code makes a sample's pixels
depends on the recipes and on its own numbers, or, where padding decides it, changes no pixel: a
crop is exact either way (law 1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.batches.placement import Placement
from stateful_gpu_loader.transforms.batches.pointwise import Pointwise
from stateful_gpu_loader.transforms.batches.ragged import resample
from stateful_gpu_loader.transforms.recipe import FloatArray, Recipe


class Batching:
    """n images, and what is still to be done to them.

    Args:
        images: n >= 1 images, [C, H, W] of any strides, of one dtype and on one device; they stay
            as they are.
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

    def __init__(self, images: Sequence[Tensor], memory_format: torch.memory_format) -> None:
        self._memory_format = memory_format
        self._start(list(images), None)

    def apply(
        self, recipe: Recipe, numbers: IndexArray | FloatArray, sizes: Sequence[tuple[int, int]]
    ) -> None:
        """Do one recipe, or note that it is to be done.

        Args:
            recipe: the next one.
            numbers: [n, k], as :attr:`Draw.numbers`.
            sizes: height and width of each image after it, in pixels.
        """
        if self._folds(recipe, numbers):
            return
        if self._is_pending:
            self._settle()
            if self._folds(recipe, numbers):
                return
        self._carry_out(recipe, numbers, sizes)

    def finish(self) -> Tensor:
        """The batch [n, C, h, w], in memory of its own.

        Raises:
            RuntimeError: the images are not of one size.
        """
        if self._is_pending:
            self._settle()
        batch = torch.stack(self._images) if self._batch is None else self._batch
        return batch.contiguous(memory_format=self._memory_format)

    def _start(self, images: list[Tensor], batch: Tensor | None) -> None:
        """From here on the images are these; ``batch``, if there is one, holds just them."""
        self._images = images
        self._batch = batch
        sizes = np.array([image.shape[1:] for image in images], dtype=np.int64)
        self._placement = Placement.of(sizes)
        self._pointwise = Pointwise()
        self._is_pending = False

    def _folds(self, recipe: Recipe, numbers: IndexArray | FloatArray) -> bool:
        if self._images[0].dtype is not torch.uint8:
            return False
        placed = recipe.place(self._placement, numbers)
        # What moves pixels may as well come before the steps; a resize, which rounds, may not.
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
        """Carry out what was noted: in one resampling, or in one for each size that comes out."""
        placement = self._placement
        groups = _grouped(map(tuple, placement.sizes.tolist()))
        made: list[Tensor] = [self._images[0]] * len(self._images)
        for members in groups:
            images = [self._images[i] for i in members]
            part = placement if len(groups) == 1 else placement.take(np.array(members))
            batch = resample(images, part, self._pointwise, self._memory_format)
            for i, image in zip(members, batch.unbind(0), strict=True):
                made[i] = image
        self._start(made, batch if len(groups) == 1 else None)

    def _carry_out(
        self,
        recipe: Recipe,
        numbers: IndexArray | FloatArray,
        sizes: Sequence[tuple[int, int]],
    ) -> None:
        """Call the recipe, once for all images that have one size before and after it."""
        before = (tuple(image.shape) for image in self._images)
        groups = _grouped(zip(before, sizes, strict=True))
        made: list[Tensor] = [self._images[0]] * len(self._images)
        for members in groups:
            images = self._batch if self._batch is not None and len(groups) == 1 else None
            if images is None:
                images = torch.stack([self._images[i] for i in members])
            batch = recipe.apply_batch(images, numbers[np.array(members)])
            for i, image in zip(members, batch.unbind(0), strict=True):
                made[i] = image
        self._start(made, batch if len(groups) == 1 else None)


def _grouped(keys: Iterable[object]) -> list[list[int]]:
    """The numbers of equal keys together, each group in order."""
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        groups[key].append(i)
    return list(groups.values())

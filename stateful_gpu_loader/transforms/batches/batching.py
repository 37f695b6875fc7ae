"""Batching: a ragged batch of images on its way through the recipes, on any device.

Recipes that fold (:meth:`Recipe.place`, :meth:`Recipe.pointwise`) cost nothing until one comes
that does not; then a single resampling carries them out. Which code makes a sample's pixels
depends on the recipes and on its own numbers, or, where padding decides it, changes no pixel: a
crop is exact either way.
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
    """n images, and what is still to be done to them.

    Args:
        images: n >= 1 images, [C, H, W] of any strides, of one dtype and on one device; they stay
            as they are. A :class:`StridedImage` becomes a tensor only if a recipe needs one.
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
        images = self._images
        batch = images if isinstance(images, Tensor) else torch.stack([*map(as_tensor, images)])
        return batch.contiguous(memory_format=self._memory_format)

    def _start(self, images: Sequence[Image] | Tensor) -> None:
        """From here on the images are these, or the rows of one batch."""
        self._images = images
        self._placement = Placement.of(_sizes_of(images))
        self._pointwise = Pointwise()
        self._is_pending = False

    def _folds(self, recipe: Recipe, numbers: IndexArray | FloatArray) -> bool:
        if self._images[0].dtype is not torch.uint8:
            return False
        placed = recipe.place(self._placement, numbers)
        # Moving pixels gives the same before the steps as after; a resize, which rounds, does not.
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
        placement, images = self._placement, self._images
        if isinstance(images, Tensor):
            images = images.unbind(0)  # one call of torch, where each index would be one

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
        """Call the recipe, once for all images that have one size before and after it."""

        def make(members: list[int]) -> Tensor:
            images = self._images
            if not isinstance(images, Tensor) or len(members) < len(images):
                images = torch.stack([as_tensor(images[i]) for i in members])
            return recipe.apply_batch(images, numbers[np.array(members)])

        before = map(tuple, self._placement.sizes.tolist())
        self._start(_in_groups(zip(before, sizes, strict=True), make))


def _sizes_of(images: Sequence[Image] | Tensor) -> IndexArray:
    """Height and width of each: int64 [n, 2]."""
    if isinstance(images, Tensor):
        return np.tile(np.array(images.shape[2:], dtype=np.int64), (len(images), 1))
    return np.array([image.shape[1:] for image in images], dtype=np.int64)


def _in_groups(
    keys: Iterable[object], make: Callable[[list[int]], Tensor]
) -> list[Tensor] | Tensor:
    """What ``make`` gives for the numbers of equal keys together: one batch, or images in order."""
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        groups[key].append(i)
    made: dict[int, Tensor] = {}
    for members in groups.values():
        batch = make(members)
        if len(batch) != len(members):
            raise ValueError(
                f"a recipe made {len(batch)} images of {len(members)}. Remedy: let its "
                "apply_batch give one for each"
            )
        if len(groups) == 1:
            return batch
        made.update(zip(members, batch.unbind(0), strict=True))
    return [made[i] for i in range(len(made))]

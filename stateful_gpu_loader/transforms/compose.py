"""Compose: a sequence of recipes, each with its own random stream."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.decoders.decoder import Image, Size
from stateful_gpu_loader.randomness.philox import Stream, uniforms
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.batches.batching import Batching
from stateful_gpu_loader.transforms.cut import Cut
from stateful_gpu_loader.transforms.motion import at_rest, one_after_the_other
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, Recipe, copy_into
from stateful_gpu_loader.transforms.values import Normalize, ToDtype, ToMemoryFormat

Rows = Sequence[Sequence[float]]
"""Numbers of one sample: one row for each recipe."""


@dataclass(frozen=True, eq=False)
class PipelineDraw:
    """Numbers that all recipes drew for the n samples of a batch."""

    draws: tuple[Draw, ...]
    """One Draw for each recipe, in order."""
    sizes: IndexArray
    """int64 [n, 2]: height and width after the last recipe, in pixels."""

    def sample(self, i: int) -> Rows:
        """Return the numbers of sample i, one row per recipe, as plain Python numbers."""
        return self.rows[i]

    @property
    def keeps_one_size(self) -> bool:
        """Whether images of equal size keep equal sizes after each recipe."""
        return all((draw.sizes == draw.sizes[:1]).all() for draw in self.draws)

    def take(self, part: slice) -> PipelineDraw:
        """Return the draw of some of the samples."""
        draws = tuple(Draw(draw.numbers[part], draw.sizes[part]) for draw in self.draws)
        return PipelineDraw(draws, self.sizes[part])

    @cached_property
    def rows(self) -> list[tuple[list[float], ...]]:
        """Return the numbers of all samples, each as from :meth:`sample`."""
        if not self.draws:
            return [()] * len(self.sizes)
        return list(zip(*(draw.numbers.tolist() for draw in self.draws), strict=True))


class Compose:
    """Applies recipes in order.

    Recipe i draws from stream ``Stream.RECIPES + i``, so a recipe added at the end changes no other
    numbers.

    Args:
        transforms: recipes, in order; a nested Compose is replaced by its recipes.

    Raises:
        TypeError: a transform is not a recipe.

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
                remedy = remedy_for(step) or (
                    "take the recipe of that name from stateful_gpu_loader.transforms, or put all "
                    "into torchvision.transforms.v2.Compose, which calls recipes as well"
                )
                raise TypeError(
                    f"Compose got {step!r} of type {type(step).__name__}, which is not a recipe. "
                    f"Remedy: {remedy}"
                )
        if recipes:
            # Before the fork, so that workers need not import it.
            import torchvision.transforms.v2  # noqa: F401
        self.recipes: tuple[Recipe, ...] = tuple(recipes)
        self._first_stream: int = Stream.RECIPES

    def following(self, num_recipes: int) -> Compose:
        """Return these recipes with their streams after ``num_recipes`` others."""
        following = copy.copy(self)
        following._first_stream = self._first_stream + num_recipes
        return following

    def divided(self) -> tuple[Compose, Compose]:
        """Split into the recipes that make the pixels, and later ones that only change their type.

        The first part makes uint8. The second, the final Normalize, ToDtype and ToMemoryFormat,
        draws nothing, and can be applied elsewhere, to the whole batch.

        >>> from stateful_gpu_loader.transforms import CenterCrop, ToDtype
        >>> first, last = Compose([CenterCrop(224), ToDtype(torch.float16)]).divided()
        >>> first
        Compose([CenterCrop(size=(224, 224))])
        >>> last
        Compose([ToDtype(dtype=torch.float16, scale=False)])
        """
        end = len(self.recipes)
        while end and isinstance(self.recipes[end - 1], (Normalize, ToDtype, ToMemoryFormat)):
            end -= 1
        before, after = (Compose(part) for part in (self.recipes[:end], self.recipes[end:]))
        before._first_stream = self._first_stream
        if before.output_dtype is not torch.uint8:
            return self, Compose([])
        return before, after

    def draw(self, seed: int, epoch: int, positions: IndexArray, sizes: IndexArray) -> PipelineDraw:
        """Draw numbers for a whole batch; row i depends on position i and size i alone.

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
        for stream, recipe in enumerate(self.recipes, start=self._first_stream):
            # Philox costs 60 us even without draws.
            given = (
                uniforms(seed, epoch, positions, stream, recipe.num_draws)
                if recipe.num_draws
                else np.empty((len(positions), 0))
            )
            draws.append(recipe.draw(given, sizes))
            sizes = draws[-1].sizes
        return PipelineDraw(tuple(draws), sizes)

    def cut(self, size: Size, rows: Rows) -> tuple[Cut, int]:
        """Return the part of an image from which all pixels of the result are made.

        Args:
            size: height and width of the decoded image, in pixels.
            rows: from :meth:`PipelineDraw.sample`.

        Returns:
            The part, and the number of first recipes, up to the last crop or the first resize, that
            it accounts for: ``num_cut`` of :meth:`apply` if only the part is decoded.

        >>> from stateful_gpu_loader.transforms import RandomHorizontalFlip, RandomResizedCrop
        >>> recipes = Compose([RandomHorizontalFlip(), RandomResizedCrop(224)])
        >>> recipes.cut((375, 500), ([1], [29, 91, 318, 318]))
        (Cut(box=(29, 91, 318, 318), mirrored=(False, True), resized=(224, 224)), 2)
        """
        cut, num_cut = Cut((0, 0, *size)), 0
        found = cut
        for i, (recipe, numbers) in enumerate(zip(self.recipes, rows, strict=True)):
            after = recipe.cut(cut, numbers)
            if after is None:
                break
            if after.box is not cut.box or after.resized:
                found, num_cut = after, i + 1
            if after.resized:
                break
            cut = after
        return found, num_cut

    def apply(self, image: Tensor, rows: Rows, num_cut: int = 0) -> Tensor:
        """Make the pixels of one image; ``image`` is not changed, the result may be a view of it.

        Args:
            image: [C, H, W], uint8 or float, of the size that ``rows`` were drawn for; or the part
                that :meth:`cut` returned, uint8.
            rows: from :meth:`PipelineDraw.sample`.
            num_cut: number of recipes that :meth:`cut` accounted for; 0 for a whole image.
        """
        for i, (recipe, numbers) in enumerate(zip(self.recipes, rows, strict=True)):
            image = (recipe.apply_to_cut if i < num_cut else recipe.apply)(image, numbers)
        return image

    def apply_into(self, image: Tensor, rows: Rows, out: Tensor, num_cut: int = 0) -> None:
        """Write the result of :meth:`apply` into ``out``, a row of the batch, [C, H, W].

        Raises:
            ValueError: the result has another shape or dtype than ``out``.
        """
        last = len(self.recipes) - 1
        if num_cut > last:
            copy_into(self.apply(image, rows, num_cut), out)
            return
        for i, (recipe, numbers) in enumerate(zip(self.recipes, rows, strict=True)):
            if i == last:
                recipe.apply_into(image, numbers, out)
            else:
                image = (recipe.apply_to_cut if i < num_cut else recipe.apply)(image, numbers)

    def apply_stack_into(self, images: Tensor, drawn: PipelineDraw, out: Tensor) -> None:
        """Write n images of one size into ``out``, with one call per recipe.

        The pixels are bit-identical to :meth:`apply`; those of :meth:`apply_batch` may differ.

        Args:
            images: uint8 [n, C, H, W] of any strides; they are not changed.
            drawn: from :meth:`draw`, for these n images; each recipe must give one size.
            out: [n, C, h, w].

        Raises:
            ValueError: the result has another shape or dtype than ``out``.
        """
        if not self.recipes:
            copy_into(images, out)
        last = len(self.recipes) - 1
        for i, (recipe, draw) in enumerate(zip(self.recipes, drawn.draws, strict=True)):
            if i == last:
                recipe.apply_batch_into(images, draw.numbers, out)
            else:
                images = recipe.apply_batch(images, draw.numbers)

    def apply_batch(self, images: Sequence[Image], drawn: PipelineDraw) -> Tensor:
        """Apply the recipes to n images of any sizes at once, on any device.

        Crops, bilinear resizes and flips, and Normalize and ToDtype directly after them, are one
        pass over the pixels. Bytes are rounded after each resize, as torchvision does on a GPU.
        Against torchvision, a few bytes in ten thousand differ by one level. Row i is a function of
        image i and its numbers.

        Work is queued on the current stream, without waiting for it.

        Args:
            images: n uint8 images [C, H, W] of any strides, on one device, of the sizes in the
                draw; they are not changed.
            drawn: from :meth:`draw`, for these n images.

        Returns:
            [n, C, h, w] in :attr:`output_dtype` and :attr:`memory_format`, in its own memory.

        Raises:
            ValueError: there are no images or not n, the results differ in size, or a box lies
                outside its image.

        >>> from stateful_gpu_loader.transforms import Resize
        >>> images = [torch.zeros(3, *size, dtype=torch.uint8) for size in [(50, 70), (60, 40)]]
        >>> recipes = Compose([Resize((32, 32))])
        >>> drawn = recipes.draw(42, 0, np.arange(2), np.array([[50, 70], [60, 40]]))
        >>> recipes.apply_batch(images, drawn).shape
        torch.Size([2, 3, 32, 32])
        """
        _check_batch(images, drawn)
        batching = Batching(images, self.memory_format)
        for recipe, draw in zip(self.recipes, drawn.draws, strict=True):
            batching.apply(recipe, draw.numbers, [(h, w) for h, w in draw.sizes.tolist()])
        return batching.finish()

    def __call__(self, image: Tensor) -> Tensor:
        """Draw from torch's default generator and apply the recipes in order."""
        for recipe in self.recipes:
            image = recipe(image)
        return image

    def immovable(self) -> Recipe | None:
        """Return the first recipe whose motion of points is unknown; None if all are known."""
        return next(filter(None, (recipe.immovable() for recipe in self.recipes)), None)

    def motion(self, drawn: PipelineDraw, sizes: IndexArray) -> FloatArray:
        """Return how the points of each image move.

        Args:
            drawn: from :meth:`draw`.
            sizes: int64 [n, 2]: height and width of the decoded images, in pixels.

        Returns:
            float64 [n, 2, 3], see :mod:`stateful_gpu_loader.transforms.motion`.

        Raises:
            TypeError: the motion of a recipe is unknown.

        >>> from stateful_gpu_loader.transforms import Resize
        >>> sizes = np.array([[50, 100]])
        >>> recipes = Compose([Resize((100, 100))])
        >>> recipes.motion(recipes.draw(42, 0, np.arange(1), sizes), sizes)[0].tolist()
        [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]
        """
        moved = at_rest(len(sizes))
        for recipe, draw in zip(self.recipes, drawn.draws, strict=True):
            motion = recipe.motion(draw.numbers, sizes)
            if motion is None:
                raise TypeError(f"{recipe!r} cannot move boxes and masks")
            moved, sizes = one_after_the_other(moved, motion), draw.sizes
        return moved

    @property
    def output_dtype(self) -> torch.dtype:
        """Return the dtype of the batch for decoded images, which are uint8."""
        dtype = torch.uint8
        for recipe in self.recipes:
            dtype = recipe.dtype_after(dtype)
        return dtype

    @property
    def memory_format(self) -> torch.memory_format:
        """Return the memory format of a batch: that of the last ToMemoryFormat."""
        formats = [r.memory_format for r in self.recipes if isinstance(r, ToMemoryFormat)]
        return formats[-1] if formats else torch.contiguous_format

    def fingerprint(self) -> str:
        """Return the recipes and their arguments as text: equal texts give equal pixels.

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


def _check_batch(images: Sequence[Image], drawn: PipelineDraw) -> None:
    sizes = drawn.sizes
    if len(images) != len(sizes) or not len(sizes):
        raise ValueError(
            f"there are {len(images)} images and numbers for {len(sizes)}. Remedy: pass at least "
            "one image, and the result of Compose.draw for their sizes"
        )
    if (sizes != sizes[0]).any():
        other = int(np.flatnonzero((sizes != sizes[0]).any(axis=1))[0])
        raise ValueError(
            f"the images of one batch differ in size: image 0 gives {sizes[0, 0]}x{sizes[0, 1]}, "
            f"image {other} gives {sizes[other, 0]}x{sizes[other, 1]} (height x width). Remedy: "
            "end the recipes with one that fixes the size, such as RandomResizedCrop(224), or "
            "pass collate_fn"
        )


def remedy_for(step: Any) -> str | None:
    """Return advice for a ToTensor (v1 or v2) or v1's PILToTensor; None for other steps.

    >>> remedy_for(print) is None
    True
    """
    for kind in type(step).__mro__:
        if not kind.__module__.startswith("torchvision.transforms"):
            continue
        if kind.__name__ == "ToTensor":
            return (
                "leave it out, and use ToDtype(torch.float32, scale=True) of "
                "stateful_gpu_loader.transforms in its place, or Normalize(mean, std) alone, which "
                "also scales uint8 to 0 ... 1"
            )
        if kind.__name__ == "PILToTensor" and ".v2" not in kind.__module__:
            return "leave it out"
    return None

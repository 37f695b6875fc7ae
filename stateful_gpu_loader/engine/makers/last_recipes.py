"""Batches of images whose last recipes are applied elsewhere.

Normalize and ToDtype turn one byte into four. Workers on other machines leave them out, so that a
quarter of the bytes crosses the network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from stateful_gpu_loader.engine.device.moving import move_tensors
from stateful_gpu_loader.engine.device.place import Place
from stateful_gpu_loader.engine.makers.collate import STACKS_IMAGES
from stateful_gpu_loader.engine.makers.images import Allocate, empty_rows
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.transforms import Compose


@dataclass(frozen=True)
class LastRecipes:
    """The recipes that finish the images of a batch."""

    recipes: Compose
    """Recipes that draw nothing."""
    memory_format: torch.memory_format
    """Layout of finished images."""

    def on_host(self, images: torch.Tensor, allocate: Allocate) -> torch.Tensor:
        """Return finished images in new memory, made one by one as in a worker.

        Args:
            images: uint8 [n, 3, height, width] on the CPU; they are not changed.
            allocate: returns uninitialised memory.
        """
        num_images, _, height, width = images.shape
        finished = empty_rows(
            allocate, (num_images, height, width), self.recipes.output_dtype, self.memory_format
        )
        nothing_drawn = [()] * len(self.recipes.recipes)
        with torch.inference_mode():
            for image, row in zip(images.unbind(0), finished.unbind(0), strict=True):
                self.recipes.apply_into(image, nothing_drawn, row)
        return finished

    def on_device(self, batch: list[Any], place: Place) -> list[Any]:
        """Move a batch to the device and finish its images there.

        Args:
            batch: images, uint8 [n, 3, height, width] on the CPU, and targets.
        """
        images, *targets = move_tensors(batch, place)
        nothing_drawn = np.empty((len(images), 0))
        for recipe in self.recipes.recipes:
            images = recipe.apply_batch(images, nothing_drawn)
        return [images.contiguous(memory_format=self.memory_format), *targets]


def divided(plan: Plan) -> tuple[Plan, LastRecipes | None]:
    """Return the plan for the workers elsewhere, and the remaining recipes.

    None remain if the loader does not stack the images itself.
    """
    collate_fn, batched = plan.config.collation
    recipes = plan.transform
    if (
        plan.source is None
        or not isinstance(recipes, Compose)
        or plan.finishes_images
        or not (batched and collate_fn in STACKS_IMAGES)
    ):
        return plan, None
    first, last = recipes.divided()
    if not last.recipes:
        return plan, None
    return replace(plan, transform=first), LastRecipes(last, recipes.memory_format)

"""Recipes on batches equal each image alone, without waiting for the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stateful_gpu_loader.transforms import Recipe
from tests.transforms.batch_recipes import DTYPES, RECIPES, images, numbers_for, one_by_one

every_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


@pytest.mark.fuzz
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_recipe
def test_a_batch_is_its_images_one_by_one(recipe: Recipe, dtype: torch.dtype) -> None:
    """Bit for bit, in any layout; the images stay unchanged."""
    for size in ((37, 53), (24, 24)):
        for layout in ("planes", "interleaved", "strided"):
            batch = images(9, size, dtype, layout)
            before, numbers = batch.clone(), numbers_for(recipe, batch)
            made, expected = recipe.apply_batch(batch, numbers), one_by_one(recipe, batch, numbers)
            assert made.dtype is expected.dtype is recipe.dtype_after(dtype)
            assert torch.equal(made, expected)
            assert torch.equal(batch, before)


@every_recipe
def test_an_image_depends_neither_on_its_batch_nor_on_threads(recipe: Recipe) -> None:
    """Any part of a batch, in any order, gets the same pixels, of one intra-op thread or two."""
    batch = images(5, (160, 131), torch.float32, "planes")
    numbers = numbers_for(recipe, batch)
    whole = recipe.apply_batch(batch, numbers)
    for rows in (np.array([3]), np.array([4, 2, 0])):
        assert torch.equal(recipe.apply_batch(batch[rows], numbers[rows]), whole[rows])
    torch.set_num_threads(2)
    assert torch.equal(recipe.apply_batch(batch, numbers), whole)


class Recorded(TorchDispatchMode):
    """Counts the operations, and the copies from the CPU to the device."""

    num_operations = num_copies = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        self.num_operations += 1
        if operation is torch.ops.aten._to_copy.default and args[0].is_cpu and not result.is_cpu:
            self.num_copies += 1
        return result


@pytest.mark.fuzz
@pytest.mark.parametrize("name", RECIPES)
def test_nothing_is_read_back_and_little_is_launched(name: str) -> None:
    """On a device without memory, where reading any value raises.

    The numbers travel in one copy, and 64 images need as many operations as 32. Noise adds a copy
    of its seeds, a jitter has one for each step, a choice those of its parts, and a random order
    those of its parts once for each of the six orders.
    """
    recipe, counts = RECIPES[name], []
    for n in (32, 64):
        batch = torch.empty(n, 3, 40, 48, dtype=torch.uint8, device="meta")
        numbers = numbers_for(recipe, batch)
        recipe.apply_batch(batch, numbers)  # copies values shared by all batches
        with Recorded() as recorded:
            made = recipe.apply_batch(batch, numbers)
        assert made.is_meta
        most = {
            "noise": 2,
            "jitter": 4,
            "jitter of two": 4,
            "applied": 3,
            "chosen": 4,
            "ordered": 19,
            "photometric": 6,
        }.get(name, 1)
        assert recorded.num_copies <= most
        counts.append(recorded.num_operations)
    assert counts[0] == counts[1] < 1000

"""Batches that together execute every line of ColorJitter's kernels."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.transforms import ColorJitter
from tests.transforms.batch_recipes import images, numbers_for
from tests.transforms.guarded import guarded

Case = tuple[ColorJitter, Tensor, np.ndarray]

USUAL = ColorJitter(0.4, 0.4, 0.4, 0.1)
WIDE = ColorJitter((0, 3), (0, 3), (0, 3), (-0.5, 0.5))
ORDERS = np.array(list(itertools.permutations(range(4))), dtype=np.float64)
LAYOUTS = ("planes", "interleaved", "strided")
DTYPES = (torch.uint8, torch.float32)
SIZE = (23, 29)
"""Two programs an image, the second of them not full."""


def cases() -> dict[str, Case]:
    """Return launches: a recipe, a batch [n, 3, H, W], and its numbers."""
    made = {}
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        for layout in LAYOUTS:
            made[f"{layout}, {name}"] = in_any_order(images(4, SIZE, dtype, layout))
        made[f"wide factors, {name}"] = in_any_order(images(24, SIZE, dtype, "planes"), WIDE)
        for recipe in (
            ColorJitter(contrast=0.4, hue=0.5),
            ColorJitter(brightness=0.9, saturation=0.9, hue=0.5),
            ColorJitter(brightness=0.9),
            ColorJitter(contrast=(0.0, 0.0)),
            ColorJitter(saturation=(0.0, 0.0)),
        ):
            batch = images(3, SIZE, dtype, "interleaved")
            made[f"{recipe}, {name}"] = (recipe, batch, numbers_for(recipe, batch))
        made[f"one pixel, {name}"] = in_any_order(images(6, (1, 1), dtype, "planes"))
        made[f"one column, {name}"] = in_any_order(images(2, (600, 1), dtype, "interleaved"))
        made[f"edges of the wheel, {name}"] = in_any_order(edges(dtype), WIDE)
        # A hue of 0 becomes one of 1: the difference to 1 is too small for float32.
        made[f"a whole turn, {name}"] = in_any_order(edges(dtype), ColorJitter(hue=(-1e-9, -1e-9)))
    floats = torch.rand(8, 3, *SIZE, generator=_generator())
    made["floats of all bits"] = in_any_order(floats)
    made["floats from -1 to 2"] = in_any_order(floats * 3 - 1, WIDE)
    made["a sum that is no float32"] = (USUAL, *_large_sum())
    made["no number"] = _without_number()
    for at_end in (True, False):
        made[f"between guards, {at_end}"] = in_any_order(_guarded(at_end))
    return made


def in_any_order(batch: Tensor, recipe: ColorJitter = USUAL) -> Case:
    """Return the 24 orders, if there are 24 images, with factors of the recipe's."""
    numbers = numbers_for(recipe, batch).copy()
    numbers[:, :4] = ORDERS[np.arange(len(batch)) * 7 % 24]
    return recipe, batch, numbers


def edges(dtype: torch.dtype) -> Tensor:
    """Return [12, 3, 6, 36]: greys, primaries, ties, and their neighbours."""
    levels = torch.tensor([0, 1, 127, 128, 254, 255], dtype=torch.uint8)
    colors = torch.cartesian_prod(levels, levels, levels).T.reshape(1, 3, 6, 36)
    colors = colors if dtype is torch.uint8 else colors.to(dtype) / 255
    return colors.expand(12, 3, 6, 36)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def _large_sum() -> tuple[Tensor, np.ndarray]:
    """Return bytes with a sum beyond 2**24; contrast comes last, and nothing else happens."""
    batch = torch.randint(200, 256, (1, 3, 251, 331), generator=_generator()).to(torch.uint8)
    return batch, np.array([[0.0, 2.0, 3.0, 1.0, 1.0, 0.3, 1.0, 0.0]])


def _without_number() -> Case:
    """Set one value of each second image to NaN."""
    recipe, batch, numbers = in_any_order(images(6, SIZE, torch.float32, "planes"))
    batch[::2, 1, 5, 7] = torch.nan
    return recipe, batch, numbers


def _guarded(at_end: bool) -> Tensor:
    """Place the batch, interleaved, up to the last byte before an unreadable page, or from the
    first after one.
    """
    batch = images(4, SIZE, torch.uint8, "planes")
    column = guarded(batch.transpose(0, 1).flatten(1, 2), at_end=at_end)
    return column.unflatten(1, (4, SIZE[0])).transpose(0, 1)

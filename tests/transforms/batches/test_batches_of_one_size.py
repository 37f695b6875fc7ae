"""Crops and Resize on a batch of one size: in a few calls, what they make of each image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader import transforms as T
from tests.transforms.pictures import as_float, noise, sizes_of

RECIPES = [
    T.CenterCrop((20, 31)),
    T.CenterCrop((50, 30)),
    T.CenterCrop(64),
    T.RandomCrop((20, 31)),
    T.RandomCrop((37, 53)),
    T.RandomCrop(40, padding=(5, 2), fill=9),
    T.RandomCrop(64, pad_if_needed=True, fill=[1, 2, 3]),
    T.RandomCrop(44, padding=6, padding_mode="reflect"),
    T.RandomCrop(40, padding=4, padding_mode="symmetric"),
    T.Resize(20),
    T.Resize((64, 53)),
    T.Resize((37, 53)),
    T.Resize(20, interpolation="bicubic"),
    T.Resize((20, 80), antialias=False),
    T.Resize((20, 80), interpolation="nearest-exact"),
]


@pytest.mark.fuzz
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize("kind", ["bytes", "floats", "channels last", "one channel"])
def test_a_batch_is_its_images(recipe: Any, kind: str) -> None:
    """Bit for bit, for every dtype and layout."""
    channels = 1 if kind == "one channel" else 3
    if kind == "one channel" and isinstance(getattr(recipe, "fill", None), tuple):
        pytest.skip("a fill of three numbers is for three channels")
    images = [noise(37, 53, channels, seed=i) for i in range(5)]
    if kind == "floats":
        images = [as_float(image) for image in images]
    memory_format = torch.channels_last if kind == "channels last" else torch.contiguous_format
    batch = torch.stack(images).contiguous(memory_format=memory_format)
    uniforms = np.random.default_rng(0).random((5, recipe.num_draws))
    drawn = recipe.draw(uniforms, sizes_of(images))
    before = batch.clone()
    made = recipe.apply_batch(batch, drawn.numbers)
    assert torch.equal(batch, before)
    rows = zip(images, drawn.numbers.tolist(), strict=True)
    assert torch.equal(made, torch.stack([recipe.apply(image, row) for image, row in rows]))
    assert (sizes_of(list(made)) == drawn.sizes).all()

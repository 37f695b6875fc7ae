"""Whole batches compared with the CPU's single images, as docs/augmentation.md states."""

from __future__ import annotations

import numpy as np
import torch
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader import transforms as T
from tests.images import PHOTOGRAPHS
from tests.transforms.pictures import decoded, sizes_of


def test_crops_of_photographs_are_those_of_torchvision_and_near_those_of_the_cpu() -> None:
    """At most half a level of 255 from torchvision's unrounded float32, which is the rounding
    itself; at most one from the CPU's integer resize.
    """
    images = [decoded(name) for name in PHOTOGRAPHS]
    recipes = T.Compose([T.RandomResizedCrop(112), T.RandomHorizontalFlip()])
    drawn = recipes.draw(1, 0, np.arange(len(images)), sizes_of(images))
    batch = recipes.apply_batch(images, drawn)
    one_by_one = torch.stack(
        [recipes.apply(image, drawn.sample(i)) for i, image in enumerate(images)]
    )
    wanted = []
    for image, (box, (flip,)) in zip(images, map(drawn.sample, range(len(images))), strict=True):
        top, left, height, width = map(int, box)
        crop = image[:, top : top + height, left : left + width].to(torch.float32)
        resized = F.resize_image(crop, [112, 112], antialias=True)
        wanted.append(resized.flip(-1) if flip else resized)
    exact = torch.stack(wanted)
    assert (batch - exact).abs().max() <= 0.501
    assert (batch == exact.round()).float().mean() > 0.9995
    difference = (batch.int() - one_by_one.int()).abs()
    assert difference.max() <= 1
    assert (difference > 0).float().mean() < 0.25

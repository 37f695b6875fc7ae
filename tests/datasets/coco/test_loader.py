"""COCO in the loader: exact resume, and boxes that move with the pixels."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets.coco import CocoSource
from stateful_gpu_loader.engine.makers.collate import ragged_collate
from tests.conformance import same
from tests.datasets import image_loaders
from tests.datasets.coco.coco_files import SIZES, write_coco

make_loader = partial(
    image_loaders.make_loader,
    batch_size=2,
    transform=[T.RandomResizedCrop(32), T.RandomHorizontalFlip()],
    collate_fn=ragged_collate,
)


def test_boxes_and_masks_are_where_the_pixels_are(tmp_path: Path) -> None:
    source = CocoSource(*write_coco(tmp_path), masks=True)
    plain = {
        target["image_id"]: target
        for _, targets in make_loader(source, transform=T.Resize((48, 64)))
        for target in targets
    }
    flipped = make_loader(source, transform=[T.Resize((48, 64)), T.RandomHorizontalFlip(p=1.0)])
    for images, targets in flipped:
        assert images.shape == (len(targets), 3, 48, 64)
        for target in targets:
            before = plain[target["image_id"]]
            boxes = before["boxes"].clone()
            boxes[:, [0, 2]] = 64 - boxes[:, [2, 0]]
            torch.testing.assert_close(target["boxes"], boxes, atol=1e-4, rtol=1e-5)
            assert torch.equal(target["masks"], before["masks"].flip(-1))
            height, width = SIZES[target["image_id"]]
            found = source.target(sorted(SIZES).index(target["image_id"]))
            scale = torch.tensor([64 / width, 48 / height] * 2)
            expected = (found["boxes"] * scale).clamp(min=0)
            torch.testing.assert_close(before["boxes"], expected, atol=1e-4, rtol=1e-5)


def test_without_a_transform_targets_are_the_sources(tmp_path: Path) -> None:
    source = CocoSource(*write_coco(tmp_path))
    loader = make_loader(
        source, shuffle=False, transform=None, collate_fn=_pairs, batch_size=5, num_workers=1
    )
    (batch,) = list(loader)
    for index, (image, target) in enumerate(batch):
        assert tuple(image.shape[1:]) == SIZES[target["image_id"]]
        assert same(target, source.target(index))


def _pairs(samples: list[Any]) -> list[Any]:
    return samples


def test_what_may_move_pixels_unseen_is_refused(tmp_path: Path) -> None:
    """Otherwise boxes would stay while the pixels move."""
    source = CocoSource(*write_coco(tmp_path))
    for transform in (T.RandAugment(), _mirror):
        for dataset in (source, torch.utils.data.Subset(source, [0, 1])):
            with pytest.raises(ValueError, match="boxes"):
                list(make_loader(dataset, transform=transform))


def _mirror(image: torch.Tensor) -> torch.Tensor:
    return image.flip(-1)

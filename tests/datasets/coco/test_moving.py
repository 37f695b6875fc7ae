"""Boxes and masks move with the pixels, compared with torchvision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.datasets.coco import moved, moved_masks

SIZE = (30, 40)


def target(boxes: list[list[float]], **more: Any) -> dict[str, Any]:
    n = len(boxes)
    return {
        "boxes": torch.tensor(boxes, dtype=torch.float32).reshape(n, 4),
        "labels": torch.arange(n),
        "area": torch.full((n,), 8.0),
        "iscrowd": torch.zeros(n, dtype=torch.int64),
        "image_id": 3,
        **more,
    }


def scaled(x: float, y: float, left: float = 0, top: float = 0) -> Any:
    return np.array([[x, 0, left], [0, y, top]], dtype=np.float64)


def reference(boxes: torch.Tensor) -> Any:
    return tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=SIZE)


BOXES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 20), st.integers(2, 9), st.integers(2, 9)).map(
        lambda b: [b[0], b[1], b[0] + b[2], b[1] + b[3]]
    ),
    max_size=5,
)


@given(BOXES, st.integers(0, 20), st.integers(0, 20), st.integers(1, 25), st.integers(1, 25))
def test_crops_cut_boxes_and_drop_what_is_gone(
    boxes: list[list[float]], top: int, left: int, height: int, width: int
) -> None:
    given_target = target(boxes)
    expected = torch.as_tensor(F.crop(reference(given_target["boxes"]), top, left, height, width))
    kept = ((expected[:, 2:] - expected[:, :2]) >= 1).all(dim=1)
    motion = scaled(1, 1, -left, -top)
    found = moved(given_target, motion, (height, width), box_format="xyxy", ratio=None)
    if top == left == 0:
        assert found is given_target
        return
    assert torch.equal(found["boxes"], expected[kept].as_subclass(torch.Tensor))
    for name in ("labels", "iscrowd"):
        assert torch.equal(found[name], given_target[name][kept])
    areas = (expected[:, 2:] - expected[:, :2]).prod(dim=1)[kept]
    before = (given_target["boxes"][:, 2:] - given_target["boxes"][:, :2]).prod(dim=1)[kept]
    torch.testing.assert_close(found["area"], 8.0 * areas / before)
    assert len(given_target["boxes"]) == len(boxes)


def test_formats_and_parts_are_kept() -> None:
    corners = torch.tensor([[4.0, 6.0, 20.0, 16.0]])
    motion = scaled(2, 0.5, 3, 1)
    expected = torch.tensor([[11.0, 4.0, 43.0, 9.0]])
    sides = target([[4, 6, 16, 10]])
    found = moved(sides, motion, (15, 80), box_format="xywh", ratio=None)["boxes"]
    torch.testing.assert_close(found, torch.tensor([[11.0, 4.0, 32.0, 5.0]]))
    scale = torch.tensor([40.0, 30, 40, 30])
    parts = target((corners / scale).tolist())
    found = moved(parts, motion, (15, 80), box_format="xyxy", ratio=SIZE)["boxes"]
    torch.testing.assert_close(found * torch.tensor([80.0, 15, 80, 15]), expected)


def test_an_area_without_a_mask_scales_with_the_map_and_with_the_share_that_is_left() -> None:
    """A turn gives the box around the corners."""
    given_target = target([[10, 4, 20, 14]])
    whole = moved(given_target, scaled(3, 2), (60, 120), box_format="xyxy", ratio=None)
    assert whole["area"].tolist() == [8 * 3 * 2]
    half = moved(given_target, scaled(3, 2, -45), (60, 120), box_format="xyxy", ratio=None)
    assert half["boxes"].tolist() == [[0, 8, 15, 28]]
    assert half["area"].tolist() == [8 * 3 * 2 / 2]
    motion = np.array([[0.0, -1, 30], [1, 0, 0]])
    turned = moved(target([[2, 3, 10, 8]]), motion, (40, 30), box_format="xyxy", ratio=None)
    assert turned["boxes"].tolist() == [[22, 2, 27, 10]]
    assert turned["area"].tolist() == [8]


def test_areas_are_the_masks_pixels_where_there_are_masks() -> None:
    masks = torch.zeros(2, *SIZE, dtype=torch.uint8)
    masks[0, 2:6, 3:9] = 1
    masks[1, 20:28, 30:38] = 1
    given_target = target([[3, 2, 9, 6], [30, 20, 38, 28]], masks=masks)
    found = moved(given_target, scaled(1, 1, 0, -4), (20, 40), box_format="xyxy", ratio=None)
    assert found["labels"].tolist() == [0, 1]
    assert found["area"].tolist() == [12, 32]
    found = moved(given_target, scaled(2, 2), (60, 80), box_format="xyxy", ratio=None)
    assert found["area"].tolist() == [24 * 4, 64 * 4]
    found = moved(given_target, scaled(1, 1, 0, -10), (20, 40), box_format="xyxy", ratio=None)
    assert found["masks"].shape == (1, 20, 40)


def test_nothing_to_move_is_nothing_moved() -> None:
    found = moved(target([]), scaled(2, 1), (30, 80), box_format="xyxy", ratio=None)
    assert found["boxes"].shape == (0, 4)
    small = target([[1, 1, 1.5, 1.5]])
    assert moved(small, scaled(1, 1), SIZE, box_format="xyxy", ratio=None) is small


@settings(max_examples=50)
@given(BOXES, st.integers(5, 60), st.integers(5, 60), st.booleans())
def test_boxes_agree_with_torchvision(
    boxes: list[list[float]], height: int, width: int, flips: bool
) -> None:
    """A resize and a flip keep every box that still has a pixel."""
    given_target = target(boxes)
    motion = scaled(width / SIZE[1], height / SIZE[0])
    expected = F.resize(reference(given_target["boxes"]), [height, width])
    if flips:
        motion = np.array([[-1, 0, width], [0, 1, 0]]) @ np.vstack([motion, [0, 0, 1]])
        expected = F.horizontal_flip(expected)
    expected = torch.as_tensor(F.clamp_bounding_boxes(expected))
    sides = expected[:, 2:] - expected[:, :2]
    if ((sides - 1).abs() < 1e-4).any():
        return
    kept = (sides >= 1).all(dim=1)
    found = moved(given_target, motion, (height, width), box_format="xyxy", ratio=None)
    torch.testing.assert_close(found["boxes"], expected[kept].as_subclass(torch.Tensor))
    assert found["labels"].tolist() == torch.arange(len(boxes))[kept].tolist()


@pytest.mark.parametrize("size", [(30, 40), (15, 20), (60, 80), (7, 91), (31, 39), (45, 60)])
def test_masks_agree_with_torchvision(size: tuple[int, int]) -> None:
    """ "nearest-exact", flips and crops, to the pixel."""
    generator = torch.Generator().manual_seed(0)
    masks = torch.randint(0, 2, (3, *SIZE), generator=generator, dtype=torch.uint8)
    mode = InterpolationMode.NEAREST_EXACT
    expected = F.resize_image(masks, list(size), interpolation=mode)
    motion = scaled(size[1] / SIZE[1], size[0] / SIZE[0])
    assert torch.equal(moved_masks(masks, motion, size), expected)
    flip = np.array([[-1.0, 0, 40], [0, -1.0, 30]])
    assert torch.equal(moved_masks(masks, flip, SIZE), masks.flip(1, 2))
    cropped = moved_masks(masks, scaled(1, 1, 2, -3), (35, 20))
    assert torch.equal(cropped, F.crop_image(masks, 3, -2, 35, 20))

"""Placement: crops, a resize and flips, folded, compared with one after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stateful_gpu_loader.transforms.batches.placement import Placement, Pointwise
from stateful_gpu_loader.transforms.batches.ragged import resample
from tests.transforms.pictures import noise, sizes_of


def carried_out(images: list[Tensor], placement: Placement) -> list[Tensor]:
    """Apply a placement to each image alone, so that their sizes may differ."""
    return [
        resample([image], placement.take(np.array([i])), Pointwise())[0]
        for i, image in enumerate(images)
    ]


def random_box(data: st.DataObject, height: int, width: int) -> list[int]:
    box_height, box_width = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    top = data.draw(st.integers(0, height - box_height))
    return [top, data.draw(st.integers(0, width - box_width)), box_height, box_width]


def one_step(
    data: st.DataObject, kind: str, placement: Placement, images: list[Tensor]
) -> tuple[Placement, list[Tensor]]:
    """Fold the step into the placement, and apply it to each image at once."""
    if kind == "crop":
        boxes = np.array([random_box(data, *image.shape[1:]) for image in images])
        cut = [
            image[:, top : top + height, left : left + width]
            for image, (top, left, height, width) in zip(images, boxes.tolist(), strict=True)
        ]
        return placement.crop(boxes), cut
    if kind == "resize":
        size = st.tuples(st.integers(1, 20), st.integers(1, 20))
        sizes = np.array([data.draw(size) for _ in images])
        antialias = data.draw(st.booleans())
        resized = placement.resize(sizes, antialias)
        assert resized is not None
        alone = Placement.of(sizes_of(images)).resize(sizes, antialias)
        assert alone is not None
        return resized, carried_out(images, alone)
    axis = ["rows", "columns"].index(kind)
    chosen = np.array([data.draw(st.booleans()) for _ in images])
    flipped = [
        image.flip(1 + axis) if turn else image
        for image, turn in zip(images, chosen.tolist(), strict=True)
    ]
    return placement.flip(axis, chosen), flipped


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    data=st.data(),
    before=st.lists(st.sampled_from(["crop", "rows", "columns"]), max_size=4),
    resizes=st.booleans(),
    after=st.lists(st.sampled_from(["crop", "rows", "columns"]), max_size=4),
)
def test_folded_is_one_after_the_other(
    data: st.DataObject, before: list[str], resizes: bool, after: list[str]
) -> None:
    """Any order of crops and flips around a resize, bit for bit, down to one pixel."""
    size = st.tuples(st.integers(1, 24), st.integers(1, 24))
    images = [noise(*data.draw(size), seed=i) for i in range(2)]
    originals, placement = images, Placement.of(sizes_of(images))
    for kind in [*before, *(["resize"] if resizes else []), *after]:
        placement, images = one_step(data, kind, placement, images)
        assert (placement.sizes == sizes_of(images)).all()
    for made, expected in zip(carried_out(originals, placement), images, strict=True):
        assert torch.equal(made, expected)


def test_two_resizes_are_not_one_and_a_placement_is_never_changed() -> None:
    placement = Placement.of(np.array([[8, 6]]))
    resized = placement.resize(np.array([[4, 4]]), True)
    assert resized is not None
    assert resized.resize(np.array([[4, 4]]), True) is None
    placement.flip(0, np.array([True]))
    placement.crop(np.array([[1, 1, 2, 2]]))
    assert not placement.mirrored.any()
    assert placement.boxes.tolist() == [[0, 0, 8, 6]]


@pytest.mark.parametrize(
    "box", [[-1, 0, 4, 4], [0, 0, 9, 4], [0, 5, 4, 4], [5, 0, 4, 4], [0, 0, 0, 4]], ids=str
)
def test_box_outside_its_image_is_refused(box: list[int]) -> None:
    """A kernel would read foreign memory."""
    sizes = np.array([[8, 8], [8, 8]])
    placement = Placement.of(sizes)
    for each in (placement, placement.resize(sizes, True)):
        with pytest.raises(ValueError, match="image 1 of the batch, which has 8x8"):
            each.crop(np.array([[0, 0, 8, 8], box]))

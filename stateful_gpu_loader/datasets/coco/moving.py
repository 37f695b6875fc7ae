"""Moving the boxes and masks of a target as the pixels of its image were moved."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

BoxFormat = Literal["xyxy", "xywh"]
FloatArray = npt.NDArray[np.float64]

SMALLEST = 1.0
"""Pixels of a side that must be left of a box, as torchvision's SanitizeBoundingBoxes has it."""

_AT_REST = np.eye(2, 3)


def moved(
    target: dict[str, Any],
    motion: FloatArray,
    size: tuple[int, int],
    *,
    box_format: BoxFormat,
    ratio: tuple[int, int] | None,
) -> dict[str, Any]:
    """The target of an image whose pixels were moved by an affine map, and cut off.

    A box becomes the smallest one that holds its four corners, as in torchvision, cut off at the
    image; a mask takes the nearest pixel. What is left with less than a pixel of width or height is
    dropped, with its label, area, crowd flag and mask. An area scales with the map, and with the
    share of the box that is left; where there are masks, it is their pixels. Where nothing moves,
    the target is the one given.

    Args:
        target: of a CocoSource.
        motion: float64 [2, 3]: where a point (x, y, 1) goes, in pixels from the upper left corner.
        size: (height, width) in pixels after it.
        box_format: of the boxes.
        ratio: (height, width) before it, if boxes are given in parts of them.

    >>> target = {"boxes": torch.tensor([[10.0, 0, 30, 20]]), "labels": torch.tensor([7])}
    >>> flip = np.array([[-1.0, 0, 100], [0, 1, 0]])
    >>> moved(target, flip, (50, 100), box_format="xyxy", ratio=None)["boxes"]
    tensor([[70.,  0., 90., 20.]])
    """
    if np.array_equal(motion, _AT_REST):
        return target
    before = _corners(target["boxes"].numpy().astype(np.float64), box_format, ratio)
    after = _enclosing(before, motion)
    height, width = size
    cut = after.copy()
    cut[:, 0::2] = cut[:, 0::2].clip(0, width)
    cut[:, 1::2] = cut[:, 1::2].clip(0, height)
    sides = cut[:, 2:] - cut[:, :2]
    kept = np.flatnonzero((sides >= SMALLEST).all(axis=1))
    result = dict(target)
    result["boxes"] = _boxes(cut[kept], box_format, None if ratio is None else size)
    for name in ("labels", "iscrowd"):
        if name in target:
            result[name] = target[name][torch.from_numpy(kept)]
    if "masks" in target:
        masks = moved_masks(target["masks"][torch.from_numpy(kept)], motion, size)
        result["masks"] = masks
        result["area"] = masks.sum(dim=(1, 2), dtype=torch.float32)
    elif "area" in target:
        whole = (after[kept, 2:] - after[kept, :2]).prod(axis=1)
        left = sides[kept].prod(axis=1) / np.maximum(whole, 1e-9)
        scale = abs(float(motion[0, 0] * motion[1, 1] - motion[0, 1] * motion[1, 0]))
        areas = target["area"].numpy()[kept] * scale * left
        result["area"] = as_tensor(areas.astype(np.float32))
    return result


def moved_masks(masks: Tensor, motion: FloatArray, size: tuple[int, int]) -> Tensor:
    """uint8 [n, height, width]: masks under an affine map, each pixel taken from the nearest one.

    Without a turn or shear this is torchvision's "nearest-exact".

    Args:
        masks: uint8 [n, H, W]; H and W may be 0 where n is.
        motion: as for :func:`moved`.
        size: (height, width) of the result in pixels.
    """
    height, width = size
    if not masks.numel():
        return torch.zeros((len(masks), height, width), dtype=torch.uint8, device="cpu")
    # Written out: np.linalg.inv rounds as the BLAS of the machine does.
    (a, b, c), (d, e, f) = motion.tolist()
    area = a * e - b * d
    back = np.array([[e, -b, b * f - c * e], [-d, a, c * d - a * f]]) / area
    xs, ys = np.arange(width) + 0.5, (np.arange(height) + 0.5)[:, np.newaxis]
    # A point exactly between two pixels, apart from rounding, belongs to the second.
    columns = np.floor(np.round(back[0, 0] * xs + back[0, 1] * ys + back[0, 2], 6)).astype(np.int64)
    rows = np.floor(np.round(back[1, 0] * xs + back[1, 1] * ys + back[1, 2], 6)).astype(np.int64)
    old_height, old_width = masks.shape[1:]
    inside = (columns >= 0) & (columns < old_width) & (rows >= 0) & (rows < old_height)
    chosen = masks.numpy()[:, rows.clip(0, old_height - 1), columns.clip(0, old_width - 1)]
    return as_tensor(chosen * inside.astype(np.uint8))


def as_tensor(array: npt.NDArray[Any]) -> Tensor:
    """A copy on the CPU, whatever torch's default device is.

    Empty ones have the strides of torch's own, which what NumPy computed has not: with others
    ``view`` fails.
    """
    given = torch.from_numpy(array)
    return torch.empty(given.shape, dtype=given.dtype, device="cpu").copy_(given)


def _corners(boxes: FloatArray, box_format: BoxFormat, ratio: tuple[int, int] | None) -> FloatArray:
    if box_format == "xywh":
        boxes = np.concatenate((boxes[:, :2], boxes[:, :2] + boxes[:, 2:]), axis=1)
    return boxes if ratio is None else boxes * _scale(ratio)


def _boxes(corners: FloatArray, box_format: BoxFormat, ratio: tuple[int, int] | None) -> Tensor:
    boxes = corners if ratio is None else corners / _scale(ratio)
    if box_format == "xywh":
        boxes = np.concatenate((boxes[:, :2], boxes[:, 2:] - boxes[:, :2]), axis=1)
    return as_tensor(boxes.astype(np.float32))


def _scale(size: tuple[int, int]) -> FloatArray:
    height, width = size
    return np.array([width, height, width, height], dtype=np.float64)


def _enclosing(boxes: FloatArray, motion: FloatArray) -> FloatArray:
    xs, ys = boxes[:, [0, 2, 2, 0]], boxes[:, [1, 1, 3, 3]]
    new_xs = motion[0, 0] * xs + motion[0, 1] * ys + motion[0, 2]
    new_ys = motion[1, 0] * xs + motion[1, 1] * ys + motion[1, 2]
    lows = np.stack((new_xs.min(axis=1), new_ys.min(axis=1)), axis=1)
    highs = np.stack((new_xs.max(axis=1), new_ys.max(axis=1)), axis=1)
    return np.concatenate((lows, highs), axis=1)

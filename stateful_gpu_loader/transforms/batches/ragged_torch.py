"""Resampling a ragged batch with batched torch operations, on any device.

A crop of each image is copied into one padded batch; from there on nothing is done sample by
sample. It is what the Triton kernel is tested against.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.batches.device_numbers import on_device
from stateful_gpu_loader.transforms.batches.placement import Placement
from stateful_gpu_loader.transforms.batches.ragged_launch import window_rows

_PACKED_BYTES = 2**28
"""How much is packed at once: images of very unlike sizes are mostly padding."""


def resample_with_torch(images: Sequence[Tensor], placement: Placement) -> Tensor:
    """float32 [n, C, h, w] of whole numbers from 0 to 255.

    Arguments are those of :func:`~stateful_gpu_loader.transforms.batches.ragged.resample`.
    """
    device = images[0].device
    height, width = placement.sizes[0].tolist()
    heights, widths = placement.boxes[:, 2:].max(axis=0).tolist()
    packed = torch.zeros(
        (len(images), images[0].shape[0], heights, widths), dtype=torch.uint8, device=device
    )
    boxes = placement.boxes.tolist()
    for room, image, (top, left, box_height, box_width) in zip(packed, images, boxes, strict=True):
        box = image[:, top : top + box_height, left : left + box_width]
        room[:, :box_height, :box_width] = box
    columns = _along(packed, 3, width, placement)
    return _along(columns, 2, height, placement).round_()


def _along(pixels: Tensor, dim: int, size: int, placement: Placement) -> Tensor:
    """Resize one axis to ``size``, in float32."""
    axis = dim - 2
    shape = [len(pixels), 1, 1, 1]
    shape[dim] = size
    numbers = np.stack(
        (
            placement.boxes[:, 2 + axis],
            placement.resized[:, axis],
            placement.mirrored[:, axis],
            *window_rows(placement, axis),
        )
    )
    rows = on_device(numbers, pixels.device).unsqueeze(-1)
    length, resized, mirrored, first, step = rows.unbind(0)
    index = first + step * torch.arange(size, device=pixels.device)
    start, count, offset, inverse = _taps(index, length, resized, antialias=placement.antialias)
    number = _most_taps(placement, axis)
    weights = [
        torch.where(tap < count, 1.0 - ((offset + tap) * inverse).abs(), 0.0).clamp_(min=0.0)
        for tap in range(number)
    ]
    gain = 1.0 / functools.reduce(torch.add, weights)
    total = torch.zeros((), dtype=torch.float32, device=pixels.device)
    for tap, weight in enumerate(weights):
        place = torch.minimum(start + tap, length - 1)
        place = torch.where(mirrored == 1, length - 1 - place, place).view(shape)
        around = list(pixels.shape)
        around[dim] = size
        taken = pixels.gather(dim, place.expand(around)).to(torch.float32)
        # Two roundings, always: a fused one would depend on the size of the vectors at work.
        total = total + taken.mul_((weight * gain).view(shape))
    return total


def _taps(
    index: Tensor, length: Tensor, resized: Tensor, *, antialias: bool | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What each pixel of a resized axis takes from the pixels of the axis, as aten does.

    Returns: its first pixel and their number, int64; and in float32 where the first lies from
    the center, in pixels, and one over the half width of the triangle that weighs them.
    """
    scale = length.to(torch.float32) / resized.to(torch.float32)
    middle = index.to(torch.float32) + 0.5
    if antialias:
        center = middle * scale
        support = scale.clamp(min=1.0)
        start = (center - support + 0.5).to(torch.int64).clamp_(min=0)
        stop = torch.minimum((center + support + 0.5).to(torch.int64), length)
        return start, stop - start, start - center + 0.5, 1.0 / support
    # Rounded once, as the fused multiply-add that compilers make of aten's formula.
    place = (middle.double() * scale.double() - 0.5).to(torch.float32)
    nearest = torch.minimum(place.clamp_(min=0.0), (length - 1).to(torch.float32))
    start = nearest.to(torch.int64)
    stop = torch.minimum(start + 2, length)
    return start, stop - start, start - nearest, torch.ones_like(scale)


def _most_taps(placement: Placement, axis: int) -> int:
    """An upper bound, known on the CPU, so that nothing waits for the device."""
    if not placement.antialias:
        return 2
    scales = placement.boxes[:, 2 + axis] / placement.resized[:, axis]
    return int(2.0 * max(scales.max(), 1.0)) + 2


def portions(placement: Placement) -> Iterator[IndexArray]:
    """Neighbours that, padded to one size, do not take much memory: at least one at a time."""
    n = len(placement.boxes)
    areas = placement.boxes[:, 2:]
    first = 0
    for last in range(1, n + 1):
        if last < n:
            height, width = areas[first : last + 1].max(axis=0).tolist()
            if (last + 1 - first) * height * width <= _PACKED_BYTES:
                continue
        yield np.arange(first, last)
        first = last

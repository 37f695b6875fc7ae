"""Resampling of a ragged batch: images of any sizes and strides become one batch.

A GPU needs one Triton launch. Without Triton, batched torch operations do the work. Both compute
``torch.nn.functional.interpolate(mode="bilinear", align_corners=False)`` in float32, along the rows
first, then along the columns. Each value is a sum in the order of the pixels, rounded half to even
to a byte, as in torchvision for uint8 images on a GPU. No sample depends on the batch around it.

Before rounding, values differ from aten's by less than 1e-3 of a level of 255; on photographs, on
the CPU, by at most 1e-4 and on average 4e-6. So at most 3 of 10,000 bytes differ, by one level.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.decoders.decoder import Image, as_tensor
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.batches.device import kernels_that_run, on_device
from stateful_gpu_loader.transforms.batches.placement import Placement, Pointwise

_LARGEST_INT32 = 2**31 - 1
_PACKED_BYTES = 2**28
"""Size in bytes of a packed portion."""


def resample(
    images: Sequence[Image],
    placement: Placement,
    pointwise: Pointwise,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Tensor:
    """Return the batch [n, C, h, w] in ``pointwise.dtype``, on the device of the images.

    Work is queued on the current stream, on which the images must be ready.

    Args:
        images: n >= 1 images, uint8 [C, H, W] of any strides, all on one device.
        placement: of these images; its results must have one size.
        pointwise: operations after the resampling; they must fit C.
        memory_format: of the batch.

    >>> image = torch.arange(4, dtype=torch.uint8).view(1, 1, 4)
    >>> placement = Placement.of(np.array([[1, 4]])).resize(np.array([[1, 2]]), True)
    >>> resample([image], placement, Pointwise())
    tensor([[[[1, 2]]]], dtype=torch.uint8)
    """
    height, width = placement.sizes[0].tolist()
    channels, device = images[0].shape[0], images[0].device
    out = torch.empty(
        (len(images), channels, height, width),
        dtype=pointwise.dtype,
        device=device,
        memory_format=memory_format,
    )
    if device.type == "cuda" and _within_kernel(images, out) and (kernels := _kernels(device)):
        launch(kernels, images, placement, pointwise, out)
        return out
    for members in portions(placement):
        part = placement.take(members)
        resampled = resample_with_torch([as_tensor(images[i]) for i in members], part)
        out[members[0] : members[-1] + 1] = pointwise.apply(resampled)
    return out


def _within_kernel(images: Sequence[Image], out: Tensor) -> bool:
    """Whether there are three channels, and 32 bits hold every offset within an image."""
    return (
        out.shape[1] == 3
        and out[0].numel() <= _LARGEST_INT32
        and all(abs(image.stride()[2]) * image.shape[2] <= _LARGEST_INT32 for image in images)
    )


@functools.cache
def _kernels(device: torch.device) -> ModuleType | None:
    """Return the kernels if they run here."""
    pixel = torch.zeros(3, 1, 1, dtype=torch.uint8, device=device)
    out = torch.empty(1, 3, 1, 1, dtype=torch.uint8, device=device)

    def try_out() -> ModuleType:
        from stateful_gpu_loader.transforms.batches import kernels

        whole = Placement.of(np.ones((1, 2), dtype=np.int64))
        launch(kernels, [pixel], whole, Pointwise(), out)
        return kernels

    return kernels_that_run(try_out, "torch resamples")


def launch(
    kernels: ModuleType,
    images: Sequence[Image],
    placement: Placement,
    pointwise: Pointwise,
    out: Tensor,
) -> None:
    """Launch the Triton kernel once; arguments as in :func:`resample`, with C = 3.

    All parameters are copied to the device in one small table.
    """
    rows = parameters(images, placement)
    coefficients = pointwise.table(3)
    floats = np.zeros((coefficients.size + 1) // 2 * 2, dtype=np.float32)
    floats[: coefficients.size] = coefficients.ravel()
    table = on_device(np.concatenate((rows.ravel(), floats.view(np.int64))), out.device)
    with torch.cuda.device_of(out):
        kernels.resample(
            table[: rows.size].view(rows.shape),
            table[rows.size :].view(torch.float32),
            out,
            antialias=bool(placement.antialias),
            steps=pointwise.steps,
        )


def parameters(images: Sequence[Image], placement: Placement) -> IndexArray:
    """Return the kernel's parameters of each image: int64 [n, 12].

    The address of the first pixel read; strides of rows, columns and channels in bytes, negative if
    mirrored. Then height and width of the box, and after the resize; first row of the window and
    row step; first column and column step.
    """
    strides = np.array([image.stride() for image in images], dtype=np.int64)
    addresses = np.array([image.data_ptr() for image in images], dtype=np.int64)
    backwards = placement.mirrored.astype(np.int64)
    corners = placement.boxes[:, :2] + backwards * (placement.boxes[:, 2:] - 1)
    addresses += (corners * strides[:, 1:]).sum(axis=1)
    return np.stack(
        (
            addresses,
            *(strides[:, 1:] * (1 - 2 * backwards)).T,
            strides[:, 0],
            *placement.boxes[:, 2:].T,
            *placement.resized.T,
            *window_rows(placement, 0),
            *window_rows(placement, 1),
        ),
        axis=1,
    )


def window_rows(placement: Placement, axis: int) -> tuple[IndexArray, IndexArray]:
    """Return the first pixel of the window on the resized axis, and the step: int64 [n] each."""
    flipped = placement.flipped[:, axis].astype(np.int64)
    first = placement.windows[:, axis] + flipped * (placement.windows[:, 2 + axis] - 1)
    return first, 1 - 2 * flipped


def resample_with_torch(images: Sequence[Tensor], placement: Placement) -> Tensor:
    """Return float32 [n, C, h, w] of whole numbers from 0 to 255; arguments as :func:`resample`.

    A crop of each image is copied into one padded batch. Tests compare the Triton kernel with this
    function.
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
        # Always two roundings; whether a product is fused would depend on vector size.
        total = total + taken.mul_((weight * gain).view(shape))
    return total


def _taps(
    index: Tensor, length: Tensor, resized: Tensor, *, antialias: bool | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the source pixels and weights of each pixel of a resized axis, as aten does.

    Returns:
        First source pixel and number of source pixels, int64. Then, in float32, the distance of
        the first from the center in pixels, and the inverse of the triangle's half width.
    """
    scale = length.to(torch.float32) / resized.to(torch.float32)
    middle = index.to(torch.float32) + 0.5
    if antialias:
        center = middle * scale
        support = scale.clamp(min=1.0)
        start = (center - support + 0.5).to(torch.int64).clamp_(min=0)
        stop = torch.minimum((center + support + 0.5).to(torch.int64), length)
        return start, stop - start, start - center + 0.5, 1.0 / support
    # Rounded once, like the fused multiply-add of aten's formula.
    place = (middle.double() * scale.double() - 0.5).to(torch.float32)
    nearest = torch.minimum(place.clamp_(min=0.0), (length - 1).to(torch.float32))
    start = nearest.to(torch.int64)
    stop = torch.minimum(start + 2, length)
    return start, stop - start, start - nearest, torch.ones_like(scale)


def _most_taps(placement: Placement, axis: int) -> int:
    """Return an upper bound, computed on the CPU."""
    if not placement.antialias:
        return 2
    scales = placement.boxes[:, 2 + axis] / placement.resized[:, axis]
    return int(2.0 * max(scales.max(), 1.0)) + 2


def portions(placement: Placement) -> Iterator[IndexArray]:
    """Yield groups of adjacent images that take little memory when padded."""
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

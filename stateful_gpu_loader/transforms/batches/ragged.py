"""Resampling a ragged batch at once: n images of any sizes and strides, one placement, one batch.

On a GPU one Triton launch does it; elsewhere, and where there is no triton, torch does, by batched
operations. Both compute what ``torch.nn.functional.interpolate(mode="bilinear",
align_corners=False)`` defines, in float32: along the rows first, then along the columns, each
value a sum in the order of the pixels, rounded half to even to a byte, as torchvision has it for
uint8 images on a GPU. No operation on a sample depends on the batch around it (law 1).

Before rounding a value is less than 1e-3 of a level, of 255, from aten's (measured on
photographs, on the CPU: at most 1e-4, on average 4e-6, most of them bit for bit); so at most 3 of
10,000 bytes differ, by one level, where a sum is a half.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.transforms.batches.placement import Placement
from stateful_gpu_loader.transforms.batches.pointwise import Pointwise
from stateful_gpu_loader.transforms.batches.ragged_launch import launch
from stateful_gpu_loader.transforms.batches.ragged_torch import portions, resample_with_torch
from stateful_gpu_loader.transforms.batches.trial import kernels_that_run

_LARGEST_INT32 = 2**31 - 1


def resample(
    images: Sequence[Tensor],
    placement: Placement,
    pointwise: Pointwise,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Tensor:
    """The batch [n, C, h, w] in ``pointwise.dtype``, on the device of the images.

    Nothing waits for the device. Work is queued on the current stream, on which the images must
    be ready.

    Args:
        images: n >= 1 images, uint8 [C, H, W] of any strides, all on one device.
        placement: of these images; all of its sizes are one.
        pointwise: what follows; it fits C.
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
        resampled = resample_with_torch([images[i] for i in members], part)
        out[members[0] : members[-1] + 1] = pointwise.apply(resampled)
    return out


def _within_kernel(images: Sequence[Tensor], out: Tensor) -> bool:
    """Whether there are three channels, and 32 bits hold every distance within an image."""
    return (
        out.shape[1] == 3
        and out[0].numel() <= _LARGEST_INT32
        and all(image.stride(2) * image.shape[2] <= _LARGEST_INT32 for image in images)
    )


@functools.cache
def _kernels(device: torch.device) -> ModuleType | None:
    """The kernels, if they run here."""
    pixel = torch.zeros(3, 1, 1, dtype=torch.uint8, device=device)
    out = torch.empty(1, 3, 1, 1, dtype=torch.uint8, device=device)

    def try_out() -> ModuleType:
        from stateful_gpu_loader.transforms.batches import kernels

        whole = Placement.of(np.ones((1, 2), dtype=np.int64))
        launch(kernels, [pixel], whole, Pointwise(), out)
        return kernels

    return kernels_that_run(try_out, "torch resamples")

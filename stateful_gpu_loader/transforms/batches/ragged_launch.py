"""What the Triton kernel is told of a ragged batch: one small table, copied once."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.batches.device_numbers import on_device
from stateful_gpu_loader.transforms.batches.placement import Placement
from stateful_gpu_loader.transforms.batches.pointwise import Pointwise


def launch(
    kernels: ModuleType,
    images: Sequence[Tensor],
    placement: Placement,
    pointwise: Pointwise,
    out: Tensor,
) -> None:
    """One launch for the whole batch; arguments as in ragged.resample, C is 3."""
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


def parameters(images: Sequence[Tensor], placement: Placement) -> IndexArray:
    """What the kernel reads of each image: int64 [n, 12].

    Address of the box's first pixel, as it is read; strides of rows, columns, channels in bytes,
    negative where mirrored; height, width of the box; height, width resized; first row of the
    window and step to the next; first column and step.
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
    """Which pixel of the resized axis comes first, and the step to the next: int64 [n] each."""
    flipped = placement.flipped[:, axis].astype(np.int64)
    first = placement.windows[:, axis] + flipped * (placement.windows[:, 2 + axis] - 1)
    return first, 1 - 2 * flipped

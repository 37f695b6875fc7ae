"""Errors of a device that is out of memory."""

from __future__ import annotations

import traceback
from typing import Any

import torch

from stateful_gpu_loader.decoders.rule import OUT_OF_MEMORY
from stateful_gpu_loader.engine.device.moving import tensors_of
from stateful_gpu_loader.engine.makers.encoded import EncodedBatch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception of torch or a decoder library reports that memory has run out.

    >>> is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    True
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None


def out_of_memory(
    error: Exception, batch: Any, device: torch.device, in_flight: int
) -> torch.OutOfMemoryError:
    """Return an error that tells the sizes a person needs to know.

    Args:
        error: error of torch or of a library.
        batch: the batch that was to be finished: an EncodedBatch, or tensors.
        device: the device that is out of memory.
        in_flight: number of the loader's batches on the device, including this one.
    """
    if isinstance(batch, EncodedBatch):
        size = batch.describe()
    else:
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(batch))
        size = f"a batch of {_megabytes(num_bytes)}"
    reason = str(error).partition("\n")[0]
    # The frames of the traceback hold partial results of the batch, for which there was no room.
    traceback.clear_frames(error.__traceback__)
    return torch.OutOfMemoryError(
        f"{device} is out of memory while the loader made {size} there, {in_flight} in flight: "
        f"{reason} Remedy: a smaller batch_size or prefetch_factor, or free memory of the model's; "
        "nothing is lost: next() tries the same batch again, and the state stands before it"
    )


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"

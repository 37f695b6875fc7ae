"""The error of a device whose memory is full."""

from __future__ import annotations

import traceback
from typing import Any

import torch

from stateful_gpu_loader.decoders.rule import OUT_OF_MEMORY
from stateful_gpu_loader.engine.device.moving import tensors_of
from stateful_gpu_loader.engine.makers.encoded import EncodedBatch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory has run out, as torch or a decoder's library says it.

    >>> is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    True
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None


def out_of_memory(
    error: Exception, batch: Any, device: torch.device, in_flight: int
) -> torch.OutOfMemoryError:
    """The error with the sizes that a person needs to mend it.

    Args:
        error: torch's own, or a library's.
        batch: what was to be finished: an EncodedBatch, or tensors.
        device: which is full.
        in_flight: batches that the loader has there, or is making, this one among them.
    """
    if isinstance(batch, EncodedBatch):
        size = batch.describe()
    else:
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(batch))
        size = f"a batch of {_megabytes(num_bytes)}"
    reason = str(error).partition("\n")[0]
    # Its frames hold what was made of the batch so far, for which there was no room.
    traceback.clear_frames(error.__traceback__)
    return torch.OutOfMemoryError(
        f"{device} is out of memory while the loader made {size} there, {in_flight} in flight: "
        f"{reason} Remedy: a smaller batch_size or prefetch_factor, or free memory of the model's; "
        "nothing is lost: next() tries the same batch again, and the state stands before it"
    )


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"

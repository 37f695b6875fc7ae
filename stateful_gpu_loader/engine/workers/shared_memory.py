"""Memory that worker processes share with the main process."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

import torch

_FILES = Path("/dev/shm")


def empty_shared(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised tensor in shared memory, which a worker sends without a copy."""
    num_bytes = math.prod(shape) * dtype.itemsize
    storage = torch.UntypedStorage._new_shared(num_bytes, device="cpu")
    return torch.empty(0, dtype=dtype).set_(storage).view(shape)


def remove_what_was_left_by(pid: int) -> None:
    """Remove the shared memory of a process that was killed between naming it and using it.

    torch removes the name as soon as it has the memory, unless its processes share it by name.
    """
    if torch.multiprocessing.get_sharing_strategy() != "file_descriptor":
        return
    for file in _FILES.glob(f"torch_{pid}_*"):
        with suppress(OSError):
            file.unlink()

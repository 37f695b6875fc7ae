"""PinnedMemory: page-locked host memory for batches on their way to a GPU, up to a bound."""

from __future__ import annotations

import math
import os
import threading
import weakref
from typing import Any

import torch

from stateful_gpu_loader.engine.makers.memory import empty_host, empty_pinned
from stateful_gpu_loader.state.forks import fork_safe

MOST_BYTES = 2**31
"""Bound for a process, unless an eighth of the machine's memory is less."""


class PinnedMemory:
    """Allocates page-locked memory as long as a bound allows it, and pageable memory after that.

    The system cannot use page-locked memory for anything else. A copy from pageable memory is
    slower, and gives the same batch. Thread-safe.

    Args:
        most_bytes: bound for the memory that is in use at a time.

    >>> PinnedMemory(0).empty((2, 3), torch.uint8).shape
    torch.Size([2, 3])
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.num_bytes = 0
        """Number of bytes in use."""
        self._lent: dict[int, tuple[weakref.ref[Any], int]] = {}
        """Each storage in use and its size, by the identity of the reference."""
        # Re-entrant: a storage may die while the lock is held.
        self._lock = fork_safe(threading.RLock())

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised CPU tensor."""
        num_bytes = _as_allocated(math.prod(shape) * dtype.itemsize)
        if num_bytes == 0:
            return empty_host(shape, dtype)
        with self._lock:
            if self.num_bytes + num_bytes > self.most_bytes:
                return empty_host(shape, dtype)
            try:
                tensor = empty_pinned(shape, dtype)
            except RuntimeError:  # the system refuses to lock more memory
                return empty_host(shape, dtype)
            self._note(tensor.untyped_storage(), num_bytes)
        return tensor

    def _note(self, storage: torch.UntypedStorage, num_bytes: int) -> None:
        reference = weakref.ref(storage, self._take_back)
        self._lent[id(reference)] = reference, num_bytes
        self.num_bytes += num_bytes

    def _take_back(self, reference: weakref.ref[Any]) -> None:
        with self._lock:
            _, num_bytes = self._lent.pop(id(reference))
            self.num_bytes -= num_bytes


def _as_allocated(num_bytes: int) -> int:
    """Return the size of the block that torch's allocator takes: the next power of two."""
    return 1 << (num_bytes - 1).bit_length() if num_bytes else 0


def _memory_of_machine() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


PINNED = PinnedMemory(min(MOST_BYTES, _memory_of_machine() // 8))
"""Memory of all loaders of this process, as they share what the machine has."""

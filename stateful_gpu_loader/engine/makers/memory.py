"""Memory for finished batches, reused, and page-locked up to a bound.

Newly allocating a batch of 38 MB costs 0.2 ms per image in page faults, a fifth of the time to
decode it.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.state.forks import fork_safe, keep_in_children

_SIZES = 2
"""Number of sizes that are kept: whole batches, and an epoch's last batch."""


def empty_host(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor in torch's own CPU memory, even if a default device is set."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def empty_pinned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)


class BatchMemory:
    """Allocates batch buffers, and reuses their memory.

    A buffer's memory returns when its tensor, its views and its exports are gone. Thread-safe.

    Args:
        keep: number of free buffers of one size to keep.

    >>> memory = BatchMemory(keep=1)
    >>> first = memory.empty((2, 3), torch.float32)
    >>> address = first.data_ptr()
    >>> del first
    >>> memory.empty((2, 3), torch.float32).data_ptr() == address
    True
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._free: dict[int, list[npt.NDArray[np.uint8]]] = {}
        # Re-entrant, because a buffer may die while another is taken.
        self._lock = fork_safe(threading.RLock())

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        with self._lock:
            waiting = self._free.get(num_bytes)
            base = waiting.pop() if waiting else np.empty(num_bytes, dtype=np.uint8)
        return lend(base, lambda: self._take_back(base)).view(dtype).view(shape)

    def _take_back(self, base: npt.NDArray[np.uint8]) -> None:
        with self._lock:
            waiting = self._free.setdefault(base.nbytes, [])
            if len(waiting) < self._keep:
                waiting.append(base)
            if len(self._free) > _SIZES:
                del self._free[next(iter(self._free))]


def lend(base: npt.NDArray[np.uint8], take_back: Callable[[], None]) -> torch.Tensor:
    """Return a tensor on memory that is reused after the tensor's storage is gone.

    Args:
        base: the memory, uint8 [n].
        take_back: called when the last reference is gone, in the thread that drops it.

    Returns: uint8 [n]. All views and exports of it keep the memory lent.
    """
    lease = base[:]
    weakref.finalize(lease, take_back).atexit = False
    return torch.from_numpy(lease)


MAX_BYTES = 2**31
"""Bound for a process, unless an eighth of the machine's memory is less."""


class PinnedMemory:
    """Allocates page-locked memory up to a bound, and pageable memory beyond it.

    A copy from pageable memory is slower. Thread-safe.

    Args:
        most_bytes: bound for the memory that is in use at a time.

    >>> PinnedMemory(0).empty((2, 3), torch.uint8).shape
    torch.Size([2, 3])
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.num_bytes = 0
        self._lent: dict[int, tuple[weakref.ref[Any], int]] = {}
        """Each storage in use and its size, by the identity of the reference."""
        # Re-entrant, because a storage may die within it.
        self._lock = fork_safe(threading.RLock())

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
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
        # A thread could hold a lock of torch's allocator at a fork.
        keep_in_children(storage)
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


PINNED = PinnedMemory(min(MAX_BYTES, _memory_of_machine() // 8))
"""Memory of all loaders of this process."""

"""Memory for finished batches, taken again once nobody holds it.

A fresh batch of 38 MB costs 0.2 ms an image in page faults alone, a fifth of decoding it.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import numpy.typing as npt
import torch


class BatchMemory:
    """Hands out batch buffers and takes their memory back when the last tensor on it is gone.

    Never before: a buffer is an array that its tensor, every view of it and every export of it
    keep alive, and the memory returns when that array dies, as with any allocator. Thread-safe.

    >>> memory = BatchMemory(keep=1)
    >>> first = memory.empty((2, 3), torch.float32)
    >>> address = first.data_ptr()
    >>> del first
    >>> memory.empty((2, 3), torch.float32).data_ptr() == address
    True
    """

    def __init__(self, keep: int) -> None:
        self._free: deque[npt.NDArray[np.uint8]] = deque(maxlen=keep)
        self._lent: dict[int, weakref.ref[npt.NDArray[np.uint8]]] = {}

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised CPU tensor of this shape and dtype."""
        num_bytes = dtype.itemsize
        for size in shape:
            num_bytes *= size
        if num_bytes == 0:
            return torch.empty(shape, dtype=dtype)
        base = self._take(num_bytes)
        lease = base[:]
        self._watch(lease, base)
        return torch.from_numpy(lease).view(dtype).view(shape)

    def _take(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        while True:
            try:
                base = self._free.popleft()
            except IndexError:
                return np.empty(num_bytes, dtype=np.uint8)
            if base.nbytes == num_bytes:
                return base

    def _watch(self, lease: npt.NDArray[np.uint8], base: npt.NDArray[np.uint8]) -> None:
        number = id(lease)

        def give_back(_: weakref.ref[npt.NDArray[np.uint8]]) -> None:
            del self._lent[number]
            self._free.append(base)

        self._lent[number] = weakref.ref(lease, give_back)

"""Sends answers between processes: small tensors in the message, large ones in shared memory.

torch shares the memory of every tensor: the receiver connects to a socket of the worker to get its
descriptor, and maps it, which takes longer than copying a quarter of a megabyte.
"""

from __future__ import annotations

import dataclasses
import io
import math
import pickle
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from stateful_gpu_loader.engine.pipeline import Answer
from stateful_gpu_loader.state.snapshot import is_plain

LARGEST_COPY = 1 << 18
"""Largest size in bytes of memory that is copied into the message."""


class Packed(NamedTuple):
    """A serialized answer."""

    content: bytes
    large: list[Any]
    """Objects that torch and NumPy transfer in their own ways."""
    snapshot: Any
    seconds: Mapping[str, float] = {}
    """Seconds that the worker has spent in each stage since its last answer."""


def pack(answer: Any) -> Packed:
    """Serialize an answer for another process.

    Raises:
        Exception: something in it cannot be pickled.

    >>> unpack(pack({"image": torch.ones(2)}))
    {'image': tensor([1., 1.])}
    """
    snapshot = None
    if isinstance(answer, Answer):
        answer, snapshot = dataclasses.replace(answer, snapshot=None), answer.snapshot
    file = io.BytesIO()
    packer = _Packer(file)
    packer.dump(answer)
    return Packed(file.getvalue(), packer.large, snapshot)


def unpack(packed: Packed) -> Any:
    """Return the answer, in memory of its own."""
    answer = _Unpacker(packed).load()
    if packed.snapshot is None:
        return answer
    return dataclasses.replace(answer, snapshot=packed.snapshot)


class _Packer(ForkingPickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.large: list[Any] = []
        self._memory: dict[int, _Memory] = {}

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, np.ndarray) and not thing.dtype.hasobject:
            return NotImplemented if thing.nbytes <= LARGEST_COPY else self._left_alone(thing)
        if not isinstance(thing, (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)):
            return NotImplemented
        if type(thing) is not torch.Tensor or not is_plain(thing):
            return self._left_alone(thing)
        storage = thing.untyped_storage()
        if storage.nbytes() > LARGEST_COPY:
            return self._left_alone(thing)
        # Tensors that share memory share it after unpacking, too.
        memory = self._memory.setdefault(storage.data_ptr(), _Memory(storage))
        place = thing.storage_offset(), tuple(thing.shape), thing.stride()
        return _tensor, (memory, thing.dtype, *place)

    def _left_alone(self, thing: Any) -> tuple[Any, ...]:
        self.large.append(thing)
        return _large, (len(self.large) - 1,)


class _Unpacker(pickle.Unpickler):
    def __init__(self, packed: Packed) -> None:
        super().__init__(io.BytesIO(packed.content))
        self._large = packed.large

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__ and name == _large.__name__:
            return self._large.__getitem__
        return super().find_class(module, name)


def _large(number: int) -> Any:
    """Placeholder for an object that is sent beside the message."""
    raise pickle.UnpicklingError("an answer is read with unpack()")


class _Memory:
    """A storage that is copied once, however many tensors refer to it."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage

    def __reduce__(self) -> tuple[Any, ...]:
        content: Any = torch.empty(0, dtype=torch.uint8).set_(self._storage)
        return _storage, (pickle.PickleBuffer(content.numpy()),)


def _storage(content: bytearray) -> torch.UntypedStorage:
    """Copy into memory that torch has aligned, as sums may depend on the alignment.

    NumPy copies, because torch would use several threads, whose synchronisation takes longer.
    """
    copied = torch.empty(len(content), dtype=torch.uint8)
    copied.numpy()[:] = np.frombuffer(content, dtype=np.uint8)
    return copied.untyped_storage()


def _tensor(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype).set_(storage, offset, shape, strides)


_FILES = Path("/dev/shm")


def empty_shared(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor in shared memory, which a worker sends without a copy."""
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

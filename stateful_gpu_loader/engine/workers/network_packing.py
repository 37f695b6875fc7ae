"""Sends answers to other machines: by value, with large memory outside the pickled message.

What carries the message can then hand over the large memory without a copy, as Ray does out of its
object store. It arrives in memory that must not be written, and is copied once, into memory of the
receiver's; images that are not finished are read where they arrived.
"""

from __future__ import annotations

import ctypes
import dataclasses
import io
import pickle
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.engine.makers.images import Allocate
from stateful_gpu_loader.engine.makers.memory import empty_host
from stateful_gpu_loader.engine.pipeline import Answer
from stateful_gpu_loader.engine.workers.packing import copied_storage, tensor_over
from stateful_gpu_loader.state.user_states import is_plain

LARGEST_IN_MESSAGE = 1 << 16
"""Largest size in bytes of memory that is copied into the message."""


class PackedByValue(NamedTuple):
    """A serialized answer."""

    content: bytes
    large: list[npt.NDArray[np.uint8]]
    """Memory that the content refers to."""
    images: npt.NDArray[Any] | None
    """Images of the batch, if they are to be finished where they arrive."""
    seconds: Mapping[str, float] = {}
    """Seconds that the worker has spent in each stage since its last answer."""


def pack_by_value(
    answer: Any, *, images_apart: bool = False, pickler: type[pickle.Pickler] = pickle.Pickler
) -> PackedByValue:
    """Serialize an answer for another machine.

    Args:
        answer: a batch, its failure, or an :class:`Answer`.
        images_apart: whether a batch is ``[images, targets]`` with images that are not finished.
        pickler: pickles what is no tensor; cloudpickle's knows the classes of a script.

    Raises:
        Exception: something in it cannot be pickled.

    >>> packed = pack_by_value({"image": torch.arange(1 << 20)})
    >>> len(packed.content) < 500, packed.large[0].nbytes
    (True, 8388608)
    >>> unpack_by_value(packed)["image"][-1]
    tensor(1048575)
    """
    images = None
    payload = answer.payload if isinstance(answer, Answer) else answer
    if images_apart and isinstance(payload, list):
        images, payload = payload[0].contiguous().numpy(), payload[1]
        answer = (
            dataclasses.replace(answer, payload=payload) if isinstance(answer, Answer) else payload
        )
    file = io.BytesIO()
    kind: Any = pickler
    packer = _packer_over(kind)(file)
    packer.dump(answer)
    return PackedByValue(file.getvalue(), packer.large, images)


def unpack_by_value(
    packed: PackedByValue,
    *,
    allocate: Allocate = empty_host,
    finish: Callable[[torch.Tensor, Allocate], torch.Tensor] | None = None,
) -> Any:
    """Return the answer, in memory of its own.

    Args:
        packed: what :func:`pack_by_value` returned.
        allocate: returns uninitialised memory of a shape and dtype for what is large.
        finish: makes the finished images of those that came apart, in memory that it allocates;
            None copies them.
    """
    owned = [_copied(part, allocate).numpy() for part in packed.large]
    answer = pickle.loads(packed.content, buffers=owned)
    if packed.images is None:
        return answer
    if finish is None:
        images = _copied(packed.images, allocate)
    else:
        images = finish(_as_tensor(packed.images), allocate)
    if isinstance(answer, Answer):
        return dataclasses.replace(answer, payload=[images, answer.payload])
    return [images, answer]


def _copied(array: npt.NDArray[Any], allocate: Allocate) -> torch.Tensor:
    memory = allocate(array.shape, torch.from_numpy(np.empty(0, array.dtype)).dtype)
    memory.numpy()[:] = array  # torch would use several threads
    return memory


class _Packer:
    """What is added to a pickler: tensors by value, and large memory outside the message."""

    def __init__(self, file: io.BytesIO) -> None:
        self.large: list[npt.NDArray[np.uint8]] = []
        self._memory: dict[tuple[int, int], _Memory] = {}
        above: Any = super()
        above.__init__(file, pickle.HIGHEST_PROTOCOL, buffer_callback=self._goes_into_message)

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is not torch.Tensor or not is_plain(thing) or not thing.is_cpu:
            above: Any = super()
            others = getattr(above, "reducer_override", None)
            return NotImplemented if others is None else others(thing)
        storage = thing.untyped_storage()
        if storage.nbytes() > max(LARGEST_IN_MESSAGE, 2 * thing.nbytes):
            # It shows a part of something large, which would be sent as a whole.
            thing = thing.clone(memory_format=torch.contiguous_format)
            storage = thing.untyped_storage()
        # Tensors that share memory share it after unpacking, too.
        where = storage.data_ptr(), storage.nbytes()
        memory = self._memory.setdefault(where, _Memory(storage))
        place = thing.storage_offset(), tuple(thing.shape), thing.stride()
        return tensor_over, (memory, thing.dtype, *place)

    def _goes_into_message(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes <= LARGEST_IN_MESSAGE:
            return True
        self.large.append(np.frombuffer(raw, dtype=np.uint8))
        return False


@cache
def _packer_over(pickler: Any) -> Any:
    return type("Packer", (_Packer, pickler), {})


class _Memory:
    """A storage that is sent once, however many tensors refer to it."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage

    def __reduce__(self) -> tuple[Any, ...]:
        content: Any = torch.empty(0, dtype=torch.uint8).set_(self._storage)
        return _storage, (pickle.PickleBuffer(content.numpy()),)


def _storage(content: Any) -> torch.UntypedStorage:
    """Return a storage of received memory, copied if it came in the message."""
    array = np.frombuffer(content, dtype=np.uint8)
    if array.nbytes > LARGEST_IN_MESSAGE:
        return torch.from_numpy(array).untyped_storage()
    return copied_storage(content)


def _as_tensor(images: npt.NDArray[Any]) -> torch.Tensor:
    """Return a tensor over an array that must not be written, of which torch would warn."""
    content: Any = (ctypes.c_uint8 * images.nbytes).from_address(images.ctypes.data)
    content.array = images  # which stays in memory as long as the tensor does
    flat = torch.frombuffer(content, dtype=torch.from_numpy(np.empty(0, images.dtype)).dtype)
    return flat.view(images.shape)

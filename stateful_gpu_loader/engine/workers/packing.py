"""Answers between processes: in shared memory on this machine, by value to other machines.

torch would move each tensor into new shared memory. It is faster to copy up to a quarter of a
megabyte into the message, and more into a mapped segment of the worker. Only tensors that are
already shared, and small parts of large memory, are left to torch. If the pickled rest is large, it
is copied into a segment too.

To other machines, large memory is sent outside the pickled message, and so, as by Ray's object
store, without a copy. It arrives in read-only memory and is copied once. Unfinished images are read
where they arrived.
"""

from __future__ import annotations

import ctypes
import dataclasses
import io
import pickle
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.engine.makers.images import Allocate
from stateful_gpu_loader.engine.makers.memory import empty_host
from stateful_gpu_loader.engine.pipeline import Answer
from stateful_gpu_loader.engine.workers.segments import (
    MAX_COPY,
    SegmentId,
    SentSegment,
    WorkerSegments,
)
from stateful_gpu_loader.state.tensors import is_plain


class Packed(NamedTuple):
    """A serialized answer."""

    content: memoryview
    large: list[Any]
    """Tensors that torch transfers in its own way."""
    segments: tuple[SentSegment, ...] = ()
    """Shared memory with tensors of the answer."""
    is_apart: bool = False
    """Whether the last segment holds the content."""
    given_up: tuple[SegmentId, ...] = ()
    """Segments that the worker will not use again."""
    seconds: Mapping[str, float] = {}
    """Seconds that the worker spent in each stage since its last answer."""


def pack(answer: Any, segments: WorkerSegments | None = None) -> Packed:
    """Serialize an answer for another process.

    Args:
        segments: the worker's segments; the main process must return the sent segments.

    Raises:
        Exception: a part of it cannot be pickled.

    >>> unpack(pack({"image": torch.ones(2)}))
    {'image': tensor([1., 1.])}
    """
    file = io.BytesIO()
    packer = _Packer(file, segments)
    packer.dump(answer)
    packed = Packed(file.getbuffer(), packer.large)
    if segments is None:
        return packed
    # A socket would take large content in parts, each waiting for a thread.
    is_apart = len(packed.content) > MAX_COPY and packer.add_copy(packed.content)
    return packed._replace(
        segments=segments.send(packer.segments),
        is_apart=is_apart,
        given_up=segments.given_up(),
    )


def unpack(
    packed: Packed, lend: Callable[[SentSegment], torch.UntypedStorage] | None = None
) -> Any:
    """Return the answer, in newly allocated or lent memory.

    Args:
        lend: returns the memory of a segment; None returns memory of the same size with other
            content.
    """
    storages = [(lend or _any_storage)(segment) for segment in packed.segments]
    before = getattr(_PRESENT, "beside", None)
    try:
        _PRESENT.beside = packed.large, storages
        return pickle.loads(_bytes_of(storages[-1]) if packed.is_apart else packed.content)
    finally:
        _PRESENT.beside = before


def _bytes_of(storage: torch.UntypedStorage) -> memoryview:
    content: Any = torch.empty(0, dtype=torch.uint8).set_(storage)
    return memoryview(content.numpy())


_MAX_RATIO = 2
"""Largest ratio of a copied memory's size to its tensor's size."""


class _Packer(ForkingPickler):
    def __init__(self, file: io.BytesIO, segments: WorkerSegments | None) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.large: list[Any] = []
        self.segments: list[int] = []
        """Numbers of the segments that hold parts of the answer."""
        self._copies: list[torch.Tensor] = []
        """Copies in segments for this answer alone, kept until the answer is packed.

        Otherwise another thread could fill the segment.
        """
        self._all_segments = segments
        self._memory: dict[tuple[int, int], _Memory | _InSegment | None] = {}

    def reducer_override(self, thing: Any) -> Any:
        if not isinstance(thing, (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)):
            return NotImplemented
        if type(thing) is not torch.Tensor or not is_plain(thing):
            return self._left_alone(thing)
        storage = thing.untyped_storage()
        # Tensors that share memory still share it after unpacking.
        where = storage.data_ptr(), storage.nbytes()
        if where not in self._memory:
            self._memory[where] = self._memory_of(storage, thing.nbytes)
        memory = self._memory[where]
        if memory is None:
            return self._left_alone(thing)
        place = thing.storage_offset(), tuple(thing.shape), thing.stride()
        return tensor_over, (memory, thing.dtype, *place)

    def add_copy(self, content: memoryview) -> bool:
        """Copy content into a segment; return whether this system has segments."""
        if self._all_segments is None:
            return False
        copy = self._all_segments.empty((len(content),), torch.uint8)
        number = self._all_segments.number_of(copy.untyped_storage())
        if number is None:
            return False
        copy.numpy()[:] = np.frombuffer(content, np.uint8)
        self._copies.append(copy)
        self.segments.append(number)
        return True

    def _memory_of(
        self, storage: torch.UntypedStorage, num_bytes: int
    ) -> _Memory | _InSegment | None:
        """Return the sent form of a storage, of which a tensor uses ``num_bytes``."""
        if storage.nbytes() <= MAX_COPY:
            return _Memory(storage, copied_storage)
        number = None if self._all_segments is None else self._all_segments.number_of(storage)
        if number is not None and number in self.segments:
            return _InSegment(self.segments.index(number))  # another storage on the same segment
        if number is not None:
            self.segments.append(number)
        elif (
            storage.is_shared()
            or storage.nbytes() > _MAX_RATIO * num_bytes
            or not self.add_copy(_bytes_of(storage))
        ):
            return None
        return _InSegment(len(self.segments) - 1)

    def _left_alone(self, thing: Any) -> tuple[Any, ...]:
        self.large.append(thing)
        return _large, (len(self.large) - 1,)


_PRESENT = threading.local()


def _large(number: int) -> Any:
    """Return an object sent beside the answer."""
    return _PRESENT.beside[0][number]


def _lent(number: int) -> Any:
    """Return the memory of a segment of the answer."""
    return _PRESENT.beside[1][number]


class _InSegment:
    """The storage in the sent segment of this number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _lent, (self._number,)


def _any_storage(segment: SentSegment) -> torch.UntypedStorage:
    return torch.empty(segment.num_bytes, dtype=torch.uint8).untyped_storage()


class _Memory:
    """A storage that is sent once, even if several tensors refer to it.

    Args:
        read: makes a storage of the received memory.
    """

    def __init__(self, storage: torch.UntypedStorage, read: Callable[[Any], Any]) -> None:
        self._storage = storage
        self._read = read

    def __reduce__(self) -> tuple[Any, ...]:
        return self._read, (pickle.PickleBuffer(_bytes_of(self._storage)),)


def copied_storage(content: Any) -> torch.UntypedStorage:
    """Copy into memory aligned by torch, because sums may depend on the alignment.

    NumPy copies, because torch would use several threads.
    """
    copied = torch.empty(len(content), dtype=torch.uint8)
    copied.numpy()[:] = np.frombuffer(content, dtype=np.uint8)
    return copied.untyped_storage()


def tensor_over(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> torch.Tensor:
    """Return a tensor over a part of a storage."""
    return torch.empty(0, dtype=dtype).set_(storage, offset, shape, strides)


_FILES = Path("/dev/shm")


def remove_leftovers_of(pid: int) -> None:
    """Remove the shared memory of a process that was killed between naming and using it.

    torch removes the name as soon as it has the memory, unless its processes share it by name.
    """
    if torch.multiprocessing.get_sharing_strategy() != "file_descriptor":
        return
    for file in _FILES.glob(f"torch_{pid}_*"):
        with suppress(OSError):
            file.unlink()


MAX_IN_MESSAGE = 1 << 16
"""Size limit in bytes of memory that is copied into the message."""


class PackedByValue(NamedTuple):
    """A serialized answer."""

    content: bytes
    large: list[npt.NDArray[np.uint8]]
    """Memory that the content refers to."""
    images: npt.NDArray[Any] | None
    """Images of the batch, if the receiver finishes them."""
    seconds: Mapping[str, float] = {}
    """Seconds that the worker spent in each stage since its last answer."""


def pack_by_value(
    answer: Any, *, images_apart: bool = False, pickler: type[pickle.Pickler] = pickle.Pickler
) -> PackedByValue:
    """Serialize an answer for another machine.

    Args:
        answer: a batch, its failure, or an :class:`Answer`.
        images_apart: whether a batch is ``[images, targets]`` with unfinished images.
        pickler: pickles everything but tensors; cloudpickle's supports the classes of a script.

    Raises:
        Exception: a part of it cannot be pickled.

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
    """Return the answer, in newly allocated memory.

    Args:
        packed: result of :func:`pack_by_value`.
        allocate: returns uninitialised memory of a shape and dtype for large parts.
        finish: makes finished images in new memory; None copies them.
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


class _PackerByValue:
    """Mixin for a pickler: tensors by value, and large memory outside the message."""

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
        if storage.nbytes() > max(MAX_IN_MESSAGE, 2 * thing.nbytes):
            # The tensor's large storage would be sent as a whole.
            thing = thing.clone(memory_format=torch.contiguous_format)
            storage = thing.untyped_storage()
        # Tensors that share memory still share it after unpacking.
        where = storage.data_ptr(), storage.nbytes()
        memory = self._memory.setdefault(where, _Memory(storage, _storage))
        place = thing.storage_offset(), tuple(thing.shape), thing.stride()
        return tensor_over, (memory, thing.dtype, *place)

    def _goes_into_message(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes <= MAX_IN_MESSAGE:
            return True
        self.large.append(np.frombuffer(raw, dtype=np.uint8))
        return False


@cache
def _packer_over(pickler: Any) -> Any:
    return type("Packer", (_PackerByValue, pickler), {})


def _storage(content: Any) -> torch.UntypedStorage:
    """Return a storage of received memory, copied if it came in the message."""
    array = np.frombuffer(content, dtype=np.uint8)
    if array.nbytes > MAX_IN_MESSAGE:
        return torch.from_numpy(array).untyped_storage()
    return copied_storage(content)


def _as_tensor(images: npt.NDArray[Any]) -> torch.Tensor:
    """Return a tensor over a read-only array, without torch's warning."""
    content: Any = (ctypes.c_uint8 * images.nbytes).from_address(images.ctypes.data)
    content.array = images  # keeps the array in memory as long as the tensor
    flat = torch.frombuffer(content, dtype=torch.from_numpy(np.empty(0, images.dtype)).dtype)
    return flat.view(images.shape)

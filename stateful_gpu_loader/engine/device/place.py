"""Place: a device with the private streams on which the stage queues its work.

``torch.cuda.Stream()`` hands out 32 streams in turn, so a user's stream could be a place's stream.
Memory freed on a shared stream is reused at once, while the user's work on it is still queued, and
JPEG engines do not wait for that work.

Streams are reused after their place, because torch's allocator keeps memory per stream.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, Protocol

import torch

from stateful_gpu_loader.decoders.cuda_driver import beside_captures, new_stream
from stateful_gpu_loader.engine.makers.memory import PINNED
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.state.forks import fork_safe, keep_in_children


class Place(Protocol):
    """The operations on a device that the stage needs.

    The stage's threads call ``working``, and inside it ``synchronize`` and ``mark``. The thread
    that takes a result calls ``receive``.
    """

    device: torch.device

    def open(self) -> None:
        """Use the device for the first time, in the user's thread, whose current device counts.

        Raises:
            LoaderError: the device is missing or cannot be used.
        """
        ...

    def working(self, stream: int) -> AbstractContextManager[Any]:
        """Queue the thread's work on a stream, 0 or 1, while the context is open."""
        ...

    def synchronize(self) -> None:
        """Wait, on the host, until all work queued on the thread's stream is done."""
        ...

    def mark(self) -> Any:
        """Return a mark after all work queued on the thread's stream."""
        ...

    def receive(self, mark: Any, tensors: list[torch.Tensor]) -> None:
        """Make the calling thread's work on the device wait for a mark.

        The tensors' memory is not reused before that work is done.
        """
        ...

    def copy_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Queue a copy of a strided tensor, unless it is on the device."""
        ...

    def free_cached(self) -> None:
        """Return memory that torch has cached to the device."""
        ...

    def empty_host(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return uninitialised host memory, fast to copy to the device; safe in any thread."""
        ...


class CudaPlace:
    """One GPU, with two private streams for the loader's life.

    Three rules protect the memory of a delivered batch:

    - The stage allocates on a private stream (:func:`private_streams`), and never writes a batch
      twice.
    - nvJPEG's hardware engine does not wait for its stream's work (measured). So the stage waits on
      the host (:meth:`synchronize`) before it decodes, and before it frees memory that the engines
      may get next.
    - A delivered tensor is recorded on the consumer's stream. torch's allocator reuses its memory
      only after that stream has passed the point of freeing.

    The device is not used before :meth:`open`, so that workers can be forked before.

    Args:
        device: device of type "cuda"; without an index, the current device when it is opened.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._streams: Streams | None = None

    def open(self) -> None:
        if self._streams is None:
            self.device = _present(self.device)
            try:
                self._streams = private_streams(self, self.device)
            except RuntimeError as error:
                raise _unusable(self.device, error) from error

    def working(self, stream: int) -> AbstractContextManager[Any]:
        if self._streams is None:
            raise RuntimeError("the place has not been opened")
        stack = ExitStack()
        stack.enter_context(beside_captures())
        stack.enter_context(torch.cuda.device(self.device))
        stack.enter_context(torch.cuda.stream(self._streams[stream]))
        return stack

    def synchronize(self) -> None:
        torch.cuda.current_stream(self.device).synchronize()

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def receive(self, mark: torch.cuda.Event, tensors: list[torch.Tensor]) -> None:
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(mark)
        for tensor in tensors:
            if tensor.is_cuda and tensor.layout is torch.strided:
                tensor.record_stream(stream)
                # To free recorded memory, torch calls CUDA, which aborts a forked process.
                keep_in_children(tensor.untyped_storage())

    def copy_in(self, tensor: torch.Tensor) -> torch.Tensor:
        source = tensor
        if tensor.device.type == "cpu":
            # The allocator keeps page-locked memory until the copy is made.
            with suppress(RuntimeError):
                source = tensor.pin_memory()
        return source.to(self.device, non_blocking=True)

    def free_cached(self) -> None:
        torch.cuda.empty_cache()

    def empty_host(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        # Otherwise torch would create a context on the first GPU.
        with beside_captures(), torch.cuda.device(self.device):
            return PINNED.empty(shape, dtype)


def _present(device: torch.device) -> torch.device:
    """Return the device with its index, after checking that it is present."""
    try:
        torch.cuda.init()
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.get_device_properties(index)
    except (RuntimeError, AssertionError) as error:
        raise _unusable(device, error) from error
    backend = torch.cuda.memory.get_allocator_backend()
    if backend != "native":
        raise LoaderError(
            f"device={str(device)!r} cannot be used with torch's allocator {backend!r}: it reuses "
            "memory in stream order, which nvJPEG's hardware engine ignores. Remedy: remove "
            "backend:cudaMallocAsync from PYTORCH_CUDA_ALLOC_CONF"
        )
    return torch.device("cuda", index)


def _unusable(device: torch.device, error: Exception) -> LoaderError:
    reason = str(error).partition("\n")[0]
    return LoaderError(
        f"device={str(device)!r} cannot be used: {reason}. Remedy: use a machine with such a GPU "
        "and a build of torch for it, or device=None, which decodes on the CPU"
    )


Streams = tuple[torch.cuda.Stream, torch.cuda.Stream]

_spare: dict[tuple[int, int | None], list[Streams]] = {}
"""Streams without an owner, by process and GPU index."""

_taking = fork_safe(threading.RLock())


def private_streams(owner: object, device: torch.device) -> Streams:
    """Return two streams on a GPU that belong to ``owner`` until it is garbage collected.

    Streams are reused after their queued work is done. A thread that hangs keeps its streams.

    Args:
        owner: object that uses the streams.
        device: GPU with its index; torch has initialized CUDA.

    Raises:
        RuntimeError: CUDA's driver is missing or reports an error.
    """
    spare = _spare.setdefault((os.getpid(), device.index), [])
    with _taking, beside_captures():
        streams = _idle(spare) or (_new(device), _new(device))
    # A finalizer may run anywhere, so it neither locks nor calls CUDA.
    weakref.finalize(owner, spare.append, streams).atexit = False
    return streams


def _idle(spare: list[Streams]) -> Streams | None:
    """Take the last returned streams without queued work."""
    for i in reversed(range(len(spare))):
        if all(stream.query() for stream in spare[i]):
            return spare.pop(i)
    return None


def _new(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.ExternalStream(new_stream(device.index or 0), device)

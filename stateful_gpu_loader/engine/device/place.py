"""Place: a device as the stage sees it, its private queues of work, and the way out of them."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, Protocol

import torch

from stateful_gpu_loader.decoders.cuda_driver import beside_captures
from stateful_gpu_loader.errors import LoaderError


class Place(Protocol):
    """What the stage asks of a device.

    ``working``, ``settle`` and ``mark`` are for the stage's own threads, the last two within the
    first; ``receive`` is for the thread that takes over what another one has made.
    """

    device: torch.device

    def open(self) -> None:
        """Touch the device, for the first time, in the user's own thread, whose current device
        counts.

        Raises:
            LoaderError: it is not there, or cannot be used.
        """
        ...

    def working(self, stream: int) -> AbstractContextManager[Any]:
        """Within it the thread's work is queued on the device, behind what was queued on that
        stream before: 0 or 1."""
        ...

    def settle(self) -> None:
        """Wait, on the host, until all that was queued on the thread's stream is done."""
        ...

    def mark(self) -> Any:
        """A mark behind all that was queued on the thread's stream."""
        ...

    def receive(self, mark: Any, tensors: list[torch.Tensor]) -> None:
        """Let the calling thread's own work on the device wait for a mark, and keep the tensors'
        memory from being taken again before that work has used them."""
        ...

    def copy_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a strided tensor on the device, queued; the tensor itself if it lies there."""
        ...

    def free_cached(self) -> None:
        """Give memory that torch holds and nobody uses back to the device."""
        ...

    def empty_host(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Uninitialised memory of the host from which the device copies fast; any thread."""
        ...


class CudaPlace:
    """One GPU, with two private streams for the loader's life.

    The memory of a delivered batch is safe (D8) by three rules. What the stage allocates belongs to
    the private stream that is current, and nothing of it is written by hand a second time. nvJPEG's
    hardware engine writes when it is called, whatever its stream still has to do (measured), so
    that the stage waits on the host before it decodes, and before it frees what the engines may
    write next: :meth:`settle`. And a delivered tensor is recorded on the consumer's stream: torch's
    caching allocator hands its memory out again only when the host has seen that stream pass the
    point where it was freed.

    Nothing is touched before :meth:`open`: whoever forks has forked by then (C9).

    Args:
        device: of type "cuda"; without an index, the current one when it is opened.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._streams: list[torch.cuda.Stream] = []

    def open(self) -> None:
        if not self._streams:
            self.device = _present(self.device)
            self._streams = [torch.cuda.Stream(self.device) for _ in range(2)]

    def working(self, stream: int) -> AbstractContextManager[Any]:
        if not self._streams:
            raise RuntimeError("the place has not been opened")
        stack = ExitStack()
        stack.enter_context(beside_captures())
        stack.enter_context(torch.cuda.device(self.device))
        stack.enter_context(torch.cuda.stream(self._streams[stream]))
        return stack

    def settle(self) -> None:
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

    def copy_in(self, tensor: torch.Tensor) -> torch.Tensor:
        source = tensor
        if tensor.device.type == "cpu":
            # Without memory to lock the copy is slower. With it, its allocator knows of the copy
            # and keeps the source until it is made.
            with suppress(RuntimeError):
                source = tensor.pin_memory()
        return source.to(self.device, non_blocking=True)

    def free_cached(self) -> None:
        torch.cuda.empty_cache()

    def empty_host(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        # Without its device a context is made on the first GPU.
        with beside_captures(), torch.cuda.device(self.device):
            try:
                return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)
            except RuntimeError:  # the system locks no more memory
                return torch.empty(shape, dtype=dtype, device="cpu")


def _present(device: torch.device) -> torch.device:
    """The device with its index, once it is known to be there."""
    try:
        torch.cuda.init()
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.get_device_properties(index)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise LoaderError(
            f"device={str(device)!r} cannot be used: {reason}. Remedy: a machine with such a GPU "
            "and a build of torch for it, or device=None, which decodes on the CPU"
        ) from error
    backend = torch.cuda.memory.get_allocator_backend()
    if backend != "native":
        raise LoaderError(
            f"device={str(device)!r} cannot be used with torch's allocator {backend!r}: it hands "
            "memory out again in the order of streams, which nvJPEG's hardware engine does not "
            "keep. Remedy: take backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF"
        )
    return torch.device("cuda", index)


def open_place(device: torch.device) -> Place:
    """The place of a device; nothing is started before its first use."""
    return CudaPlace(device)

"""Private streams: CUDA streams that nothing else in the process uses.

``torch.cuda.Stream()`` hands out the 32 streams of a pool in turn, so a user's stream can be one of
them that a place uses. Memory that is freed on a shared stream is reused at once, while the user's
work on it is still queued. JPEG engines write when they are called and do not wait for that work.

Streams outlive their place and are handed out again, because torch's allocator keeps the memory
that was allocated on a stream for that stream alone.
"""

from __future__ import annotations

import os
import threading
import weakref

import torch

from stateful_gpu_loader.decoders.cuda_driver import beside_captures, new_stream
from stateful_gpu_loader.state.forks import fork_safe

Streams = tuple[torch.cuda.Stream, ...]

_spare: dict[tuple[int, int | None, int], list[Streams]] = {}
"""Streams whose owners are gone, by process, index of the GPU, and number. A forked child takes
none of its parent's, which are of no use there."""

_taking = fork_safe(threading.RLock())


def private_streams(owner: object, device: torch.device, count: int) -> Streams:
    """Return streams on a GPU that belong to ``owner`` until it is garbage collected.

    Returned streams are handed out again once their queued work is done. A thread that hangs keeps
    its owner alive, and so its streams.

    Args:
        owner: object that uses the streams.
        device: GPU with its index; torch has initialized CUDA.
        count: number of streams.

    Raises:
        RuntimeError: CUDA's driver is missing or reports an error.
    """
    spare = _spare.setdefault((os.getpid(), device.index, count), [])
    with _taking, beside_captures():
        streams = _idle(spare) or tuple(_new(device) for _ in range(count))
    # A finalizer runs in any thread at any moment, so it neither locks nor calls CUDA.
    weakref.finalize(owner, spare.append, streams).atexit = False
    return streams


def _idle(spare: list[Streams]) -> Streams | None:
    """Take the streams that were returned last among those without queued work."""
    for i in reversed(range(len(spare))):
        if all(stream.query() for stream in spare[i]):
            return spare.pop(i)
    return None


def _new(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.ExternalStream(new_stream(device.index or 0), device)

"""Private streams: pairs of CUDA streams that nothing else in the process uses.

``torch.cuda.Stream()`` hands out the 32 streams of a pool in turn, so a user's stream can be one of
them that a place uses. Memory that is freed on a shared stream is reused at once, while the user's
work on it is still queued. JPEG engines write when they are called and do not wait for that work.

A pair outlives its place and is handed out again, because torch's allocator keeps the memory that
was allocated on a stream for that stream alone.
"""

from __future__ import annotations

import os
import threading
import weakref

import torch

from stateful_gpu_loader.decoders.cuda_driver import beside_captures, new_stream
from stateful_gpu_loader.state.forks import fork_safe

Pair = tuple[torch.cuda.Stream, torch.cuda.Stream]

_spare: dict[tuple[int, int | None], list[Pair]] = {}
"""Pairs whose owners are gone, by process and index of the GPU. A forked child takes none of its
parent's, which are of no use there."""

_taking = fork_safe(threading.RLock())


def private_pair(owner: object, device: torch.device) -> Pair:
    """Return two streams on a GPU that belong to ``owner`` until it is garbage collected.

    A returned pair is handed out again once its queued work is done. A thread that hangs keeps its
    owner alive, and so its pair.

    Args:
        owner: object that uses the streams.
        device: GPU with its index; torch has initialized CUDA.

    Raises:
        RuntimeError: CUDA's driver is missing or reports an error.
    """
    spare = _spare.setdefault((os.getpid(), device.index), [])
    with _taking, beside_captures():
        pair = _idle(spare) or (_new(device), _new(device))
    # A finalizer runs in any thread at any moment, so it neither locks nor calls CUDA.
    weakref.finalize(owner, spare.append, pair).atexit = False
    return pair


def _idle(spare: list[Pair]) -> Pair | None:
    """Take the pair that was returned last among those without queued work."""
    for i in reversed(range(len(spare))):
        if all(stream.query() for stream in spare[i]):
            return spare.pop(i)
    return None


def _new(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.ExternalStream(new_stream(device.index or 0), device)

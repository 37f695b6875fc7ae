"""The fused launch alone: its time on the device, and the time of its memory traffic."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from stateful_gpu_loader.transforms import Compose, PipelineDraw
from stateful_gpu_loader.transforms.batches import kernels

BLOCKS = ((4, 128), (4, 64), (4, 32), (8, 64), (8, 32), (16, 64), (16, 32))
"""Rows and columns of the fused launch's blocks to compare."""
_AHEAD_CYCLES = 20_000_000
"""About 10 ms of the GPU's time, in which the host queues the timed work."""
_COPIED_BYTES = 2**31


def bytes_a_second() -> float:
    """Return bytes a second, read and written by a copy on the device at full memory speed."""
    source = torch.randint(256, (_COPIED_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    microseconds = device_microseconds(lambda number: target.copy_(source), repeats=10)
    return 2 * _COPIED_BYTES / (statistics.median(microseconds) * 1e-6)


def device_microseconds(queue: Callable[[int], Any], *, repeats: int) -> list[float]:
    """Return the device time between events around the work that ``queue(number)`` queues.

    The device is kept busy before, so that the host's own time does not count.
    """
    queue(0)
    torch.cuda.synchronize()
    found = []
    for number in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_AHEAD_CYCLES)
        start.record()
        kept = queue(number)
        end.record()
        end.synchronize()
        del kept
        found.append(1000 * start.elapsed_time(end))
    return found


def by_block(queue: Callable[[int], Any], *, repeats: int) -> dict[tuple[int, int], list[float]]:
    """Return :func:`device_microseconds` of the fused launch for every shape of blocks."""
    ours, found = kernels.BLOCK, {}
    try:
        for block in BLOCKS:
            kernels.BLOCK = block
            found[block] = device_microseconds(queue, repeats=repeats)
    finally:
        kernels.BLOCK = ours
    return found


def host_microseconds(queue: Callable[[int], Any], *, repeats: int) -> list[float]:
    """Return the time of a call on the host while the device is idle."""
    found = []
    for number in range(repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        kept = queue(number)
        found.append(1e6 * (time.perf_counter() - started))
        del kept
    return found


def kernels_of(queue: Callable[[int], Any], *, repeats: int) -> dict[str, dict[str, float]]:
    """Return the launches a call, and the microseconds each, of every kernel by name."""
    queue(0)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for number in range(repeats):
            queue(number)
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {}
    for event in found.events():
        if event.device_type == DeviceType.CUDA:
            times.setdefault(event.name[:80], []).append(event.time_range.elapsed_us())
    return {
        name: {"launches": len(values) / repeats, "microseconds": statistics.median(values)}
        for name, values in sorted(times.items(), key=lambda pair: -sum(pair[1]))
    }


class Augmenting:
    """Calls ``Compose.apply_batch`` on batches that lie decoded on the device.

    Args:
        recipes: recipes to apply.
        batches: batches of n images, uint8 [3, H, W], taken in turn; larger than the cache.
    """

    def __init__(self, recipes: Compose, batches: Sequence[list[torch.Tensor]]) -> None:
        self._recipes = recipes
        self._batches = batches
        self.drawn = [_drawn(recipes, batch, number) for number, batch in enumerate(batches)]

    def __call__(self, number: int) -> torch.Tensor:
        which = number % len(self._batches)
        return self._recipes.apply_batch(self._batches[which], self.drawn[which])

    def least_bytes(self) -> float:
        """Return the minimum of bytes read and written a batch: all pixels of boxes, all values."""
        found = []
        for number, drawn in enumerate(self.drawn):
            boxes = drawn.draws[0].numbers
            out = self(number)
            found.append(3 * float((boxes[:, 2] * boxes[:, 3]).sum()) + out.nbytes)
        return statistics.mean(found)


def _drawn(recipes: Compose, images: list[torch.Tensor], number: int) -> PipelineDraw:
    n = len(images)
    sizes = np.array([image.shape[1:] for image in images], dtype=np.int64)
    return recipes.draw(42, 0, np.arange(number * n, (number + 1) * n), sizes)

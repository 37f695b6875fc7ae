"""Times of the loader's phases: its own methods under a clock, in an ordinary pass."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from stateful_gpu_loader.decoders.registry import BATCH_DECODERS
from stateful_gpu_loader.engine.device.device_prefetch import DevicePrefetch
from stateful_gpu_loader.engine.device.images import DeviceImages
from stateful_gpu_loader.engine.device.place import CudaPlace
from stateful_gpu_loader.engine.device.stage import Task
from stateful_gpu_loader.engine.makers.encoded import EncodedMaker
from stateful_gpu_loader.transforms import Compose

PHASES: dict[str, list[tuple[Any, str]]] = {
    "read and draw (each reader)": [(EncodedMaker, "__call__")],
    "decode a batch (the stage's first thread)": [(DeviceImages, "decode")],
    "of it: the decoder": [(kind, "decode_batch") for kind in BATCH_DECODERS.values()],
    "augment a batch (its second thread, beside the first)": [(DeviceImages, "augment")],
    "of it: the recipes": [(Compose, "apply_batch")],
    "of both: wait for the device": [(CudaPlace, "synchronize")],
    "of both: copy to the device": [(CudaPlace, "copy_in")],
    "next() (the user)": [(DevicePrefetch, "__next__")],
    "of it: hand over": [(Task, "take")],
}


@dataclass
class Spent:
    """Time of a phase, summed over all calls and threads."""

    calls: int = 0
    seconds: float = 0.0
    """Wall-clock time."""
    cpu_seconds: float = 0.0
    """Time on a core: the rest was waiting for the device, a file or Python's lock."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, seconds: float, cpu_seconds: float) -> None:
        with self.lock:
            self.calls += 1
            self.seconds += seconds
            self.cpu_seconds += cpu_seconds


@contextmanager
def phases_timed() -> Iterator[dict[str, Spent]]:
    """Time every call of the methods in :data:`PHASES` within the block, in any thread."""
    spent = {phase: Spent() for phase in PHASES}
    with ExitStack() as stack:
        for phase, methods in PHASES.items():
            for owner, name in methods:
                method = getattr(owner, name)
                setattr(owner, name, _timed(method, spent[phase]))
                stack.callback(setattr, owner, name, method)
        yield spent


def a_batch(spent: dict[str, Spent], num_batches: int) -> dict[str, dict[str, float]]:
    """Return milliseconds and calls a batch of each phase."""
    return {
        phase: {
            "calls": found.calls / num_batches,
            "milliseconds": 1000 * found.seconds / num_batches,
            "cpu_milliseconds": 1000 * found.cpu_seconds / num_batches,
        }
        for phase, found in spent.items()
    }


def _timed(method: Callable[..., Any], spent: Spent) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        started, started_cpu = time.perf_counter(), time.thread_time()
        try:
            return method(*arguments, **named)
        finally:
            spent.note(time.perf_counter() - started, time.thread_time() - started_cpu)

    return call

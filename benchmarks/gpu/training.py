"""Share of a ResNet-50's training step spent waiting for data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torchvision

from benchmarks.gpu.loaders import DEVICE, DTYPE
from benchmarks.photograph_loaders import SIZE

_CLASSES = 1000


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Times of some steps, in seconds a step."""

    step: float
    """Total time by the host's clock, between two moments at which the device is idle."""
    host: float
    """Time in ``next()``."""
    stream: float
    """Idle time of the training stream between the end of a step and the batch."""


class Training:
    """A ResNet-50 in bfloat16 and channels_last with SGD, a common training setup.

    The host never waits for the device within the steps, so it is as far ahead as in a training
    loop that does not print its loss.
    """

    def __init__(self) -> None:
        torch.backends.cudnn.benchmark = True
        torch.manual_seed(0)
        model = torchvision.models.resnet50(num_classes=_CLASSES)
        self._model = model.to(DEVICE, memory_format=torch.channels_last).train()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.1, momentum=0.9)

    def step(self, images: torch.Tensor, targets: torch.Tensor) -> None:
        images = images.to(memory_format=torch.channels_last)
        with torch.autocast("cuda", DTYPE):
            loss = torch.nn.functional.cross_entropy(self._model(images), targets)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()

    def measure(self, batches: Iterator[Any], *, warm_up: int, timed: int) -> Waiting:
        """Train on batches, after some uncounted ones."""
        for _ in range(warm_up):
            self.step(*next(batches))
        torch.cuda.synchronize()
        events = []
        host = 0.0
        started = time.perf_counter()
        for _ in range(timed):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            asked = time.perf_counter()
            images, targets = next(batches)
            host += time.perf_counter() - asked
            after.record()
            events.append((before, after))
            self.step(images, targets)
            del images, targets
        torch.cuda.synchronize()
        step = (time.perf_counter() - started) / timed
        stream = sum(before.elapsed_time(after) for before, after in events) / 1000 / timed
        return Waiting(step=step, host=host / timed, stream=stream)


def the_same_batch(batch_size: int) -> Iterator[Any]:
    """Yield one batch of noise repeatedly, as a loader that costs nothing."""
    images = torch.randn(batch_size, 3, SIZE, SIZE, device=DEVICE).to(DTYPE)
    targets = torch.randint(_CLASSES, (batch_size,), device=DEVICE)
    while True:
        yield [images, targets]

"""Ways to lose workers, by a kill or at a sample, without losing batches."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from pathlib import Path
from typing import Any

from stateful_gpu_loader import StatefulGPULoader
from tests.conformance import copy_of
from tests.makers import Make
from tests.map_datasets import Noisy


def kill(batches: Any, *numbers: int) -> None:
    """Send SIGKILL, and wait until the process has ended, so that no timing matters."""
    workers = [batches._workers[number % len(batches._workers)] for number in numbers]
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join()


def with_kills(
    loader: StatefulGPULoader[Any], epochs: int, kills: dict[int, tuple[int, ...]]
) -> list[list[Any]]:
    """Deliver whole epochs, and kill workers after given numbers of batches of each epoch."""
    found = []
    for _ in range(epochs):
        delivered: list[Any] = []
        batches = iter(loader)
        while True:
            try:
                delivered.append(copy_of(next(batches)))
            except StopIteration:
                break
            victims = kills.get(len(delivered))
            if victims and batches._workers:
                kill(batches, *victims)
        found.append(delivered)
    return found


def uninterrupted_batches(make: Make, epochs: int, **arguments: Any) -> list[list[Any]]:
    """Return the epochs of a loader whose workers all survive."""
    loader = make(**arguments)
    return [[copy_of(batch) for batch in loader] for _ in range(epochs)]


def deliver_quietly(batches: Any, delivered: list[Any]) -> None:
    """Append batches to ``delivered`` until ``next`` raises. Call it in catch_warnings()."""
    warnings.simplefilter("ignore")
    while True:
        delivered.append(copy_of(next(batches)))


class KillsItself(Noisy):
    """Its process dies when it reads one index, once for each file in a directory."""

    def __init__(self, length: int, index: int, lives: Path, how: str = "kill") -> None:
        super().__init__(length)
        self.index, self.lives, self.how = index, lives, how

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.index:
            for life in sorted(self.lives.iterdir()):
                life.unlink()
                if self.how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.how == "exit":
                    os._exit(3)
                threading.Event().wait()
        return super().__getitem__(index)


def lives(path: Path, count: int) -> Path:
    """Return a directory of ``count`` lives that ``KillsItself`` loses."""
    path.mkdir()
    for number in range(count):
        (path / f"{number:03d}").touch()
    return path

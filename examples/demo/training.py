"""The training job: a process that is unaware of the kills.

``python -m examples.demo.training '<a Job as JSON>'`` trains a small convolutional network. It
writes a checkpoint every few steps, resumes from an existing checkpoint, and prints its
:mod:`~examples.demo.events`. Everything but the loader is deterministic.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import nn

from examples.demo.events import Event, Finished, Saved, Started, Step, to_line
from examples.demo.loaders import LOADERS, SEED


@dataclass(frozen=True, kw_only=True)
class Job:
    """Task of one process."""

    loader: str
    """Key in ``LOADERS``."""
    photographs: str
    """Folder of class folders."""
    folder: str
    """Folder for the checkpoint and the kept batch."""
    num_workers: int
    num_epochs: int
    checkpoint_every: int
    """Steps between checkpoints."""
    kept_step: int
    """Step whose batch is written to :attr:`kept_batch`."""
    kept_batch: str
    """File name within the folder."""

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Job:
        """Read back :meth:`to_text`."""
        return cls(**json.loads(text))


def train(job: Job, tell: Callable[[Event], None]) -> None:
    """Train from the last checkpoint, or from the start, to the end of the last epoch."""
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = small_network(num_classes=len(os.listdir(job.photographs)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = LOADERS[job.loader](Path(job.photographs), job.num_workers)
    checkpoint = Path(job.folder, "checkpoint.pt")

    first_epoch, step = 0, 0
    began = time.perf_counter()
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["generator"])
        first_epoch, step = saved["epoch"], saved["step"]
        began = time.perf_counter()
        loader.load_state_dict(saved["loader"])

    first_step = step
    for epoch, (images, targets) in _batches(loader, range(first_epoch, job.num_epochs)):
        if step == first_step:
            tell(Started(step=step, seconds=time.perf_counter() - began))
        if step == job.kept_step:
            _write([images, targets], Path(job.folder, job.kept_batch))
        loss = nn.functional.cross_entropy(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tell(
            Step(
                epoch=epoch,
                step=step,
                labels=digest([targets]),
                pixels=digest([images]),
                loss=float(loss).hex(),
            )
        )
        step += 1
        if step % job.checkpoint_every == 0:
            state = loader.state_dict()
            parts = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "generator": torch.get_rng_state(),
                "loader": state,
                "epoch": epoch,
                "step": step,
            }
            _write(parts, checkpoint)
            tell(Saved(step=step, state_bytes=len(pickle.dumps(state))))
    tell(Finished(weights=digest(model.state_dict().values())))


def small_network(num_classes: int) -> nn.Module:
    """Return a network of three convolutions; a batch takes about 10 ms on one core."""
    widths = (3, 16, 32, 64)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [
            nn.Conv2d(inputs, outputs, kernel_size=3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], num_classes)]
    return nn.Sequential(*layers)


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Return a digest of every bit of CPU tensors, and of their shapes and dtypes."""
    total = blake2b(digest_size=16)
    for tensor in tensors:
        total.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().contiguous().numpy().tobytes())
    return total.hexdigest()


def _batches(loader: Any, epochs: Iterable[int]) -> Iterator[tuple[int, Any]]:
    for epoch in epochs:
        for batch in loader:
            yield epoch, batch


def _write(value: Any, path: Path) -> None:
    """Write atomically: a kill in between leaves the former file."""
    unfinished = path.with_name(path.name + ".unfinished")
    torch.save(value, unfinished)
    os.replace(unfinished, path)


def _print(event: Event) -> None:
    """Print an event; after a step wait until it was read, so that a kill takes effect at once."""
    sys.stdout.write(to_line(event))
    sys.stdout.flush()
    if isinstance(event, Step):
        sys.stdin.readline()


if __name__ == "__main__":
    train(Job.from_text(sys.argv[1]), _print)

"""A training loop as in Accelerate's documentation, interrupted and resumed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch.utils.data import IterableDataset

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.engine.torch_names import size_and_rank
from stateful_gpu_loader.integrations.accelerate import prepare_loader
from tests.trainer_data import Brightness, Seen, image_loader, photos, samples_of, seen, tars

EPOCHS = 2


@dataclass
class Trained:
    """Record of a loop."""

    batches: list[list[Seen]] = field(default_factory=list)
    """Batches of each epoch."""
    syncs: list[bool] = field(default_factory=list)
    """Whether the optimizer made a step, for each batch."""
    weights: list[float] = field(default_factory=list)
    """Final weights."""

    @property
    def all_batches(self) -> list[Seen]:
        return [batch for epoch in self.batches for batch in epoch]


class Progress:
    """The epoch, as a user keeps it."""

    epoch = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]


def new_accelerator(**arguments: Any) -> Accelerator:
    """Return the accelerator of a new process, which keeps a group of ranks, if there is one."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    return Accelerator(cpu=True, **arguments)


def train(
    make_loader: Callable[[], StatefulGPULoader[Any]],
    *,
    accumulated: int = 1,
    save: tuple[int, Path] | None = None,
    after_epoch: bool = False,
    resume: Path | None = None,
    epochs: int = EPOCHS,
    skip: Callable[[Accelerator, Any, int], Any] | None = None,
    record: Callable[[Any], Any] = seen,
    killed: bool = False,
) -> Trained:
    """Train; save after a number of the job's batches or epochs, and break off."""
    accelerator = new_accelerator(gradient_accumulation_steps=accumulated)
    model = Brightness()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = prepare_loader(accelerator, make_loader())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    progress, trained, step = Progress(), Trained(), 0
    accelerator.register_for_checkpointing(progress)
    if resume is not None:
        accelerator.load_state(str(resume))
    for epoch in range(progress.epoch, epochs):
        progress.epoch = epoch
        loader.set_epoch(epoch)
        trained.batches.append([])
        batches = loader if skip is None else skip(accelerator, loader, epoch)
        for images, numbers in batches:
            with accelerator.accumulate(model):
                accelerator.backward(model(images))
                optimizer.step()
                optimizer.zero_grad()
            trained.batches[-1].append(record([images, numbers]))
            trained.syncs.append(accelerator.sync_gradients)
            step += 1
            if save is not None and not after_epoch and step == save[0]:
                _save(accelerator, save[1])
                if killed:
                    os.kill(os.getpid(), signal.SIGKILL)
                return trained
        progress.epoch = epoch + 1
        if save is not None and after_epoch and epoch + 1 == save[0]:
            _save(accelerator, save[1])
            return trained
    trained.weights = [
        value.item() for one in model.parameters() for value in one.detach().flatten()
    ]
    accelerator.free_memory()
    return trained


def job(
    dataset: Any,
    folder: Path,
    *,
    save_at: int | None = None,
    resume: int | None = None,
    killed: bool = False,
) -> tuple[list[Any], list[float]]:
    """See tests/integrations/test_trainers_on_ranks.py."""
    trained = train(
        lambda: image_loader(dataset, batch_size=8 // size_and_rank()[0]),
        accumulated=2,
        record=samples_of,
        save=None if save_at is None else (save_at, folder / str(save_at)),
        resume=None if resume is None else folder / str(resume),
        killed=killed,
    )
    return trained.all_batches, trained.weights


def _save(accelerator: Accelerator, folder: Path) -> None:
    accelerator.save_state(str(folder))
    accelerator.wait_for_everyone()


class Endless(IterableDataset[Any]):
    """Photographs without a length."""

    def __init__(self, folder: Path) -> None:
        self.samples = list(image_loader(photos(folder, 14), batch_size=None, shuffle=False))

    def __iter__(self) -> Any:
        return iter(self.samples)


def dataset_of(kind: str, folder: Path) -> Any:
    """Return photographs of a known number, in lanes (equal or not), or from an iterable."""
    if kind == "iterable":
        return Endless(folder)
    if kind.endswith("lanes"):
        return tars(folder, (8, 8, 8, 8) if kind == "even lanes" else (5, 8, 3, 8))
    return photos(folder, 32 if kind == "even map" else 26)


def loader_of(kind: str, folder: Path, **arguments: Any) -> Callable[[], StatefulGPULoader[Any]]:
    """Return a new loader with each call."""
    dataset = dataset_of(kind, folder)
    if kind == "iterable":
        return lambda: StatefulGPULoader(dataset, batch_size=4, seed=1)
    return lambda: image_loader(dataset, **arguments)

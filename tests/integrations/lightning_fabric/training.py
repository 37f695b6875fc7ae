"""A training loop as in Fabric's documentation, which records its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from lightning.fabric import Fabric
from torch.utils.data import IterableDataset, get_worker_info

from stateful_gpu_loader.integrations.fabric import setup_dataloaders
from tests.trainer_data import Brightness, samples_of

EPOCHS = 3
END = -1
"""Stands for a number of batches: after the epoch's loop."""

Samples: TypeAlias = list[tuple[int, str]]
"""Number of each sample of one batch, and a digest of its pixels."""
SetUp: TypeAlias = Callable[..., Any]


class Interrupted(Exception):
    """The job ends here."""


@dataclass
class Record:
    """Record of a run: its batches and its end."""

    batches: list[tuple[int, Samples]] = field(default_factory=list)
    """Batches with the epoch of the training loop."""
    weights: list[float] = field(default_factory=list)

    def steps(self, epoch: int) -> list[Samples]:
        return [samples for of_epoch, samples in self.batches if of_epoch == epoch]


def built_in(fabric: Fabric, loader: Any) -> Any:
    return fabric.setup_dataloaders(loader)


def adapted(fabric: Fabric, loader: Any) -> Any:
    return setup_dataloaders(fabric, loader)


def one_process() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def on_all_ranks(num_ranks: int, strategy: Any = "ddp") -> Fabric:
    """Run on all ranks, in the existing process group."""
    fabric = Fabric(accelerator="cpu", devices=num_ranks, strategy=strategy)
    fabric.launch()
    return fabric


def train(
    fabric: Fabric,
    set_up: SetUp,
    loader: Any,
    *,
    save_to: Path | None = None,
    stop: tuple[int, int] | None = None,
    resume_from: Path | None = None,
    accumulate: int = 1,
    epochs: int = EPOCHS,
    after_saving: Callable[[Record], None] | None = None,
) -> Record:
    """Train, from a checkpoint or from the beginning, to the end or to the interruption.

    Args:
        stop: an epoch and the number of its batches after which the run saves and fails.
        accumulate: batches of one optimizer step; an epoch's last step may have fewer.
        after_saving: called instead of raising.
    """
    record = Record()
    model, optimizer = fabric.setup(*_model())
    batches = set_up(fabric, loader)
    state = {"loader": batches, "model": model, "optimizer": optimizer, "epoch": 0, "batch": 0}
    if resume_from is not None:
        fabric.load(resume_from, state)

    def save_and_stop() -> None:
        fabric.save(save_to, state)
        if after_saving is not None:
            after_saving(record)
        raise Interrupted

    try:
        for epoch in range(state["epoch"], epochs):
            for number, batch in enumerate(batches, start=state["batch"] + 1):
                record.batches.append((epoch, samples_of(batch)))
                is_last = _has_len(batches) and number == len(batches)
                accumulating = bool(number % accumulate) and not is_last
                with fabric.no_backward_sync(model, enabled=accumulating):
                    fabric.backward(model(batch[0]))
                if not accumulating:
                    optimizer.step()
                    optimizer.zero_grad()
                state["batch"] = number
                if stop == (epoch, number):
                    save_and_stop()
            state["epoch"], state["batch"] = epoch + 1, 0
            if stop == (epoch, END):
                save_and_stop()
    except Interrupted:
        return record
    record.weights = [
        value for part in model.parameters() for value in part.detach().flatten().tolist()
    ]
    return record


def interrupted_and_resumed(
    make_fabric: Callable[[], Fabric],
    set_up: SetUp,
    make_loader: Callable[[], Any],
    path: Path,
    stop: tuple[int, int],
    **arguments: Any,
) -> Record:
    """Return two runs with separate objects as one record."""
    first = train(make_fabric(), set_up, make_loader(), save_to=path, stop=stop, **arguments)
    second = train(make_fabric(), set_up, make_loader(), resume_from=path, **arguments)
    return Record(first.batches + second.batches, second.weights)


def together(records: list[Record], epoch: int) -> list[list[tuple[int, str]]]:
    """Return the global batches of an epoch; the order within a batch is arbitrary."""
    steps = zip(*(record.steps(epoch) for record in records), strict=True)
    return [sorted(sample for samples in step for sample in samples) for step in steps]


class NoisyImages(IterableDataset[Any]):
    """Numbered images of noise, divided among workers, without a length."""

    def __init__(self, num_images: int) -> None:
        self.num_images = num_images

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number in range(first, self.num_images, step):
            yield torch.rand(3, 4, 4), number


class ImagesOfRank(IterableDataset[Any]):
    """Numbered images of one rank, with a state."""

    def __init__(self, num_images: int, rank: int, num_ranks: int) -> None:
        self.numbers = list(range(rank, num_images, num_ranks))
        self.next = 0

    def __iter__(self) -> Iterator[Any]:
        while self.next < len(self.numbers):
            number = self.numbers[self.next]
            self.next += 1
            yield torch.full((3, 4, 4), float(number)), number
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next, "first": self.numbers[0]}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if state["first"] != self.numbers[0]:
            raise ValueError(f"the state of another rank: {state}")
        self.next = state["next"]


def _model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = Brightness()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _has_len(loader: Any) -> bool:
    try:
        len(loader)
    except TypeError:
        return False
    return True

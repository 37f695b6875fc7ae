"""A Trainer's run of a few steps, its interruptions, and its record."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState
from transformers import TrainerCallback, TrainingArguments

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.engine.torch_names import size_and_rank
from stateful_gpu_loader.integrations.transformers import LoaderTrainer
from tests.trainer_data import Brightness, image_loader, photos, samples_of, seen, tars

EPOCHS = 2


class Broken(Exception):
    """The job ends in the middle of a step."""


def named(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a batch with the names that a model of transformers takes."""
    return {"pixel_values": batch[0], "labels": batch[1]}


class Model(torch.nn.Module):
    """Returns its loss, as models of transformers do, and draws for a dropout."""

    def __init__(
        self, breaks_at: int | None = None, *, each_sample: bool = False, killed: bool = False
    ) -> None:
        super().__init__()
        self.each_sample, self.killed = each_sample, killed
        self.brightness = Brightness()
        self.dropout = torch.nn.Dropout(0.5)
        self.batches: list[Any] = []
        self.breaks_at = breaks_at

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        """Return the loss: float32 []."""
        if self.training:
            record = samples_of if self.each_sample else seen
            self.batches.append(record([pixel_values, labels]))
            if len(self.batches) == self.breaks_at:
                if self.killed:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise Broken
        return {"loss": self.dropout(self.brightness(pixel_values).reshape(1)).sum()}


class Saving(TrainerCallback):
    """Saves in the middle of the step after ``step``, as the Trainer does at a SIGTERM.

    The checkpoint is kept as kept-N, since the step's own end may write checkpoint-N.
    """

    def __init__(self, step: int, event: str, folder: Path) -> None:
        self.step, self.folder = step, folder
        self.trainer: Any = None
        setattr(self, event, self.save)

    def save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        kept = self.folder / f"kept-{self.step}"
        if state.global_step == self.step and not kept.exists():
            self.trainer._save_checkpoint(self.trainer.model, trial=None)
            shutil.copytree(self.folder / f"checkpoint-{self.step}", kept)


@dataclass
class Fitted:
    """Record of a Trainer's run."""

    batches: list[Any] = field(default_factory=list)
    steps: int = 0
    weights: list[float] = field(default_factory=list)
    epoch: float | None = None


def arguments(folder: Path, **given: Any) -> TrainingArguments:
    """Return arguments of a run on the CPU that reports nothing."""
    quiet = {"report_to": "none", "disable_tqdm": True, "logging_strategy": "no"}
    chosen = {
        "use_cpu": True,
        "num_train_epochs": EPOCHS,
        "learning_rate": 0.1,
        "save_strategy": "steps",
        "save_steps": 1,
        **quiet,
        **given,
    }
    return TrainingArguments(str(folder), **chosen)


def fit(
    loader: StatefulGPULoader[Any],
    folder: Path,
    *,
    resume: bool | str | None = None,
    breaks_at: int | None = None,
    callbacks: tuple[TrainerCallback, ...] = (),
    eval_dataset: Any = None,
    each_sample: bool = False,
    killed: bool = False,
    **given: Any,
) -> Fitted:
    """Train until the end, or until a batch breaks the run."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    model = Model(breaks_at, each_sample=each_sample, killed=killed)
    trainer = LoaderTrainer(
        model=model,
        args=arguments(folder, **given),
        train_loader=loader,
        eval_dataset=eval_dataset,
        callbacks=list(callbacks),
    )
    for callback in callbacks:
        if isinstance(callback, Saving):
            callback.trainer = trainer
    try:
        trainer.train(resume_from_checkpoint=resume)
    except Broken:
        return Fitted(model.batches[:-1], trainer.state.global_step)
    with torch.no_grad():
        weights = [float(value) for one in model.parameters() for value in one.flatten()]
    return Fitted(model.batches, trainer.state.global_step, weights, trainer.state.epoch)


def loader_of(kind: str, folder: Path, **given: Any) -> Callable[[], StatefulGPULoader[Any]]:
    """Return a new loader with each call: of 7 batches an epoch, or in lanes of 6."""
    given = {"batch_transform": named, **given}
    dataset: Any = tars(folder) if kind == "lanes" else photos(folder, 26)
    return lambda: image_loader(dataset, **given)


def job(
    dataset: Any,
    folder: Path,
    *,
    save_at: int | None = None,
    resume: int | None = None,
    killed: bool = False,
) -> tuple[list[Any], list[float]]:
    """See tests/integrations/test_trainers_on_ranks.py."""
    num_ranks, _ = size_and_rank()
    loader = image_loader(dataset, batch_size=8 // num_ranks, batch_transform=named)
    fitted = fit(
        loader,
        folder,
        resume=None if resume is None else str(folder / f"checkpoint-{resume}"),
        breaks_at=None if save_at is None else save_at + 1,
        killed=killed,
        each_sample=True,
        max_steps=8,
        **({"save_strategy": "no"} if save_at is None else {"save_steps": save_at}),
        **({"ddp_backend": "gloo"} if num_ranks > 1 else {}),
    )
    return fitted.batches, fitted.weights

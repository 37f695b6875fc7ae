"""Fits that write down every batch that was trained on, in the checkpoint, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint

from tests.trainer_data import Brightness, seen

OF_LIGHTNING = (
    "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning",
    "ignore:.*isinstance.treespec, LeafSpec:FutureWarning",
    "ignore:Be aware that when using `ckpt_path`:UserWarning",
    "ignore:Checkpoint directory .* exists and is not empty:UserWarning",
    "ignore:The dirpath has changed from:UserWarning",
    "ignore:Your `IterableDataset` has `__len__` defined:UserWarning",
)
"""Warnings of Lightning's own, for a module's ``pytestmark``."""


class Interrupted(Exception):
    """Ends a fit in the middle of a step, as an error of the user's would."""


class Recorder(LightningModule):
    """Trains :class:`Brightness`; ``seen`` travels in the checkpoint, so a resumed fit goes on.

    Args:
        fails_at: number of the training batch, from 0, in whose step an exception is raised.
        make_loader: the loader of the hook ``train_dataloader``.
        asks_for_steps: whether ``configure_optimizers`` asks for ``estimated_stepping_batches``.
    """

    def __init__(
        self,
        *,
        fails_at: int | None = None,
        make_loader: Callable[[], Any] | None = None,
        asks_for_steps: bool = False,
    ) -> None:
        super().__init__()
        self.model = Brightness()
        self.seen: list[Any] = []
        self.validated: list[Any] = []
        self.fails_at = fails_at
        self.asks_for_steps = asks_for_steps
        if make_loader is not None:
            self.train_dataloader = make_loader

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """The mean brightness of all the batch's images."""
        if len(self.seen) == self.fails_at:
            raise Interrupted(f"in the step of batch {self.fails_at}")
        parts = batch if _holds_batches(batch) else [batch]
        loss = torch.stack([self.model(part[0]) for part in parts if part is not None]).mean()
        written = [None if part is None else seen(part) for part in parts]
        self.seen.append(tuple(written) if _holds_batches(batch) else written[0])
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Nothing is learned from it."""
        self.validated.append(seen(batch))

    def configure_optimizers(self) -> Any:
        """SGD; the learning rate depends on the number of steps, if that is asked for."""
        steps = int(self.trainer.estimated_stepping_batches) if self.asks_for_steps else 10
        return torch.optim.SGD(self.parameters(), lr=1 / steps)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """What was trained on until now."""
        checkpoint["seen"] = list(self.seen)
        checkpoint["validated"] = list(self.validated)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """What was trained on before."""
        self.seen = list(checkpoint["seen"])
        self.validated = list(checkpoint["validated"])

    def weights(self) -> list[list[float]]:
        """Of the model, to be compared."""
        return [weights.flatten().tolist() for weights in self.parameters()]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training of three epochs that can be begun again and again."""

    make: Callable[[], Any] = lambda: None
    """What ``fit`` is given: a loader, several, a LightningDataModule; None is the hook's."""
    recorder: type[Recorder] = Recorder
    model: dict[str, Any] = field(default_factory=dict)
    """Arguments of the recorder."""
    trainer: dict[str, Any] = field(default_factory=dict)
    """Arguments of the Trainer."""
    validation: Callable[[], Any] = lambda: None
    """The validation loader that ``fit`` is given."""

    def run(
        self,
        *callbacks: Callback,
        resume: Path | None = None,
        fails_at: int | None = None,
        **changes: Any,
    ) -> Recorder:
        """A new model, loader and trainer; until its end, or until batch ``fails_at`` raises."""
        model = self.recorder(fails_at=fails_at, **self.model)
        trainer = silent_trainer(*callbacks, **{**self.trainer, **changes})
        try:
            trainer.fit(model, self.make(), self.validation(), ckpt_path=resume, weights_only=True)
        except Interrupted:
            assert fails_at is not None
        return model


def silent_trainer(*callbacks: Callback, **arguments: Any) -> Trainer:
    """On one CPU, of three epochs, silent."""
    given: dict[str, Any] = {
        "max_epochs": 3,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(one, Checkpoint) for one in callbacks),
        "num_sanity_val_steps": 0,
        "callbacks": list(callbacks),
        **arguments,
    }
    return Trainer(**given)


def every_step(folder: Path, steps: int = 1) -> ModelCheckpoint:
    """``step=1.ckpt``, ``step=2.ckpt``, ... in ``folder``: one each so many optimizer steps."""
    return ModelCheckpoint(folder, "{step}", every_n_train_steps=steps, save_top_k=-1)


def every_epoch(folder: Path) -> ModelCheckpoint:
    """``step=6.ckpt``, ``step=12.ckpt``, ... at the ends of the epochs."""
    return ModelCheckpoint(
        folder, "{step}", every_n_epochs=1, save_top_k=-1, save_on_train_epoch_end=True
    )


def places(undisturbed: list[Any], found: list[Any]) -> list[int | None]:
    """Which of the undisturbed run's batches, by number, each of the other's was; None: none."""
    known = {batch: number for number, batch in enumerate(undisturbed)}
    return [known.get(batch) for batch in found]


def _holds_batches(batch: Any) -> bool:
    return not isinstance(batch[0], torch.Tensor)

"""Checkpoints from every hook of a fit, and what the fits that resume them are given."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from stateful_gpu_loader.integrations.lightning import LoaderStateCallback
from tests.integrations.lightning.recorded_fits import OF_LIGHTNING, silent_trainer
from tests.trainer_data import seen

__all__ = ["OF_LIGHTNING", "Witness", "assert_exact_from_every_hook", "fit", "saved_everywhere"]

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # a line of each of many trainers

HOOKS = [
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_validation_start",
    "on_validation_epoch_start",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_validation_epoch_end",
    "on_validation_end",
    "on_train_end",
]


class Witness(LightningModule):
    """Writes down every batch with its epoch, its number, and how far training was.

    Both lists travel in the checkpoint, so a fit that resumes one goes on with them.

    Args:
        asks_for_steps: whether ``configure_optimizers`` asks for ``estimated_stepping_batches``.
        fails_at: training batches of this fit before one whose step raises.
    """

    def __init__(self, *, asks_for_steps: bool = False, fails_at: int | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.trained: list[Any] = []
        self.validated: list[Any] = []
        self.asks_for_steps = asks_for_steps
        self.fails_at = fails_at

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """The loss depends on what was in the batch."""
        if len(self.trained) == self.fails_at:
            raise RuntimeError("a step failed")
        told = what_was(batch)
        self.trained.append((self.trainer.current_epoch, batch_idx, told))
        return (self.weight - zlib.crc32(repr(told).encode()) % 97) ** 2

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Nothing is learned from it."""
        if not self.trainer.sanity_checking:
            place = (len(self.trained), dataloader_idx, batch_idx)
            self.validated.append((*place, what_was(batch)))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Nothing is learned from it."""

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """The batch."""
        return batch

    def configure_optimizers(self) -> Any:
        """SGD."""
        steps = int(self.trainer.estimated_stepping_batches) if self.asks_for_steps else 10
        return torch.optim.SGD(self.parameters(), lr=0.1 / max(steps, 10))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """What was seen until now."""
        checkpoint |= {"trained": list(self.trained), "validated": list(self.validated)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """What was seen before."""
        self.trained = list(checkpoint["trained"])
        self.validated = list(checkpoint["validated"])


def what_was(batch: Any) -> Any:
    """Of every loader in a batch: the numbers of the samples, and what was drawn for them."""
    if isinstance(batch, dict):
        if "index" in batch:
            return tuple(batch["index"].tolist()), tuple(batch["torch"].flatten().tolist())
        return tuple((key, what_was(part)) for key, part in batch.items())
    if isinstance(batch, (list, tuple)) and batch and torch.is_tensor(batch[0]):
        return seen(batch)
    if isinstance(batch, (list, tuple)):
        return tuple(what_was(part) for part in batch)
    return tuple(batch.flatten().tolist()) if torch.is_tensor(batch) else batch


def _saving(hook: str) -> Callable[..., None]:
    def save(self: Any, trainer: Trainer, *arguments: Any) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            path = self.folder / f"{len(self.paths):03d}_{hook}.ckpt"
            trainer.save_checkpoint(path)
            self.paths.append(path)

    return save


class Everywhere(Callback):
    """Saves at every hook; it comes before LoaderStateCallback, whose hooks have not run then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: list[Path] = []


for name in HOOKS:
    setattr(Everywhere, name, _saving(name))


def fit(
    make: Callable[[], Any],
    *callbacks: Callback,
    validation: Callable[[], Any] = lambda: None,
    resume: Path | None = None,
    witness: Witness | None = None,
    **arguments: Any,
) -> Witness:
    """A new trainer and new loaders, with LoaderStateCallback, until the end of the fit."""
    witness = witness or Witness()
    trainer = silent_trainer(*callbacks, LoaderStateCallback(), **arguments)
    trainer.fit(witness, make(), validation(), ckpt_path=resume, weights_only=True)
    return witness


def saved_everywhere(folder: Path, make: Callable[[], Any], **fit_arguments: Any) -> list[Path]:
    """The checkpoints of a fit, from every hook."""
    everywhere = Everywhere(folder)
    fit(make, everywhere, **fit_arguments)
    return everywhere.paths


def assert_exact_from_every_hook(
    folder: Path,
    make: Callable[[], Any],
    *,
    every: int = 1,
    asks_for_steps: bool = False,
    num_checkpoints: int = 20,
    kind: type[Witness] = Witness,
    **arguments: Any,
) -> None:
    """Resume each checkpoint; compare with a fit that was neither interrupted nor saved.

    Epoch, batch number, samples and pixels of every batch of training and validation, and the
    weights at the end.

    Args:
        every: only every so-manieth checkpoint.
        num_checkpoints: there are at least so many.
        kind: of the witnesses.
        arguments: of :func:`fit`.
    """
    undisturbed = fit(make, witness=kind(asks_for_steps=asks_for_steps), **arguments)
    witness = kind(asks_for_steps=asks_for_steps)
    paths = saved_everywhere(folder, make, witness=witness, **arguments)
    assert len(paths) >= num_checkpoints
    for path in paths[::every]:
        witness = kind(asks_for_steps=asks_for_steps)
        resumed = fit(make, resume=path, witness=witness, **arguments)
        assert resumed.trained == undisturbed.trained, path.name
        assert resumed.validated == undisturbed.validated, path.name
        if arguments.get("accumulate_grad_batches", 1) == 1:
            assert torch.equal(resumed.weight, undisturbed.weight), path.name

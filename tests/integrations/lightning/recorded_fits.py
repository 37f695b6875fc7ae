"""Fits that record every training and validation batch, also in checkpoints."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint

from stateful_gpu_loader.integrations.lightning import LoaderStateCallback
from tests.trainer_data import seen

OF_LIGHTNING = (
    "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning",
    "ignore:.*isinstance.treespec, LeafSpec:FutureWarning",
    "ignore:Be aware that when using `ckpt_path`:UserWarning",
    "ignore:Checkpoint directory .* exists and is not empty:UserWarning",
    "ignore:The dirpath has changed from:UserWarning",
    "ignore:Your `IterableDataset` has `__len__` defined:UserWarning",
    "ignore:`.fit.ckpt_path=None.` was called without a model",
    "ignore:.*is set, but there is no last checkpoint available",
)
"""Lightning's own warnings, for a module's ``pytestmark``."""
READS_AGAIN = "ignore:.* samples of the iterable dataset are read again"
"""The loader's warning about streams without a state, whose beginning must be read again."""

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # each trainer would log a line

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
    """Records every batch with its epoch, its number, and the progress of the training.

    Both lists travel in the checkpoint, so a resumed fit continues them.

    Args:
        asks_for_steps: whether ``configure_optimizers`` reads ``estimated_stepping_batches``.
        fails_at: number of training batches of this fit before the step that raises.
    """

    def __init__(self, *, asks_for_steps: bool = False, fails_at: int | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.trained: list[Any] = []
        self.validated: list[Any] = []
        self.asks_for_steps = asks_for_steps
        self.fails_at = fails_at

    @property
    def seen(self) -> list[Any]:
        """Content of each training batch, however Lightning counts it."""
        return [batch for _, _, batch in self.trained]

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Return a loss that depends on the content of the batch."""
        if len(self.trained) == self.fails_at:
            raise RuntimeError("a step failed")
        num_ended = identity_of(batch)
        self.trained.append((self.trainer.current_epoch, batch_idx, num_ended))
        return (self.weight - zlib.crc32(repr(num_ended).encode()) % 97) ** 2

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Record the batch; learn nothing."""
        if not self.trainer.sanity_checking:
            place = (len(self.trained), dataloader_idx, batch_idx)
            self.validated.append((*place, identity_of(batch)))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Learn nothing."""

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the batch."""
        return batch

    def configure_optimizers(self) -> Any:
        """Return SGD."""
        steps = int(self.trainer.estimated_stepping_batches) if self.asks_for_steps else 10
        return torch.optim.SGD(self.parameters(), lr=0.1 / max(steps, 10))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the record."""
        checkpoint |= {"trained": list(self.trained), "validated": list(self.validated)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Load the record."""
        self.trained = list(checkpoint["trained"])
        self.validated = list(checkpoint["validated"])


def identity_of(batch: Any) -> Any:
    """Return the numbers of the samples and their draws, for each loader in a batch."""
    if isinstance(batch, dict):
        if "index" in batch:
            return tuple(batch["index"].tolist()), tuple(batch["torch"].flatten().tolist())
        return tuple((key, identity_of(part)) for key, part in batch.items())
    if isinstance(batch, (list, tuple)) and batch and torch.is_tensor(batch[0]):
        return seen(batch)
    if isinstance(batch, (list, tuple)):
        return tuple(identity_of(part) for part in batch)
    return tuple(batch.flatten().tolist()) if torch.is_tensor(batch) else batch


def silent_trainer(*callbacks: Callback, **arguments: Any) -> Trainer:
    """Return a silent trainer for three epochs on one CPU."""
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


def fit(
    make: Callable[[], Any],
    *callbacks: Callback,
    validation: Callable[[], Any] = lambda: None,
    resume: Path | None = None,
    witness: Witness | None = None,
    built_in: bool = False,
    **arguments: Any,
) -> Witness:
    """Fit a new trainer with new loaders to the end.

    Args:
        make: argument of ``fit``: a loader, several, or a LightningDataModule. None for the hook.
        built_in: without LoaderStateCallback.
        arguments: arguments of the Trainer.
    """
    witness = witness or Witness()
    ours = [] if built_in else [LoaderStateCallback()]
    trainer = silent_trainer(*callbacks, *ours, **arguments)
    trainer.fit(witness, make(), validation(), ckpt_path=resume, weights_only=True)
    return witness


def every_step(folder: Path, steps: int = 1) -> ModelCheckpoint:
    """Save ``step=1.ckpt``, ``step=2.ckpt``, ... in ``folder``, one every ``steps`` steps."""
    return ModelCheckpoint(folder, "{step}", every_n_train_steps=steps, save_top_k=-1)


def every_epoch(folder: Path) -> ModelCheckpoint:
    """Save ``step=6.ckpt``, ``step=12.ckpt``, ... at the ends of the epochs."""
    return ModelCheckpoint(
        folder, "{step}", every_n_epochs=1, save_top_k=-1, save_on_train_epoch_end=True
    )


def assert_same(found: Witness, uninterrupted: Witness, place: object = "") -> None:
    """Compare epoch, number, samples and pixels of all batches, and the final weights."""
    assert found.trained == uninterrupted.trained, place
    assert found.validated == uninterrupted.validated, place
    assert torch.equal(found.weight, uninterrupted.weight), place


def _saving(hook: str) -> Callable[..., None]:
    def save(self: Any, trainer: Trainer, *arguments: Any) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            path = self.folder / f"{len(self.paths):03d}_{hook}.ckpt"
            trainer.save_checkpoint(path)
            self.paths.append(path)

    return save


class Everywhere(Callback):
    """Saves at every hook; it comes before LoaderStateCallback, whose hooks have not run yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: list[Path] = []


for name in HOOKS:
    setattr(Everywhere, name, _saving(name))


def saved_everywhere(folder: Path, make: Callable[[], Any], **fit_arguments: Any) -> list[Path]:
    """Return the checkpoints of a fit, from every hook."""
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
    """Resume each checkpoint; compare with an uninterrupted fit without checkpoints.

    Args:
        every: use every n-th checkpoint only.
        num_checkpoints: minimum number of checkpoints.
        kind: type of the witnesses.
        arguments: arguments of :func:`fit`.
    """
    uninterrupted = fit(make, witness=kind(asks_for_steps=asks_for_steps), **arguments)
    witness = kind(asks_for_steps=asks_for_steps)
    paths = saved_everywhere(folder, make, witness=witness, **arguments)
    assert len(paths) >= num_checkpoints
    for path in paths[::every]:
        witness = kind(asks_for_steps=asks_for_steps)
        resumed = fit(make, resume=path, witness=witness, **arguments)
        if arguments.get("accumulate_grad_batches", 1) > 1:
            resumed.weight = uninterrupted.weight  # a checkpoint has no gradients
        assert_same(resumed, uninterrupted, path.name)

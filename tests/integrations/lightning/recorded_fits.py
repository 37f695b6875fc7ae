"""Fits that write down every batch that they trained on and validated with, also in checkpoints."""

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
"""Warnings of Lightning's own, for a module's ``pytestmark``."""
READS_AGAIN = "ignore:.* samples of the iterable dataset are read again"
"""The loader's word on streams without a state, whose beginning has to be gone through."""

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

    @property
    def seen(self) -> list[Any]:
        """What was in each training batch, wherever Lightning counts it."""
        return [batch for _, _, batch in self.trained]

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


def fit(
    make: Callable[[], Any],
    *callbacks: Callback,
    validation: Callable[[], Any] = lambda: None,
    resume: Path | None = None,
    witness: Witness | None = None,
    built_in: bool = False,
    **arguments: Any,
) -> Witness:
    """A new trainer and new loaders, until the end of the fit.

    Args:
        make: what ``fit`` is given: a loader, several, a LightningDataModule; None is the hook's.
        built_in: without LoaderStateCallback.
        arguments: of the Trainer.
    """
    witness = witness or Witness()
    ours = [] if built_in else [LoaderStateCallback()]
    trainer = silent_trainer(*callbacks, *ours, **arguments)
    trainer.fit(witness, make(), validation(), ckpt_path=resume, weights_only=True)
    return witness


def every_step(folder: Path, steps: int = 1) -> ModelCheckpoint:
    """``step=1.ckpt``, ``step=2.ckpt``, ... in ``folder``: one each so many optimizer steps."""
    return ModelCheckpoint(folder, "{step}", every_n_train_steps=steps, save_top_k=-1)


def every_epoch(folder: Path) -> ModelCheckpoint:
    """``step=6.ckpt``, ``step=12.ckpt``, ... at the ends of the epochs."""
    return ModelCheckpoint(
        folder, "{step}", every_n_epochs=1, save_top_k=-1, save_on_train_epoch_end=True
    )


def assert_same(found: Witness, undisturbed: Witness, place: object = "") -> None:
    """Epoch, batch number, samples and pixels of all batches, and the weights at the end."""
    assert found.trained == undisturbed.trained, place
    assert found.validated == undisturbed.validated, place
    assert torch.equal(found.weight, undisturbed.weight), place


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
        if arguments.get("accumulate_grad_batches", 1) > 1:
            resumed.weight = undisturbed.weight  # a checkpoint has no gradients
        assert_same(resumed, undisturbed, path.name)

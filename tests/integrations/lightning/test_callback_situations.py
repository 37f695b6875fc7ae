"""LoaderStateCallback: interruptions of fits, and sources of their loaders."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.callbacks import (
    EarlyStopping,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    Timer,
)
from lightning.pytorch.utilities import CombinedLoader

from stateful_gpu_loader.integrations.lightning import LoaderStateCallback
from tests.integrations.lightning.recorded_fits import (
    OF_LIGHTNING,
    READS_AGAIN,
    Witness,
    assert_same,
    every_step,
    fit,
    silent_trainer,
)
from tests.integrations.lightning.streams import StatefulStream, noisy, stream
from tests.patience import seconds
from tests.prepared_processes import CONTEXT

pytestmark = [pytest.mark.filterwarnings(text) for text in (*OF_LIGHTNING, READS_AGAIN)]

LOADERS: dict[str, Any] = {
    "sized": noisy,
    "unsized": stream,
    "unsized, with state": partial(stream, kind=StatefulStream),
}
each_loader = pytest.mark.parametrize("loader", LOADERS)


@cache
def whole(loader: str) -> Witness:
    """Return the uninterrupted fit."""
    return fit(LOADERS[loader])


@each_loader
@pytest.mark.parametrize("steps", [3, 5, 8])
def test_max_steps_then_more(loader: str, steps: int, tmp_path: Path) -> None:
    """Lightning counts the epoch that max_steps cut short as complete; it still continues."""
    make = LOADERS[loader]
    fit(make, ModelCheckpoint(tmp_path, "a", save_on_train_epoch_end=True), max_steps=steps)
    more = {"max_steps": 15} if steps == 5 else {}
    assert_same(fit(make, resume=tmp_path / "a.ckpt", **more), whole(loader))


@each_loader
@pytest.mark.parametrize("number", [0, 3, 4, 5])
def test_exception_in_a_step(loader: str, number: int, tmp_path: Path) -> None:
    """The batch of the failed step comes again."""
    make = LOADERS[loader]
    with pytest.raises(RuntimeError, match="a step failed"):
        fit(make, OnExceptionCheckpoint(tmp_path), witness=Witness(fails_at=number))
    resumed = fit(make, resume=tmp_path / "on_exception.ckpt")
    assert len(resumed.trained) == 15
    assert_same(resumed, whole(loader))


class FailingTransfer(Witness):
    """Loses a batch on its way to the device, before Lightning counts it."""

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        """Raise at the batch after the seventh."""
        if len(self.trained) == self.fails_at:
            raise RuntimeError("a step failed")
        return batch


@each_loader
@pytest.mark.parametrize("number", [2, 4])
def test_exception_on_the_way_to_the_device(loader: str, number: int, tmp_path: Path) -> None:
    make = LOADERS[loader]
    with pytest.raises(RuntimeError, match="a step failed"):
        fit(make, OnExceptionCheckpoint(tmp_path), witness=FailingTransfer(fails_at=number))
    assert_same(fit(make, resume=tmp_path / "on_exception.ckpt"), whole(loader))


class FailingValidation(Witness):
    """Raises in a validation step after a given number of batches."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Validate as the base class does, or raise."""
        if len(self.validated) == 4:
            raise RuntimeError("a step failed")
        super().validation_step(batch, batch_idx, dataloader_idx)


@pytest.mark.parametrize("validation", [partial(noisy, 12), partial(stream, 10)])
def test_exception_in_a_validation_step(validation: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a step failed"):
        fit(
            noisy,
            OnExceptionCheckpoint(tmp_path),
            validation=validation,
            witness=FailingValidation(),
        )
    resumed = fit(noisy, validation=validation, resume=tmp_path / "on_exception.ckpt")
    assert_same(resumed, fit(noisy, validation=validation))


class Stopping(Callback):
    """Asks the trainer to stop after a step."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *arguments: Any) -> None:
        """Stop, as a Timer or EarlyStopping does."""
        trainer.should_stop = trainer.should_stop or len(pl_module.trained) == self.batches


@each_loader
@pytest.mark.parametrize("batches", [3, 5, 7])
def test_stopped_in_the_middle_of_an_epoch(loader: str, batches: int, tmp_path: Path) -> None:
    """The rest of the epoch comes. With save_last, the checkpoint is of the end of the fit."""
    make = LOADERS[loader]
    last = ModelCheckpoint(tmp_path, save_last=True, save_top_k=0)
    stopped = fit(make, Stopping(batches), last)
    assert len(stopped.trained) == batches
    assert_same(fit(make, resume=tmp_path / "last.ckpt"), whole(loader))


class EpochEnds(Callback):
    """Counts the epoch ends that it is notified of."""

    num_ended = 0

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Count one."""
        self.num_ended += 1


def test_an_epoch_saved_after_its_validation_is_still_ended(tmp_path: Path) -> None:
    """Its hooks run, and write their checkpoints."""
    after_validation = ModelCheckpoint(
        tmp_path, "{step}", save_top_k=-1, save_on_train_epoch_end=False
    )
    uninterrupted = fit(noisy, after_validation, validation=partial(noisy, 12))
    ends = EpochEnds()
    path = tmp_path / "step=5.ckpt"
    assert_same(fit(noisy, ends, validation=partial(noisy, 12), resume=path), uninterrupted)
    assert ends.num_ended == 3


def test_early_stopping_and_timer(tmp_path: Path) -> None:
    early = EarlyStopping("missing", strict=False, check_on_train_epoch_end=True)
    uninterrupted = fit(noisy, every_step(tmp_path), early, Timer(timedelta(days=1)))
    path = tmp_path / "step=7.ckpt"
    assert_same(fit(noisy, Timer(timedelta(days=1)), early, resume=path), uninterrupted)


def train_until_killed(folder: Path) -> None:
    """Train in a separate process, whose last checkpoint is the fourth."""

    class Killer(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, *arguments: Any) -> None:
            if len(pl_module.trained) == 7:
                os.kill(os.getpid(), signal.SIGKILL)

    fit(partial(noisy, num_workers=2), every_step(folder, 2), Killer())


def test_sigkill(tmp_path: Path) -> None:
    # Not forked from here, because an earlier test may have started threads of autograd.
    process = CONTEXT.Process(target=train_until_killed, args=(tmp_path,))
    process.start()
    process.join(seconds(6))
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "step=8.ckpt").exists()
    assert_same(fit(noisy, resume=tmp_path / "step=6.ckpt"), whole("sized"))


class WithLoader(Witness):
    """Gets a new loader from the hook each time that Lightning asks."""

    make: Any = staticmethod(noisy)

    def train_dataloader(self) -> Any:
        """Return a new loader."""
        return self.make()

    def val_dataloader(self) -> Any:
        """Return a new loader."""
        return stream(10)


class Streaming(WithLoader):
    """Uses an iterable dataset."""

    make = staticmethod(stream)


class Data(LightningDataModule):
    """A LightningDataModule with the loaders."""

    def train_dataloader(self) -> Any:
        """Return a new loader."""
        return noisy()

    def val_dataloader(self) -> Any:
        """Return a new loader."""
        return stream(10)


@pytest.mark.parametrize("kind", [WithLoader, Streaming])
def test_reload_dataloaders_every_n_epochs(kind: Any, tmp_path: Path) -> None:
    """A rebuilt loader continues with the trainer's epoch: it draws what one loader would."""
    arguments: dict[str, Any] = {"max_epochs": 4}
    one = fit(lambda: None, every_step(tmp_path / "0"), witness=kind(), **arguments)
    for epochs, steps in ((0, (5,)), (1, (2, 5, 8)), (2, (5, 8, 15))):
        folder, arguments["reload_dataloaders_every_n_epochs"] = tmp_path / f"{epochs}", epochs
        if epochs:
            found = fit(lambda: None, every_step(folder), witness=kind(), **arguments)
            assert_same(found, one)
        for step in steps:
            path = folder / f"step={step}.ckpt"
            assert_same(fit(lambda: None, witness=kind(), resume=path, **arguments), one)


@pytest.mark.parametrize("source", ["argument", "hook", "LightningDataModule"])
def test_where_the_loaders_come_from(source: str, tmp_path: Path) -> None:
    def run(*callbacks: Callback, resume: Path | None = None) -> Witness:
        if source == "hook":
            return fit(lambda: None, *callbacks, resume=resume, witness=WithLoader())
        if source == "argument":
            validation = partial(stream, 10)
            return fit(noisy, *callbacks, validation=validation, resume=resume)
        return fit(Data, *callbacks, resume=resume)

    uninterrupted = run(every_step(tmp_path))
    for step in (3, 5):
        assert_same(run(resume=tmp_path / f"step={step}.ckpt"), uninterrupted)


@each_loader
def test_resumed_again_and_again(loader: str, tmp_path: Path) -> None:
    """Twice in one epoch, and at the boundary."""
    make, resume = LOADERS[loader], None
    for steps in (2, 4, 5, 10, 13, 15):
        last = ModelCheckpoint(tmp_path / str(steps), "a", save_on_train_epoch_end=True)
        resumed = fit(make, last, resume=resume, max_steps=steps)
        resume = tmp_path / str(steps) / "a.ckpt"
    assert_same(resumed, whole(loader))


@each_loader
def test_resumed_at_the_boundary_without_a_step(loader: str, tmp_path: Path) -> None:
    """A checkpoint that is resumed, and saved again before any training."""
    make = LOADERS[loader]
    uninterrupted = fit(make, every_step(tmp_path))
    for step in (3, 5):
        with pytest.raises(RuntimeError, match="a step failed"):
            fit(
                make,
                OnExceptionCheckpoint(tmp_path),
                resume=tmp_path / f"step={step}.ckpt",
                witness=Witness(fails_at=step),
            )
        assert_same(fit(make, resume=tmp_path / "on_exception.ckpt"), uninterrupted)


@each_loader
def test_fit_again_with_the_same_trainer(loader: str, tmp_path: Path) -> None:
    """A second fit begins the next epoch by Lightning's count; its checkpoints are exact."""

    def twice(second: str, resume: Path | None = None) -> Witness:
        witness, data = Witness(), LOADERS[loader]()
        steps = ModelCheckpoint(tmp_path / second, "{step}", every_n_train_steps=1, save_top_k=-1)
        trainer = silent_trainer(LoaderStateCallback(), steps, max_epochs=1)
        if resume is None:
            trainer.fit(witness, data)
        trainer.fit_loop.max_epochs = 3
        trainer.fit(witness, data, ckpt_path=resume, weights_only=True)
        return witness

    uninterrupted = twice("a")
    assert len(uninterrupted.trained) == 15
    assert uninterrupted.trained == whole(loader).trained
    for step in (6, 10):
        path = tmp_path / "a" / f"step={step}.ckpt"
        assert twice(f"b{step}", resume=path).trained == uninterrupted.trained


def test_validate_test_and_predict_do_not_disturb(tmp_path: Path) -> None:
    data, witness = noisy(), Witness()
    trainer = silent_trainer(LoaderStateCallback(), every_step(tmp_path), max_epochs=1)
    trainer.fit(witness, data, noisy(12))
    before = list(witness.trained)
    for run in (trainer.validate, trainer.test, trainer.predict):
        run(witness, noisy(8, shuffle=False), ckpt_path=tmp_path / "step=3.ckpt")
    witness.trained = list(before)
    trainer.save_checkpoint(tmp_path / "after.ckpt")
    uninterrupted = fit(noisy, validation=partial(noisy, 12))
    resumed = fit(noisy, validation=partial(noisy, 12), resume=tmp_path / "after.ckpt")
    assert resumed.trained == uninterrupted.trained


def test_sequential_training_is_refused_by_lightning() -> None:
    """FitLoop.advance: "sequential" is for validation, where it is exact."""
    with pytest.raises(ValueError, match=r'does not support the `CombinedLoader.mode="sequential"'):
        fit(lambda: CombinedLoader([noisy(), noisy()], "sequential"))


@pytest.mark.filterwarnings("ignore:You requested to overfit but enabled train dataloader")
def test_overfit_batches(tmp_path: Path) -> None:
    """Lightning rebuilds the loader in the dataset's order; each epoch has the same samples."""
    uninterrupted = fit(noisy, every_step(tmp_path), overfit_batches=2)
    numbers = [batch[0] for _, _, batch in uninterrupted.trained]
    assert numbers == [(0, 1, 2, 3), (4, 5, 6, 7)] * 3
    for step in (1, 2, 5):
        path = tmp_path / f"step={step}.ckpt"
        assert_same(fit(noisy, resume=path, overfit_batches=2), uninterrupted)


def test_size_and_plain_values(tmp_path: Path) -> None:
    """About a hundred bytes per loader, which load with weights_only=True."""
    fit(noisy, every_step(tmp_path), validation=partial(noisy, 12), max_epochs=1)
    checkpoint = torch.load(tmp_path / "step=3.ckpt", weights_only=True)
    saved = checkpoint["callbacks"]["LoaderStateCallback"]
    assert len(repr(saved)) < 2 * 1000
    assert list(saved["train"]) == list(saved["val"]) == ["0"]


@pytest.mark.parametrize("loader", ["sized", "unsized"])
def test_checkpoint_of_the_callback_loads_without_it(loader: str, tmp_path: Path) -> None:
    """Lightning's own copy of the loader states is still there; it warns of the callback."""
    make = LOADERS[loader]
    uninterrupted = fit(make, every_step(tmp_path))
    witness = Witness()
    with pytest.warns(UserWarning, match="Please add the following callbacks"):
        silent_trainer().fit(witness, make(), ckpt_path=tmp_path / "step=3.ckpt", weights_only=True)
    if loader == "sized":
        assert witness.trained == uninterrupted.trained


@pytest.mark.parametrize("loader", ["sized", "unsized"])
def test_checkpoint_without_the_callback_loads_with_it(loader: str, tmp_path: Path) -> None:
    """Lightning's own state is used, and the checkpoints after it are exact."""
    make = LOADERS[loader]
    silent_trainer(every_step(tmp_path)).fit(Witness(), make())
    resumed = fit(make, every_step(tmp_path / "b"), resume=tmp_path / "step=3.ckpt")
    again = fit(make, resume=tmp_path / "b" / "step=7.ckpt")
    assert again.trained == resumed.trained
    if loader == "sized":
        assert resumed.trained == whole(loader).trained

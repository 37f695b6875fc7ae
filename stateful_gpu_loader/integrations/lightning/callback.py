"""LoaderStateCallback: the only file that imports Lightning.

Lightning saves a train loader's present state, which may lie beyond the used batches. The callback
saves the state after the used batches: Lightning counts them, and
``loader.state_dict(batches_ago=n)`` is the state before the n batches fetched beyond them. At a
resume it loads these states before Lightning fetches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stateful_gpu_loader.errors import MissingDependency, StateMismatch
from stateful_gpu_loader.integrations.lightning.records import (
    DONE,
    DUE,
    NONE,
    Saved,
    correct_counters,
)
from stateful_gpu_loader.integrations.lightning.stage import Place, Stage, load
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.state.schema import Stateful

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    try:
        from pytorch_lightning import Callback
    except ModuleNotFoundError:
        raise MissingDependency(
            "lightning", needed_for="LoaderStateCallback", extra="lightning"
        ) from None


class LoaderStateCallback(Callback):  # type: ignore[misc]
    """Makes every checkpoint of the trainer resume the loaders exactly after the last step.

    Pass it to the Trainer that saves and to the one that resumes; nothing else changes. It saves
    the state of every StatefulGPULoader among the training and validation loaders, on all
    ranks. Lightning handles other loaders.

    Raises:
        MissingDependency: neither ``lightning`` nor ``pytorch_lightning`` is installed.

    >>> from lightning.pytorch import Trainer
    >>> from lightning.pytorch.callbacks import ModelCheckpoint
    >>> callbacks = [LoaderStateCallback(), ModelCheckpoint(every_n_train_steps=100)]
    >>> trainer = Trainer(callbacks=callbacks, accelerator="cpu", logger=False)
    """

    def __init__(self) -> None:
        self._train, self._val = Stage("train"), Stage("val")
        self._forget()

    def _forget(self) -> None:
        self._saved: Saved | None = None
        """State of the resumed checkpoint, until training starts."""
        self._of_others: list[Any] = []
        """States that Lightning has saved for all train loaders."""
        self._validation = NONE

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Forget the state of an earlier fit when a fit begins."""
        if stage == "fit":
            self._forget()
            for one in (self._train, self._val):
                one.begin_fit()

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Take the state that this callback saved, and remove Lightning's state of the same
        loaders.

        Raises:
            StateMismatch: the state is damaged, or was not saved by this callback.
        """
        saved = checkpoint["callbacks"].get(self.state_key)
        if saved is None or not _is_fitting(trainer):
            return
        self._saved = Saved.from_dict(saved)
        if not trainer.enable_validation or trainer._val_check_time_interval is not None:
            # Lightning does not continue an interrupted validation.
            self._saved = replace(self._saved, validation=NONE)
        loops = checkpoint["loops"]["fit_loop"]
        correct_counters(loops, self._saved)
        self._of_others = loops["state_dict"].pop("combined_loader", [])

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Load the checkpoint's states into the loaders before a batch is used.

        Raises:
            StateMismatch: the loaders are others, or a state does not fit its loader; no loader
                was changed.
        """
        self._watch(trainer)
        if self._saved is not None:
            self._take(self._saved, trainer)
            # The batch of a failed step comes again, and val_check_interval counts it once.
            total = trainer.fit_loop.epoch_loop.batch_progress.total
            total.ready = total.started = total.processed
        # Otherwise Lightning takes an earlier fit's validation for the resumed epoch's.
        _val_loop(trainer)._has_run = False
        self._train.follow()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Follow Lightning if the user's hook has just returned other loaders."""
        if self._train.watch(trainer.fit_loop):
            self._train.follow()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note that the epoch is in progress, not an interrupted validation."""
        self._train.begin_batch(trainer)
        self._val.give_up()
        self._validation = NONE

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Note the start of the next epoch, unless this one was stopped early."""
        if self._train.is_over:
            self._train.end_run()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Move the loaders to the end of the last validation, or to a checkpoint."""
        if not _is_fitting(trainer):
            return
        loop = _val_loop(trainer)
        resumed_at = loop.batch_progress.current.ready
        self._val.watch(loop)
        if not (resumed_at or trainer.sanity_checking):
            self._val.give_up()
        load([self._val])
        self._val.follow()
        if self._val.has_to_load:
            # Lightning has counted these batches, but the new fetcher counts from 0.
            loop._data_fetcher.fetched += resumed_at
        self._validation = NONE

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Note that the validation is in progress; the batches of a sanity check come again."""
        if _is_fitting(trainer) and not trainer.sanity_checking:
            self._val.begin_batch(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Note the start of the next validation."""
        if _is_fitting(trainer):
            self._val.end_run()
            self._validation = NONE if trainer.sanity_checking else DONE

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Save the places of the loaders; Lightning calls this on all ranks."""
        saved = self._saved or self._now(trainer)
        if saved is not None:
            checkpoint["callbacks"][self.state_key] = saved.to_dict()

    def _now(self, trainer: Any) -> Saved | None:
        self._watch(trainer)
        train, val = self._train.place(), self._val.place()
        if train is None:
            return None
        validation = self._validation
        if val is not None and val.is_over:
            validation = DONE
        elif validation != DONE and (
            (trainer.validating and _is_fitting(trainer)) or _is_validation_due(trainer)
        ):
            validation = DUE
        return Saved(
            epoch=train.epoch,
            batches=train.batches,
            validated=0 if val is None else val.batches,
            validation=validation,
            train=train.records,
            val={} if val is None else val.records,
        )

    def _watch(self, trainer: Any) -> None:
        """Register the loaders; another callback may save before this hook is called."""
        if trainer.fit_loop._data_fetcher is not None:
            self._train.watch(trainer.fit_loop)
        if _val_loop(trainer)._combined_loader is not None:
            self._val.watch(_val_loop(trainer))

    def _take(self, saved: Saved, trainer: Any) -> None:
        train, val = self._train, self._val
        if saved.train:
            train.saved = Place(records=saved.train, epoch=saved.epoch, batches=saved.batches)
            train.epoch = saved.epoch
        if saved.val:
            val.saved = Place(records=saved.val, epoch=saved.epoch, batches=saved.validated)
        try:
            others = self._with_states(trainer)
            load([train, val])
        except StateMismatch:
            train.saved = val.saved = None
            raise
        for loader, state in others:
            loader.load_state_dict(state)
        self._validation, self._saved = saved.validation, None

    def _with_states(self, trainer: Any) -> list[tuple[Any, Any]]:
        """Return the other train loaders, with the states that Lightning saved for them."""
        states, self._of_others = self._of_others, []
        loaders = trainer.fit_loop._combined_loader.flattened
        if all(isinstance(loader, StatefulGPULoader) for loader in loaders):
            return []
        stateful = [loader for loader in loaders if isinstance(loader, Stateful)]
        if len(states) != len(stateful):
            raise StateMismatch(
                "number of train loaders with state",
                saved=len(states),
                present=len(stateful),
                remedy="give the trainer the loaders that the checkpoint was saved with",
            )
        return [
            (loader, state)
            for loader, state in zip(stateful, states, strict=True)
            if trainer.fit_loop.restarting and not isinstance(loader, StatefulGPULoader)
        ]


def _is_fitting(trainer: Any) -> bool:
    return bool(trainer.state.fn == "fit")


def _is_validation_due(trainer: Any) -> bool:
    """Whether Lightning has finished a training step and is about to validate."""
    loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
    batches = loop.batch_progress.current
    is_after_step = batches.ready == batches.processed == batches.completed + 1
    return bool(is_after_step and fetcher is not None and loop._should_check_val_fx(fetcher))


def _val_loop(trainer: Any) -> Any:
    return trainer.fit_loop.epoch_loop.val_loop

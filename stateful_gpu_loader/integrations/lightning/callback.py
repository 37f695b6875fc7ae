"""LoaderStateCallback: the one file that imports Lightning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stateful_gpu_loader.errors import MissingDependency, StateMismatch
from stateful_gpu_loader.integrations.lightning.progress import forget_begun_batch, put_right
from stateful_gpu_loader.integrations.lightning.records import DONE, DUE, NONE, Saved
from stateful_gpu_loader.integrations.lightning.stage import Place, Stage, check
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
    """Every checkpoint of the trainer resumes the loaders exactly behind the last step.

    Give it to the Trainer that saves and to the one that resumes; nothing else changes. It keeps
    the state of every StatefulGPULoader among the training and the validation loaders, on all
    ranks; other loaders are left to Lightning.

    Raises:
        MissingDependency: neither ``lightning`` nor ``pytorch_lightning`` is installed.

    >>> from lightning.pytorch import Trainer
    >>> from lightning.pytorch.callbacks import ModelCheckpoint
    >>> callbacks = [LoaderStateCallback(), ModelCheckpoint(every_n_train_steps=100)]
    >>> trainer = Trainer(callbacks=callbacks, accelerator="cpu", logger=False)
    """

    def __init__(self) -> None:
        self._forget()
        self._train, self._val = Stage("train"), Stage("val")

    def _forget(self) -> None:
        self._saved: Saved | None = None
        self._fetchers: dict[str, Any] = {}
        self._of_others: list[Any] = []
        self._has_validated = False
        self._validation = NONE

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """A fit begins; what an earlier one was about to resume does not count."""
        if stage == "fit":
            self._forget()
            self._train.pending = self._val.pending = None

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Take what this callback saved; what Lightning saved of the same loaders is left aside.

        Raises:
            StateMismatch: it is damaged, or none of this callback's.
        """
        saved = checkpoint["callbacks"].get(self.state_key)
        if saved is None or not _is_fitting(trainer):
            return
        self._saved = Saved.from_dict(saved)
        if not trainer.enable_validation or trainer._val_check_time_interval is not None:
            # Lightning will not go on with it.
            self._saved = replace(self._saved, validation=NONE)
        loops = checkpoint["loops"]["fit_loop"]
        put_right(loops, self._saved)
        self._of_others = loops["state_dict"].pop("combined_loader", [])

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the loaders where the checkpoint says, before a batch is asked for.

        Raises:
            StateMismatch: the loaders are others, or a state does not fit its loader; no loader
                was changed.
        """
        self._look_at(self._train, trainer.fit_loop, trainer)
        if self._saved is not None:
            self._take(self._saved, trainer)
            forget_begun_batch(_train_progress(trainer).total)
        # Else Lightning takes an earlier fit's validation for that of the epoch it resumes.
        _val_loop(trainer)._has_run = False
        self._train.follow(trainer.fit_loop._data_fetcher)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Follow loaders that Lightning has asked the user's hook for again."""
        fetcher = trainer.fit_loop._data_fetcher
        self._train.drop_spent()
        if fetcher.combined_loader is self._train.watch:
            return
        self._look_at(self._train, trainer.fit_loop, trainer)
        self._train.number_on()
        check([self._train], trainer.current_epoch)
        self._train.follow(fetcher)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """From here on the loaders say where they are."""
        self._train.begin_batch(_train_progress(trainer).current.processed)
        self._val.give_up()
        self._validation = NONE

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the loaders where the last validation, or a checkpoint, has left them."""
        if not _is_fitting(trainer):
            return
        loop, stage = _val_loop(trainer), self._val
        fetcher, resumed_at = loop._data_fetcher, loop.batch_progress.current.ready
        self._look_at(stage, loop, trainer)
        if trainer.sanity_checking:
            # What it draws does not count.
            stage.follow(fetcher)
            stage.pending = stage.place(loop.batch_progress, fetcher)
            return
        if not resumed_at:
            stage.give_up()
        if self._has_validated:
            stage.number_on()
        check([stage], trainer.current_epoch)
        stage.follow(fetcher)
        if stage.has_to_move:
            fetcher.fetched += resumed_at
        self._validation, self._has_validated = NONE, True

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """From here on the loaders say where they are."""
        if _is_fitting(trainer) and not trainer.sanity_checking:
            self._val.begin_batch(_val_loop(trainer).batch_progress.current.processed)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Write where the loaders stand; Lightning calls it on all ranks."""
        saved = self._saved or self._now(trainer)
        if saved is not None:
            checkpoint["callbacks"][self.state_key] = saved.to_dict()

    def _now(self, trainer: Any) -> Saved | None:
        fit_loop, val_loop = trainer.fit_loop, _val_loop(trainer)
        if fit_loop._data_fetcher is not None:
            self._look_at(self._train, fit_loop, trainer)
        is_unseen = self._val.watch is None and val_loop._combined_loader is not None
        if is_unseen or (trainer.validating and _is_fitting(trainer)):
            self._look_at(self._val, val_loop, trainer)
        train = self._train.place(_train_progress(trainer), fit_loop._data_fetcher)
        if train is None:
            return None
        is_validating = bool(trainer.validating) and _is_fitting(trainer)
        val = self._val.place(
            val_loop.batch_progress, val_loop._data_fetcher, is_running=is_validating
        )
        validation = self._validation
        if is_validating and val is not None:
            validation = DONE if val.is_over else DUE
        elif _is_validation_due(trainer):
            validation = DUE
        return Saved(
            epoch=train.epoch,
            batches=train.batches,
            validated=0 if val is None else val.batches,
            validation=validation,
            train=train.records,
            val={} if val is None else val.records,
        )

    def _look_at(self, stage: Stage, loop: Any, trainer: Any) -> None:
        """Watch what the loop fetches; another callback may save before its turn has come."""
        fetcher = loop._data_fetcher
        if stage.watch is None or self._fetchers.get(stage.name) is not fetcher:
            self._fetchers[stage.name] = fetcher
            stage.look_at(loop._combined_loader, fetcher, lambda: int(trainer.current_epoch))

    def _take(self, saved: Saved, trainer: Any) -> None:
        train, val, epoch = self._train, self._val, int(trainer.current_epoch)
        val_combined = _val_loop(trainer)._combined_loader
        if val_combined is not None:
            val.look_at(val_combined, None, lambda: int(trainer.current_epoch))
        if saved.train:
            train.pending = Place(records=saved.train, epoch=saved.epoch, batches=saved.batches)
        if saved.val:
            val.pending = Place(records=saved.val, epoch=saved.epoch, batches=saved.validated)
        try:
            others = self._with_states(trainer)
            check([train, val], epoch)
        except StateMismatch:
            train.pending = val.pending = None
            raise
        for loader, state in others:
            loader.load_state_dict(state)
        self._validation = saved.validation
        self._saved = None

    def _with_states(self, trainer: Any) -> list[tuple[Any, Any]]:
        """The train loaders that are not ours, with what Lightning saved of them."""
        states, self._of_others = self._of_others, []
        loaders = trainer.fit_loop._combined_loader.flattened
        stateful = [loader for loader in loaders if isinstance(loader, Stateful)]
        if all(isinstance(loader, StatefulGPULoader) for loader in loaders):
            return []
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
    """Whether Lightning, done with a training step, is about to validate."""
    loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
    batches = loop.batch_progress.current
    is_behind_step = batches.ready == batches.processed == batches.completed + 1
    return bool(is_behind_step and fetcher is not None and loop._should_check_val_fx(fetcher))


def _val_loop(trainer: Any) -> Any:
    return trainer.fit_loop.epoch_loop.val_loop


def _train_progress(trainer: Any) -> Any:
    return trainer.fit_loop.epoch_loop.batch_progress

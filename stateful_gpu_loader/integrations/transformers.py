"""A Trainer of transformers that trains on a StatefulGPULoader, saves its state and resumes it."""

from __future__ import annotations

import json
import os
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from stateful_gpu_loader.checkpoint.files import read_regular
from stateful_gpu_loader.errors import (
    CheckpointError,
    CheckpointNotFound,
    MissingDependency,
    StateMismatch,
)
from stateful_gpu_loader.integrations.shared.batch_feed import BatchFeed
from stateful_gpu_loader.integrations.shared.dividing import check_divides_itself, divided
from stateful_gpu_loader.integrations.shared.every_rank import (
    load_own_state,
    read_states,
    state_of_all_ranks,
    write_states,
)
from stateful_gpu_loader.loader import StatefulGPULoader

try:
    from transformers import Trainer, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as error:
    raise MissingDependency(
        "transformers", needed_for="LoaderTrainer", extra="transformers"
    ) from error

_STATE_FILE = "trainer_state.json"
_MAX_STATE_FILE_BYTES = 64 << 20
_LEFT_TO_THE_LOADER = {
    "per_device_train_batch_size": "batch_size",
    "dataloader_num_workers": "num_workers",
    "dataloader_drop_last": "drop_last",
    "dataloader_prefetch_factor": "prefetch_factor",
    "dataloader_persistent_workers": "persistent_workers",
    "data_seed": "seed",
}


class TrainLoaderMixin:
    """Lets a subclass of Trainer train on a loader: ``class Mine(TrainLoaderMixin, MyTrainer)``.

    Each checkpoint folder gets a loader_state.json. At a resume the Trainer skips the trained
    batches without reading them. A checkpoint saved within a step has the loader's state after the
    last complete step. Evaluation is left to the Trainer, with ``data_collator``.

    Args:
        train_loader: replaces ``train_dataset`` and its collator. Its batches are the model's
            inputs, for example ``{"pixel_values": ..., "labels": ...}`` from a ``batch_transform``.
            An undivided loader is divided among the ranks by its own order, as with
            ``num_replicas="auto"``.
        args, kwargs: as for Trainer.

    Raises:
        TypeError: ``train_loader`` is not a StatefulGPULoader.
        ValueError: an argument of the Trainer contradicts the loader, or each process would get
            the same samples.
    """

    _feed: BatchFeed
    _trained: tuple[int, dict[str, Any]] | None
    """Number of steps, and the loader's state before the next step's batches are fetched."""
    _iterator: weakref.ref[Any] | None
    _whole_epochs: bool

    def __init__(self, *args: Any, train_loader: StatefulGPULoader[Any], **kwargs: Any) -> None:
        if not isinstance(train_loader, StatefulGPULoader):
            raise TypeError(
                f"train_loader is a {type(train_loader).__name__}, not a StatefulGPULoader. "
                "Remedy: build the loader itself, or pass a dataset as train_dataset to a plain "
                "Trainer"
            )
        super().__init__(*args, **kwargs)
        given: Any = self
        if given.train_dataset is not None:
            raise ValueError(
                f"train_dataset ({type(given.train_dataset).__name__}) together with train_loader. "
                "Remedy: leave it out; the training is on the loader's dataset"
            )
        _check_arguments(given.args, train_loader)
        collator = kwargs.get("data_collator", next(iter(args[2:3]), None))
        if collator is not None and given.eval_dataset is None:
            _warn("data_collator", type(collator).__name__, "collate_fn", train_loader, level=3)
        ranks = {"num_replicas": given.args.world_size, "rank": given.args.process_index}
        check_divides_itself(train_loader, ranks["num_replicas"])
        self.train_loader = divided(train_loader, **ranks)
        self._begin()

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train, as with :meth:`transformers.Trainer.train`; the loader's state is checked first.

        Raises:
            StateMismatch: the checkpoint does not fit the loader or the training arguments, or the
                Trainer would skip a wrong number of batches; nothing was changed.
            CheckpointError: loader_state.json or trainer_state.json is missing or damaged.
        """
        arguments: TrainingArguments = self.args  # type: ignore[attr-defined]
        self._begin()
        folder: Any = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(arguments.output_dir)
        if folder:
            self._resume(os.fspath(folder))
        else:
            self._feed.numbers.length = _length(self.train_loader)
        return super().train(folder or resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the loader's batches in a DataLoader that the Trainer can rebuild."""
        return DataLoader(self._feed, **self._feed.arguments())

    def get_batch_samples(self, epoch_iterator: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a step's batches, as Trainer does; keep the state before them."""
        last = None if self._iterator is None else self._iterator()
        if self._iterator is not None and last is not epoch_iterator:
            length = self._feed.numbers.length
            self._whole_epochs &= length is None or self._feed.num_batches == length
        self._iterator = weakref.ref(epoch_iterator)
        return super().get_batch_samples(  # type: ignore[misc]
            self._fetched(epoch_iterator), *args, **kwargs
        )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, and in a checkpoint folder the loader's state: a collective call."""
        super().save_model(output_dir, _internal_call=_internal_call)  # type: ignore[misc]
        if not _internal_call or output_dir is None:
            return
        given: Any = self
        trained, length = self._trained, self._feed.numbers.length
        ends_early = given.control.should_epoch_stop and self._feed.num_batches != length
        if trained is not None and trained[0] == given.state.global_step:
            state = state_of_all_ranks(self.train_loader, state=trained[1])
        else:
            if self._feed.num_batches == length:
                self._feed.finish()
            state = state_of_all_ranks(self.train_loader)
        if given.args.should_save:
            facts = {"length": length, "whole_epochs": self._whole_epochs and not ends_early}
            write_states(output_dir, [state], {**_steps(given.args), **facts})

    def _fetched(self, iterator: Any) -> Iterator[Any]:
        step = self.state.global_step  # type: ignore[attr-defined]
        for batch in iterator:
            if self._trained is None or self._trained[0] != step:
                self._trained = step, self._feed.state_before_the_last()
            yield batch

    def _begin(self) -> None:
        self._feed = BatchFeed(self.train_loader)
        self._trained = None
        self._whole_epochs = True
        self._iterator = None

    def _resume(self, folder: str) -> None:
        arguments: TrainingArguments = self.args  # type: ignore[attr-defined]
        states, facts = read_states(folder, 1, saved_by="LoaderTrainer")
        state, length = states[0], facts.get("length")
        present = {
            **_steps(arguments),
            "global_batch_size": self.train_loader.state_dict()["global_batch_size"],
        }
        first = state.get("rank_00000", state)
        saved = {**facts, "global_batch_size": first.get("global_batch_size")}
        for field, value in present.items():
            if saved.get(field) != value:
                raise StateMismatch(
                    field,
                    saved=saved.get(field),
                    present=value,
                    remedy="the Trainer counts its place in steps: keep the global batch and the "
                    "accumulation that the checkpoint was saved with",
                )
        if facts.get("whole_epochs") is False:
            raise StateMismatch(
                "epochs",
                saved="one that ended early, by should_epoch_stop or a dataset's wrong length",
                present="whole ones, as the Trainer counts",
                remedy="resume from a checkpoint that was saved before, and end no epoch early",
            )
        accumulated, steps = arguments.gradient_accumulation_steps, _global_step(folder)
        before = self.train_loader.state_dict()
        self._feed.load_state_dict(state)
        self._feed.numbers.length = length
        if length is None:
            # Without a length the Trainer counts skipped batches over all epochs.
            self._feed.passed_over = steps % max(arguments.max_steps, 1) * accumulated
            return
        skipped = steps % max(-(-length // accumulated), 1) * accumulated
        if self._feed.passed_over != skipped:
            load_own_state(self.train_loader, before)
            raise StateMismatch(
                "batches of the epoch before the checkpoint",
                saved=self._feed.passed_over,
                present=skipped,
                remedy=f"the Trainer counts {skipped} by its {steps} steps of epochs of {length} "
                "batches, and would skip them: let train() begin with a loader at an epoch's "
                "start, and with a dataset whose len() is correct",
            )


class LoaderTrainer(TrainLoaderMixin, Trainer):  # type: ignore[misc]
    """``transformers.Trainer`` on a loader; see :class:`TrainLoaderMixin`.

    >>> import tempfile
    >>> import torch
    >>> class Mean(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.weight = torch.nn.Parameter(torch.ones(()))
    ...     def forward(self, values, labels=None):
    ...         return {"loss": self.weight * values.mean()}
    >>> loader = StatefulGPULoader(
    ...     [{"values": torch.tensor([float(n)])} for n in range(8)], batch_size=2, seed=1
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     args = TrainingArguments(
    ...         folder, max_steps=3, use_cpu=True, report_to="none", disable_tqdm=True
    ...     )
    ...     trainer = LoaderTrainer(model=Mean(), args=args, train_loader=loader)
    ...     result = trainer.train()  # doctest: +ELLIPSIS
    {...'epoch': '0.75'}
    >>> result.global_step
    3
    """


def _steps(arguments: TrainingArguments) -> dict[str, Any]:
    return {"gradient_accumulation_steps": arguments.gradient_accumulation_steps}


def _global_step(folder: str) -> int:
    path = os.path.join(folder, _STATE_FILE)
    remedy = "Remedy: resume from another checkpoint; this one was not saved to its end"
    try:
        return int(json.loads(read_regular(path, _MAX_STATE_FILE_BYTES))["global_step"])
    except FileNotFoundError:
        raise CheckpointNotFound(f"{folder!r} has no {_STATE_FILE}. {remedy}") from None
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{path!r} does not contain the number of trained steps ({error!r}). {remedy}"
        ) from error


def _length(loader: StatefulGPULoader[Any]) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _check_arguments(arguments: TrainingArguments, loader: StatefulGPULoader[Any]) -> None:
    """Refuse Trainer arguments that contradict the loader, and warn about unused ones.

    Raises:
        ValueError: the data would not follow the arguments.
    """
    refused = {
        "ignore_data_skip": "leave it False: nothing is read twice, the loader seeks. With True "
        "the Trainer counts the resumed epoch's steps from 0",
        "auto_find_batch_size": "set the loader's batch_size",
    }
    for name, remedy in refused.items():
        if getattr(arguments, name, False):
            raise ValueError(f"TrainingArguments({name}=True) with a loader. Remedy: {remedy}")
    sampling = getattr(arguments, "train_sampling_strategy", "random")
    if sampling == "group_by_length" or getattr(arguments, "group_by_length", False):
        raise ValueError(
            "TrainingArguments asks for samples grouped by length, with a loader. Remedy: give "
            "the loader a sampler or batch_sampler that groups them"
        )
    config: Any = arguments.accelerator_config
    for name in ("split_batches", "dispatch_batches"):
        if getattr(config, name, False):
            raise ValueError(
                f"accelerator_config has {name}=True, with a loader. Remedy: leave it out; each "
                "process has its own loader, with batch_size for one process"
            )
    if not getattr(config, "even_batches", True):
        _warn("even_batches", False, "drop_last", loader)
    if sampling not in (None, "random") and (loader.shuffle or sampling != "sequential"):
        _warn("train_sampling_strategy", sampling, "shuffle", loader)
    defaults = TrainingArguments.__dataclass_fields__
    for name, ours in _LEFT_TO_THE_LOADER.items():
        asked, has = getattr(arguments, name, None), getattr(loader, ours)
        if name in defaults and asked not in (defaults[name].default, has):
            _warn(name, asked, ours, loader)


def _warn(name: str, asked: Any, ours: str, loader: StatefulGPULoader[Any], level: int = 4) -> None:
    has = getattr(loader, ours)
    warnings.warn(
        f"{name}={asked} is not used: the loader has {ours}={has}. "
        f"Remedy: give {ours} to the loader, and leave {name} out",
        stacklevel=level + 1,
    )

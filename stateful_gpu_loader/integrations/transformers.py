"""The Trainer of transformers on our loader: it trains on it, saves its place and goes on there."""

from __future__ import annotations

import json
import os
import warnings
from typing import Any

from torch.utils.data import DataLoader

from stateful_gpu_loader.errors import MissingDependency, StateMismatch
from stateful_gpu_loader.integrations.shared.batch_feed import BatchFeed
from stateful_gpu_loader.integrations.shared.dividing import check_divides_itself, divided
from stateful_gpu_loader.integrations.shared.every_rank import state_of_all_ranks
from stateful_gpu_loader.integrations.shared.loader_file import read_states, write_states
from stateful_gpu_loader.loader import StatefulGPULoader

try:
    from transformers import Trainer, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as error:
    raise MissingDependency(
        "transformers", needed_for="LoaderTrainer", extra="transformers"
    ) from error

_STATE_FILE = "trainer_state.json"
_LEFT_TO_THE_LOADER = {
    "per_device_train_batch_size": "batch_size",
    "dataloader_num_workers": "num_workers",
    "dataloader_drop_last": "drop_last",
    "dataloader_prefetch_factor": "prefetch_factor",
    "dataloader_persistent_workers": "persistent_workers",
}


class TrainLoaderMixin:
    """Lets a subclass of Trainer train on a loader: ``class Mine(TrainLoaderMixin, MyTrainer)``.

    Each checkpoint folder gets a loader_state.json, written whole before the Trainer's own
    trainer_state.json. A resume seeks: the Trainer is told to skip what was trained on before,
    and nothing of it is read. Evaluation is left to the Trainer.

    Args:
        train_loader: in place of ``train_dataset`` and ``data_collator``; its batches are what the
            model takes, ``{"pixel_values": ..., "labels": ...}`` by a ``batch_transform``. One
            that nobody has divided is divided among the processes by its own order, as with
            ``num_replicas="auto"``.
        args, kwargs: as Trainer.

    Raises:
        TypeError: it is no StatefulGPULoader.
        ValueError: an argument of the Trainer cannot be kept with a loader, or each process would
            get the same samples.
    """

    def __init__(self, *args: Any, train_loader: StatefulGPULoader[Any], **kwargs: Any) -> None:
        if not isinstance(train_loader, StatefulGPULoader):
            raise TypeError(
                f"train_loader is a {type(train_loader).__name__}, no StatefulGPULoader. Remedy: "
                "build the loader itself, and give a dataset as train_dataset to a plain Trainer"
            )
        super().__init__(*args, **kwargs)
        given: Any = self
        _check_arguments(given.args, train_loader)
        ranks = {"num_replicas": given.args.world_size, "rank": given.args.process_index}
        check_divides_itself(train_loader, ranks["num_replicas"])
        self.train_loader = divided(train_loader, **ranks)
        self._feed = BatchFeed(self.train_loader)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train, as :meth:`transformers.Trainer.train`; the loader's place is checked first.

        Raises:
            StateMismatch: the checkpoint does not fit the loader or the training arguments;
                nothing was changed.
            CheckpointError: the checkpoint has no whole loader_state.json.
        """
        arguments: TrainingArguments = self.args  # type: ignore[attr-defined]
        self._feed = BatchFeed(self.train_loader)
        folder: Any = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(arguments.output_dir)
        if folder:
            self._resume(os.fspath(folder))
        else:
            self._feed.numbers.length = _length(self.train_loader)
        return super().train(folder or resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The loader, as a DataLoader that the Trainer can build anew."""
        return DataLoader(self._feed, **self._feed.arguments())

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, and into a checkpoint folder the loader's place: a collective call."""
        super().save_model(output_dir, _internal_call=_internal_call)  # type: ignore[misc]
        if not _internal_call or output_dir is None:
            return
        arguments: TrainingArguments = self.args  # type: ignore[attr-defined]
        length = self._feed.numbers.length
        if length is not None and self._feed.num_batches == length:
            self._feed.finish()
        state = state_of_all_ranks(self.train_loader)
        if arguments.should_save:
            write_states(output_dir, [state], {**_steps(arguments), "length": length})

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
        with open(os.path.join(folder, _STATE_FILE), encoding="utf-8") as file:
            steps = int(json.load(file)["global_step"])
        self._feed.load_state_dict(state)
        self._feed.numbers.length = length
        accumulated = arguments.gradient_accumulation_steps
        per_epoch = max(arguments.max_steps, 1) if length is None else -(-length // accumulated)
        # What the Trainer will skip; of a loader without length it counts over all epochs.
        self._feed.passed_over = steps % max(per_epoch, 1) * accumulated


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


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _check_arguments(arguments: TrainingArguments, loader: Any) -> None:
    """What the Trainer is told, and a loader cannot keep, is an error, or at least a warning.

    Raises:
        ValueError: data would be another than asked for.
    """
    refused = {
        "ignore_data_skip": "leave it False: nothing is read twice, the loader seeks. With True "
        "the Trainer counts the resumed epoch's steps from 0",
        "auto_find_batch_size": "set the loader's batch_size",
    }
    for name, remedy in refused.items():
        if getattr(arguments, name, False):
            raise ValueError(f"TrainingArguments({name}=True) with a loader. Remedy: {remedy}")
    defaults = TrainingArguments.__dataclass_fields__
    for name, ours in _LEFT_TO_THE_LOADER.items():
        asked, has = getattr(arguments, name, None), getattr(loader, ours)
        if name in defaults and asked not in (defaults[name].default, has):
            warnings.warn(
                f"TrainingArguments({name}={asked}) is not used: the loader has {ours}={has}. "
                f"Remedy: give {ours} to the loader, and leave {name} out",
                stacklevel=4,
            )

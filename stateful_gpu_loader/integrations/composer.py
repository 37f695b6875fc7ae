"""LoaderStateCallback for Composer: keeps the loaders' states in Composer's checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from stateful_gpu_loader.errors import MissingDependency, StateMismatch
from stateful_gpu_loader.integrations.shared.every_rank import (
    load_all,
    load_own_state,
    state_of_all_ranks,
)
from stateful_gpu_loader.loader import StatefulGPULoader

try:
    from composer.core import Callback, State
    from composer.loggers import Logger
    from composer.utils import reproducibility
except ImportError as error:
    raise MissingDependency(
        "mosaicml",
        needed_for="LoaderStateCallback for Composer",
        remedy="pip install --no-deps mosaicml, and what docs/trainers/composer.md names beside it",
    ) from error

Loaders = dict[str, StatefulGPULoader[Any]]

TRAIN = "train"
_REMEDY = (
    "give the Trainer the loaders that the checkpoint was saved with, or load it with "
    "load_ignore_keys=['state/callbacks/LoaderStateCallback*']"
)


class LoaderStateCallback(Callback):  # type: ignore[misc]
    """Keeps the states of all ``StatefulGPULoader`` of a Trainer in Composer's checkpoints.

    It finds the loader for training and those of evaluators, also inside a ``DataSpec``. After
    ``load_path`` or ``autoresume``, also on another number of ranks, each loader seeks to its
    place, where Composer alone would read all earlier batches of the epoch again. The global random
    generators are restored, too, which Composer does at the end of an epoch only. Each training
    epoch is the loader's epoch of the same number. Other loaders are left to Composer.

    Raises:
        StateMismatch: at the beginning of ``fit()``: the checkpoint is of other loaders.

    >>> import torch
    >>> from composer import Trainer
    >>> from composer.models import ComposerModel
    >>> class Mean(ComposerModel):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.weight = torch.nn.Parameter(torch.zeros(()))
    ...     def forward(self, batch):
    ...         return self.weight * batch.float().mean()
    ...     def loss(self, outputs, batch):
    ...         return outputs
    >>> model = Mean()
    >>> loader = StatefulGPULoader(range(8), batch_size=2, shuffle=True, seed=1)
    >>> trainer = Trainer(
    ...     model=model,
    ...     optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
    ...     train_dataloader=loader,
    ...     max_duration="3ba",
    ...     callbacks=LoaderStateCallback(),
    ...     device="cpu",
    ...     progress_bar=False,
    ... )
    >>> trainer.fit()
    >>> saved = trainer.state.state_dict()["callbacks"]["LoaderStateCallback"]
    >>> saved["loaders"]["train"]["position"]
    6
    """

    def __init__(self) -> None:
        self._state: State | None = None
        self._loaded: dict[str, Any] | None = None
        self._trained: StatefulGPULoader[Any] | None = None
        self._before_fetch: _Moment | None = None
        self._rng: Any = None
        self._whole_epoch: int | None = None

    def init(self, state: State, logger: Logger) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        """The states of the loaders, of all ranks: a collective call, as Composer makes it."""
        if self._loaded is not None:
            # fit() has not given them to the loaders yet, but the timestamp is loaded already.
            return dict(self._loaded)
        if self._state is None:
            return {}
        rng = self._rng
        if rng is None and int(self._state.timestamp.batch_in_epoch) > 0:
            rng = reproducibility.get_rng_state()
        return {
            "loaders": {
                name: state_of_all_ranks(
                    # A batch without a completed step comes again.
                    loader,
                    batches_ago=int(name == TRAIN and self._is_in_flight(loader, self._state)),
                )
                for name, loader in _loaders_of(self._state).items()
            },
            "rng": rng,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep the states until ``fit()``, which knows all loaders."""
        self._loaded = state or None

    def fit_start(self, state: State, logger: Logger) -> None:
        loaders, loaded = _loaders_of(state), self._loaded
        mid_epoch = int(state.timestamp.batch_in_epoch)
        if loaded is not None:
            _load_all(loaders, loaded["loaders"])
            self._loaded, self._rng = None, loaded["rng"] if mid_epoch else None
        state.dataset_resumption.pop(TRAIN, None)
        for name, loader in loaders.items():
            if name != TRAIN:
                evaluators = state.dataset_resumption.setdefault("eval", {})
                evaluators[name.removeprefix("eval/")] = True
                if loaded is not None and loader.state_dict()["position"]:
                    _leave_epoch(loader)
            elif loaded is not None or loader is self._trained:
                # Composer then neither spins the loader nor skips batches of it.
                state.dataset_resumption[TRAIN] = True
                self._resume(loader, state, was_loaded=loaded is not None)
        self._trained = loaders.get(TRAIN)
        self._before_fetch = None

    def epoch_start(self, state: State, logger: Logger) -> None:
        if self._trained is not None:
            self._trained.set_epoch(int(state.timestamp.epoch))

    def before_dataloader(self, state: State, logger: Logger) -> None:
        if self._whole_epoch is not None:
            # Composer has read the epoch's remaining length; schedulers need the whole one.
            state.dataloader_len, self._whole_epoch = self._whole_epoch, None
        if self._rng is not None:
            rng, self._rng = self._rng, None
            reproducibility.load_rng_state(rng)
        if self._trained is not None:
            self._before_fetch = _Moment.of(self._trained, state)

    def _is_in_flight(self, loader: StatefulGPULoader[Any], state: State) -> bool:
        """Whether no step was completed with the loader's last batch.

        That includes failures between the fetch and the event AFTER_DATALOADER: in transforms of
        the batch, in its transfer to the device, and in callbacks that run before this one.
        """
        before, now = self._before_fetch, _Moment.of(loader, state)
        if before is None or before.steps != now.steps or before.place == now.place:
            return False
        # The end of a pass moves the place, too, to the beginning of an epoch.
        return now.place != (now.place[0], 0, None)

    def _resume(self, loader: StatefulGPULoader[Any], state: State, *, was_loaded: bool) -> None:
        place, done = loader.state_dict(), int(state.timestamp.batch_in_epoch)
        if not done:
            is_there = (place["epoch"], place["position"]) == (int(state.timestamp.epoch), 0)
            if was_loaded and not is_there:
                _leave_epoch(loader)
            return
        if not was_loaded:
            loader.load_state_dict(loader.state_dict(int(self._is_in_flight(loader, state))))
        length = state.dataloader_len
        if length is not None and int(length) < _length_of(loader):
            # train_subset_num_batches limits the whole epoch, so the rest has fewer batches.
            self._whole_epoch, state.dataloader_len = int(length), int(length) - done
            if int(length) == done:
                _leave_epoch(loader)


@dataclass(frozen=True, slots=True)
class _Moment:
    """The loader's place, and the trainer's count of steps at that time."""

    place: tuple[int, int, str | None]
    steps: tuple[int, int]

    @classmethod
    def of(cls, loader: StatefulGPULoader[Any], state: State) -> _Moment:
        place, timestamp = loader.state_dict(), state.timestamp
        return cls(
            (place["epoch"], place["position"], place["ahead"]),
            # The epoch counts, too: it may end on a batch that other ranks lack, without a step.
            (int(timestamp.epoch), int(timestamp.batch)),
        )


def _loaders_of(state: State) -> Loaders:
    given = {TRAIN: state.train_dataloader}
    given |= {f"eval/{evaluator.label}": evaluator.dataloader for evaluator in state.evaluators}
    found = {name: getattr(loader, "dataloader", loader) for name, loader in given.items()}
    return {name: found[name] for name in found if isinstance(found[name], StatefulGPULoader)}


def _load_all(loaders: Loaders, saved: Mapping[str, Any]) -> None:
    """Load all states, or none.

    Raises:
        StateMismatch: the states are of other loaders.
    """
    if set(loaders) != set(saved):
        raise StateMismatch("loaders", saved=sorted(saved), present=sorted(loaders), remedy=_REMEDY)
    load_all(
        (loader, partial(load_own_state, loader, saved[name])) for name, loader in loaders.items()
    )


def _leave_epoch(loader: StatefulGPULoader[Any]) -> None:
    """Make the next pass one of the next epoch: begin a pass and leave it after one batch."""
    for _ in loader:
        break


def _length_of(loader: StatefulGPULoader[Any]) -> float:
    try:
        return len(loader)
    except TypeError:
        return float("inf")

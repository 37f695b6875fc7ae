"""User objects with a state, by torchdata's protocol."""

from __future__ import annotations

import copy
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

from stateful_gpu_loader.datasets.callable import CallableSource
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.state.schema import Stateful
from stateful_gpu_loader.state.user_states import freeze, worker_state

_MAX_PARTS = 1_000
"""Number of nested parts of a Hugging Face dataset that are searched."""


def state_of(thing: Any) -> Any:
    """Return the state of an object, or None if it has none."""
    return thing.state_dict() if isinstance(thing, Stateful) else None


def state_between_passes(thing: Any) -> Any:
    """Return the state of an object, or None; some have none before an iteration."""
    try:
        return state_of(thing)
    except AttributeError:
        return None


def length_of(thing: Any) -> int | None:
    """Return ``len()`` of an object; None if it has none, like torch's base class of samplers."""
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return None


def load_user_state(role: str, thing: Any, state: Any) -> None:
    """Load a state into a user's object, unless it is None.

    Raises:
        StateMismatch: the object cannot load a state.
    """
    if state is None:
        return
    if not isinstance(thing, Stateful):
        raise StateMismatch(
            f"{role}'s state",
            saved=state,
            present=f"{type(thing).__name__}, which has no load_state_dict()",
            remedy=f"build the loader with the {role} that the state was saved with",
        )
    for held in (thing, *vars(thing).values()) if hasattr(thing, "__dict__") else ():
        # A torchdata.nodes Loader whose state was read before its first pass ignores a loaded
        # state, unless it is iterated in between.
        if type(held).__module__ == "torchdata.nodes.loader":
            iter(held)
    thing.load_state_dict(state)


def state_keeper(dataset: Any) -> Any:
    """Return the object with a dataset's state: itself, or the iterator of a CallableSource."""
    is_iterated = isinstance(dataset, CallableSource) and dataset.is_iterated
    return dataset.function if is_iterated else dataset


def restarts_each_pass(dataset: Any) -> bool:
    """Whether every pass over the dataset starts from the loaded state, or from the beginning.

    Hugging Face's IterableDataset does so (their issue 7447).
    """
    return hasattr(dataset, "_starting_state_dict")


def starting_state(dataset: Any) -> Any:
    """Return the state from which a dataset of :func:`restarts_each_pass` begins its passes."""
    return dataset._starting_state_dict


def check_begins(dataset: Any) -> None:
    """Read a first sample of a dataset that uses a loaded state only when it is iterated.

    Hugging Face's IterableDataset cannot use its state in several workers if it reads its shards in
    turns.

    Raises:
        StateMismatch: the dataset fails to use the state.
    """
    try:
        next(iter(dataset), None)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        if not any("load_state_dict" in frame.name for frame in frames):
            raise
        raise StateMismatch(
            "dataset's state",
            saved=f"a state of {type(dataset).__name__}",
            present=f"a dataset that cannot use it: its load_state_dict() raised {error!r}",
            remedy="num_workers=0 or 1, if the dataset is shuffled or interleaved; or a map-style "
            "datasets.Dataset with shuffle=True, which resumes exactly with any number of workers",
        ) from error


def shuffle_buffer_of(dataset: Any) -> int | None:
    """Return the size of a Hugging Face IterableDataset's shuffle buffer, or None.

    Its state does not hold the samples in the buffer.
    """
    if not restarts_each_pass(dataset):
        return None
    waiting, num_seen = [getattr(dataset, "_ex_iterable", None)], 0
    while waiting and num_seen < _MAX_PARTS:
        part = waiting.pop()
        num_seen += 1
        size = getattr(part, "buffer_size", None)
        if isinstance(size, int) and size > 1:
            return size
        waiting.append(getattr(part, "ex_iterable", None))
        waiting += list(getattr(part, "ex_iterables", None) or ())
    return None


def warn_of_shuffle_buffer(dataset: Any) -> None:
    """Warn that a resume loses the samples in a dataset's shuffle buffer, if it has one."""
    size = shuffle_buffer_of(dataset)
    if size is not None:
        warnings.warn(
            f"this state does not hold the shuffle buffer of {type(dataset).__name__}: a resume "
            f"loses up to {size} samples that were in it (for each worker), and the order "
            "changes. Remedy: a map-style datasets.Dataset with shuffle=True, or an "
            "IterableDataset without shuffle()",
            stacklevel=4,
        )


class DatasetMemory:
    """Remembers the dataset's state before the passes of a loader without workers.

    Without workers, one object serves all passes, so a state from before a first batch must be
    restored in it.

    Args:
        dataset: the dataset, with or without a state.
    """

    def __init__(self, dataset: Any) -> None:
        self._keeper = state_keeper(dataset)
        self._has_begun = False
        self._as_built: bytes | None = None
        """State at the beginning of the first pass; None if it was not read from the dataset."""

    def state(self) -> bytes | None:
        """Return the serialized state of a worker between two passes, or None if it has none."""
        if restarts_each_pass(self._keeper):
            return None
        state = state_between_passes(self._keeper)
        if state is None:
            return None
        return freeze(worker_state(dataset=state), type(self._keeper).__name__)

    def begin(self, *, is_loaded: bool, as_built: bool) -> bytes | None:
        """Return the state that a pass begins from; None leaves the dataset unchanged.

        Args:
            is_loaded: whether a state of the dataset is about to be loaded; its present state is
                then not read, because torchdata.nodes would ignore the load.
            as_built: whether the pass begins from a loader state without a state of the dataset.
        """
        if is_loaded:
            self._has_begun = True
            return None
        now = self.state()
        if self._has_begun:
            return self._as_built if as_built else now
        self._as_built = now
        self._has_begun = True
        return None if as_built else now

    def twin(self, dataset: Any) -> DatasetMemory:
        """Return the same memory for a copy of the dataset."""
        twin = copy.copy(self)
        twin._keeper = state_keeper(dataset)
        return twin

    def check_goes_back(self) -> None:
        """Refuse a state without a state of the dataset, if the dataset cannot be rewound.

        Raises:
            StateMismatch: the dataset was iterated, and its state before that is not known.
        """
        keeper = self._keeper
        moves_on = isinstance(keeper, (Stateful, Iterator)) and not restarts_each_pass(keeper)
        if self._has_begun and self._as_built is None and moves_on:
            raise StateMismatch(
                "dataset's state",
                saved=None,
                present=f"a {type(keeper).__name__} that was iterated since the loader was built, "
                "and whose initial state was not saved",
                remedy="load the state into a new loader with a new dataset",
            )

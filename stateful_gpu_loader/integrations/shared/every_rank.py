"""One state for the loaders of all ranks, for trainers that save once and load on every rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from stateful_gpu_loader.checkpoint import Checkpoint
from stateful_gpu_loader.datasets.sharded import ShardedDataset
from stateful_gpu_loader.engine.resume.rank_states import comparable, gathered, merge_state_dicts
from stateful_gpu_loader.engine.torch_names import size_and_rank
from stateful_gpu_loader.errors import CheckpointNotFound, StateMismatch
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.samplers import is_map, order_of
from stateful_gpu_loader.state.schema import Stateful

_Result = TypeVar("_Result")

FORMAT = "stateful_gpu_loader of each rank"
VERSION = 1


def state_of_all_ranks(
    loader: StatefulGPULoader[Any], batches_ago: int = 0, *, state: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the states of all ranks' loaders as one, equal on every rank; a collective call.

    If the loader itself divides its samples, this is a loader's own state, which loads on any
    number of ranks. If the user's objects have a different state on each rank, it holds the state
    of every rank, and loads only on the same number of ranks.

    Args:
        loader: this rank's loader.
        batches_ago: as in :meth:`StatefulGPULoader.state_dict`.
        state: earlier state of this rank's loader; None is its present state.

    Raises:
        StateMismatch: the ranks are not at the same step; raised on every rank.

    >>> from stateful_gpu_loader import StatefulGPULoader
    >>> loader = StatefulGPULoader([1, 2, 3])
    >>> state_of_all_ranks(loader) == loader.state_dict()
    True
    """
    if state is None:
        state = loader.state_dict(batches_ago) if batches_ago else loader.state_dict()
    num_ranks, rank = size_and_rank()
    if num_ranks == 1:
        return dict(state)
    # Processes of one tensor-parallel group share a data-parallel rank.
    place = loader.rank if isinstance(loader.rank, int) else rank
    places = gathered((place, state))
    if _divides(loader):
        return merge_state_dicts(list(_once_each(places).values()))
    states = [state for _, state in places]
    if all(_differing(states[0], state) is None for state in states):
        return merge_state_dicts(states)
    return {
        "format": FORMAT,
        "version": VERSION,
        "num_ranks": num_ranks,
        **{_rank_key(rank): state for rank, state in enumerate(states)},
    }


def state_for_all_ranks(
    loader: StatefulGPULoader[Any], state: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Same as :func:`state_of_all_ranks`, but local if this rank's state is sufficient.

    Then the main process may save alone.
    """
    if is_same_on_all_ranks(loader):
        return dict(loader.state_dict() if state is None else state)
    return state_of_all_ranks(loader, state=state)


def load_all(loads: Iterable[tuple[Any, Callable[[], _Result]]]) -> list[_Result]:
    """Load the states of several loaders, or none if one is refused.

    Args:
        loads: each loader, and a function that loads its state.

    Returns:
        Results of the functions.
    """
    loaded: list[tuple[Any, dict[str, Any]]] = []
    results = []
    try:
        for loader, load in loads:
            before = loader.state_dict()
            results.append(load())
            loaded.append((loader, before))
    except Exception:
        for loader, before in loaded:
            loader.load_state_dict(before)
        raise
    return results


def load_own_state(
    loader: StatefulGPULoader[Any], state: dict[str, Any], accept: Collection[str] = ()
) -> None:
    """Load a result of :func:`state_of_all_ranks`, or any state of a loader.

    Raises:
        StateMismatch: the state does not fit, or holds the states of another number of ranks;
            nothing was changed.
        ValueError: as for :meth:`StatefulGPULoader.load_state_dict`.
    """
    if isinstance(state, Mapping) and state.get("format") == FORMAT:
        state = _own_part(state)
    loader.load_state_dict(state, accept=accept)


def is_same_on_all_ranks(loader: StatefulGPULoader[Any]) -> bool:
    """Whether a rank's own state determines the places of all ranks, without communication.

    One rank alone can then save.

    >>> from stateful_gpu_loader import StatefulGPULoader
    >>> is_same_on_all_ranks(StatefulGPULoader(range(4), shuffle=True))
    True
    """
    has_own_batches = loader.batch_size is None and loader.batch_sampler is not None
    return (
        is_map(loader.dataset)
        and not isinstance(loader.dataset, Stateful)
        and order_of(loader.sampler) is not None
        and not has_own_batches
        and (loader.in_order or loader.num_workers == 0)
    )


def _own_part(state: Mapping[str, Any]) -> Any:
    num_ranks, rank = size_and_rank()
    if state.get("version") != VERSION:
        raise StateMismatch(
            "version",
            saved=state.get("version"),
            present=VERSION,
            remedy="install the version of stateful_gpu_loader that wrote the state, or later",
        )
    if state.get("num_ranks") != num_ranks:
        raise StateMismatch(
            "number of ranks",
            saved=state.get("num_ranks"),
            present=num_ranks,
            remedy="resume on as many ranks as saved: your objects have different states on them. "
            "A ShardedDataset or a sampler of this package resumes on any number",
        )
    if _rank_key(rank) not in state:
        raise StateMismatch(
            _rank_key(rank),
            saved=sorted(key for key in state if str(key).startswith("rank_")),
            present=f"the state of rank {rank} of {num_ranks}",
            remedy="load the state as it was saved, with the states of all ranks",
        )
    return state[_rank_key(rank)]


def _divides(loader: StatefulGPULoader[Any]) -> bool:
    """Whether the loader divides the samples, and each rank delivers them in order."""
    if isinstance(loader.dataset, ShardedDataset):
        return True
    is_ordered = is_map(loader.dataset) and order_of(loader.sampler) is not None
    has_own_batches = loader.batch_size is None and loader.batch_sampler is not None
    return is_ordered and not has_own_batches and loader._engine.plan.config.keeps_order


def _once_each(places: list[Any]) -> dict[int, dict[str, Any]]:
    states: dict[int, dict[str, Any]] = {}
    for place, state in places:
        first = states.setdefault(place, state)
        field = _differing(first, state)
        if field is not None:
            raise StateMismatch(
                field,
                saved=state.get(field),
                present=f"{first.get(field)!r}, as another process of data-parallel rank {place}",
                remedy="save after the same step on all ranks",
            )
    return states


def _differing(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """Return the first field that differs, except for bad samples, which are recorded per rank."""
    for field in sorted({*one, *other} - {"bad_samples"}):
        # The user's states may hold tensors, which == compares by element.
        if comparable(one.get(field)) != comparable(other.get(field)):
            return field
    return None


def _rank_key(rank: int) -> str:
    return f"rank_{rank:05d}"


FILE_NAME = "loader_state.json"

_LOADERS, _FACTS = "loaders", "trainer"


def write_states(
    folder: str | os.PathLike[str], states: Sequence[Any], facts: Mapping[str, Any] | None = None
) -> str:
    """Write the file atomically; one process writes for all ranks.

    Args:
        folder: folder of the checkpoint.
        states: states of all loaders, in the trainer's order.
        facts: further values for the trainer's adapter.

    Raises:
        CheckpointError: a state has no form in JSON, or the file cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write_states(folder, [{"position": 8}], {"steps": 2})
    ...     states, facts = read_states(folder, 1, saved_by="prepare_loader()")
    >>> states, facts
    ([{'position': 8}], {'steps': 2})
    """
    checkpoint = Checkpoint()
    checkpoint.set_state(_LOADERS, {f"loader_{i}": state for i, state in enumerate(states)})
    checkpoint.set_state(_FACTS, dict(facts or {}))
    return checkpoint.save(os.path.join(_plain(folder), FILE_NAME))


def read_states(
    folder: str | os.PathLike[str], number: int, *, saved_by: str
) -> tuple[list[Any], dict[str, Any]]:
    """Return the states and the facts of :func:`write_states`.

    Args:
        folder: folder of the checkpoint.
        number: present number of loaders.
        saved_by: function or class that writes the file, for the error message.

    Raises:
        CheckpointNotFound: the checkpoint has no such file.
        CheckpointError: the file is truncated, altered or foreign.
        StateMismatch: the file holds the states of another number of loaders.
    """
    checkpoint = Checkpoint()
    try:
        checkpoint.load(os.path.join(_plain(folder), FILE_NAME))
    except CheckpointNotFound:
        raise CheckpointNotFound(
            f"{os.fspath(folder)!r} has no {FILE_NAME}, so the places of {number} loaders are "
            f"unknown. Remedy: resume from a checkpoint that was saved with {saved_by}"
        ) from None
    states = list(checkpoint.get_state(_LOADERS).values())
    if len(states) != number:
        raise StateMismatch(
            "number of loaders",
            saved=len(states),
            present=number,
            remedy="prepare the loaders that the checkpoint was saved with, in the same order",
        )
    return states, checkpoint.get_state(_FACTS)


def _plain(folder: str | os.PathLike[str]) -> str:
    """Return the path with braces escaped for Checkpoint."""
    return os.fspath(folder).replace("{", "{{").replace("}", "}}")

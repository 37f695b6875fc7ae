"""The states of a loader on all ranks as one, for trainers that save once and load everywhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from stateful_gpu_loader.attributes import workers_of
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.rank_states import comparable, gathered, merge_state_dicts
from stateful_gpu_loader.samplers import is_map, order_of
from stateful_gpu_loader.shards.sharded_dataset import ShardedDataset
from stateful_gpu_loader.state import Stateful
from stateful_gpu_loader.world import size_and_rank

FORMAT = "stateful_gpu_loader of each rank"
VERSION = 1


def state_of_all_ranks(
    loader: Any, batches_ago: int = 0, *, state: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One state of what the loader has on all ranks, on every rank: a collective call.

    It is a loader's own state, which loads on any number of ranks, wherever the loader divides
    its samples itself; ranks of one tensor-parallel group count once. Where objects of the
    user's have other states on other ranks, it holds the state of each, for as many ranks.

    Args:
        loader: of this rank.
        batches_ago: as in :meth:`StatefulGPULoader.state_dict`.
        state: what this rank's loader returned earlier; None is its present state.

    Raises:
        StateMismatch: the ranks are not at the same step; on every rank.

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
    places = gathered((_place(loader, rank), state))
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


def load_own_state(loader: Any, state: dict[str, Any], accept: Collection[str] = ()) -> None:
    """Load what :func:`state_of_all_ranks` returned, or any state of a loader.

    Raises:
        StateMismatch: it does not fit, or is of another number of ranks and tells them apart;
            nothing was changed.
        ValueError: as :meth:`StatefulGPULoader.load_state_dict`.
    """
    if isinstance(state, Mapping) and state.get("format") == FORMAT:
        state = _own_part(state)
    loader.load_state_dict(state, accept=accept)


def is_same_on_all_ranks(loader: Any) -> bool:
    """Whether a rank's own state says where all ranks stand, so that nobody has to be asked.

    One rank alone can save, then: behind an exception, or ``if is_main_process``.

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
            remedy="resume on as many ranks as saved: objects of yours have another state on each. "
            "A ShardedDataset or a sampler of this package goes on on any number",
        )
    if _rank_key(rank) not in state:
        raise StateMismatch(
            _rank_key(rank),
            saved=sorted(key for key in state if str(key).startswith("rank_")),
            present=f"the state of rank {rank} of {num_ranks}",
            remedy="load the state as it was saved, with the states of all ranks",
        )
    return state[_rank_key(rank)]


def _divides(loader: Any) -> bool:
    """Whether the states of all ranks must be those of one step: the loader dealt out the samples,
    and each rank delivers them in order."""
    if isinstance(loader.dataset, ShardedDataset):
        return True
    is_ordered = is_map(loader.dataset) and order_of(loader.sampler) is not None
    has_own_batches = loader.batch_size is None and loader.batch_sampler is not None
    return is_ordered and not has_own_batches and workers_of(loader).in_order


def _place(loader: Any, rank: int) -> int:
    """The data-parallel rank: several ranks may have the same samples."""
    return loader.rank if isinstance(loader.rank, int) else rank


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
    """No stream depends on the record of bad samples, which each rank has of its own."""
    for field in sorted({*one, *other} - {"bad_samples"}):
        # States of the user's objects may hold tensors, which == compares element by element.
        same = comparable if field == "user" else _as_it_is
        if same(one.get(field)) != same(other.get(field)):
            return field
    return None


def _as_it_is(value: Any) -> Any:
    return value


def _rank_key(rank: int) -> str:
    return f"rank_{rank:05d}"

"""Merges the states of all ranks, which have their own lanes' cursors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from stateful_gpu_loader.datasets.lanes import LanePlan
from stateful_gpu_loader.engine.schedules.rank_share import unsigned
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.state.bad_samples import BadSamples
from stateful_gpu_loader.state.lane_cursor import ENDED, LaneCursor, lane_text
from stateful_gpu_loader.state.schema import Fingerprint, LoaderState, lane_of
from stateful_gpu_loader.state.typed_json import encode
from stateful_gpu_loader.state.user_states import freeze

_EQUAL = ("seed", "fingerprint", "global_batch_size", "index_digest", "ahead", "user")

_REMEDIES = {
    "seed": "give every rank's loader the same seed=, or keep a state for each rank",
    "index_digest": "merge states of the same step; if they are, the sampler yields different "
    "indices on each rank, but has no attributes num_replicas and rank: keep a state for each rank",
    "user": "keep a state for each rank: your objects have different states there",
}


def merge_state_dicts(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the states of all ranks at one step into one, which loads on any number of ranks.

    With a :class:`ShardedDataset` each rank's state has its own lanes' cursors; with map-style data
    the states agree, except for bad samples.

    A rank may be one epoch ahead after its epoch's end.

    Args:
        states: the states of all ranks, in any order.

    Raises:
        StateMismatch: the states belong to different loaders or steps, a rank's state is missing or
            given twice, or they hold states of the user's objects that differ between ranks.

    >>> from stateful_gpu_loader import StatefulGPULoader
    >>> ranks = [StatefulGPULoader([1, 2, 3, 4], num_replicas=2, rank=rank) for rank in (0, 1)]
    >>> merged = merge_state_dicts([loader.state_dict() for loader in ranks])
    >>> merged == ranks[0].state_dict()
    True
    """
    given = [_of_any_rank(LoaderState.from_dict(state)) for state in states]
    if not given:
        raise ValueError("no states were given. Remedy: give the state of each rank")
    epoch = min(state.epoch for state in given)
    present = [state for state in given if state.epoch == epoch]
    ahead = [state for state in given if state.epoch != epoch]
    first = present[0]
    for state in given:
        for field in _EQUAL:
            _check_equal(field, getattr(first, field), getattr(state, field))
    for state in present:
        _check_equal("position", first.position, state.position)
    for state in ahead:
        has_ended = (state.epoch, state.position) == (epoch + 1, 0) and state.lanes is not None
        if not has_ended:
            _check_equal("epoch", epoch, state.epoch)
    lanes: dict[str, str] = {}
    for state in present:
        lanes |= state.lanes or {}
    for state in ahead:
        lanes |= dict.fromkeys(state.lanes or {}, lane_text(epoch, LaneCursor(shard=ENDED)))
    served = sum(len(state.lanes or {}) for state in given)
    if len(lanes) < served:
        raise StateMismatch(
            "lanes",
            saved=f"{served} cursors in all",
            present=f"{len(lanes)} different lanes",
            remedy="give each rank's own state once",
        )
    wanted = LanePlan.num_lanes_of(Fingerprint.from_text(first.fingerprint).order)
    missing = sorted(set(range(wanted or 0)) - set(map(lane_of, lanes)))
    if missing:
        raise StateMismatch(
            "lanes",
            saved=f"{len(lanes)} of {wanted} lanes, in the states of {len(given)} ranks",
            present=f"all of them: {missing[:8]} are missing",
            remedy="give the state of every rank",
        )
    records = [BadSamples.from_text(state.bad_samples) for state in given]
    bad_samples = BadSamples.union(records).to_text()
    lanes = dict(sorted(lanes.items(), key=lambda item: lane_of(item[0])))
    return replace(first, lanes=lanes or None, bad_samples=bad_samples).to_dict()


def gather_state_dict(state: dict[str, Any], group: Any = None) -> dict[str, Any]:
    """Return the merged state of all ranks, on every rank; a collective call.

    Args:
        state: state of this rank's loader.
        group: process group of torch.distributed; None is the default group. Without
            torch.distributed, this process is the only rank.

    Raises:
        StateMismatch: as :func:`merge_state_dicts`, on every rank.

    >>> from stateful_gpu_loader import StatefulGPULoader
    >>> state = StatefulGPULoader([1, 2, 3]).state_dict()
    >>> gather_state_dict(state) == state
    True
    """
    return merge_state_dicts(gathered(state, group))


def gathered(thing: Any, group: Any = None) -> list[Any]:
    """Return every rank's object, on every rank of a group.

    Without torch.distributed, only this process counts.

    >>> gathered({"rank": 0})
    [{'rank': 0}]
    """
    if not (dist.is_available() and dist.is_initialized()):
        return [thing]
    things: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(things, thing, group=group)
    return things


def _check_equal(field: str, one: Any, other: Any) -> None:
    if _shared(field, one) != _shared(field, other):
        raise StateMismatch(
            field,
            saved=other,
            present=f"{one!r}, which another rank's state has",
            remedy=_REMEDIES.get(
                field, "merge states that the ranks of one run took after the same step"
            ),
        )


def _of_any_rank(state: LoaderState) -> LoaderState:
    """Return a state without the rank that drew its seed."""
    saved = Fingerprint.from_text(state.fingerprint)
    if saved.seed_drawn_by is None:
        return state
    return replace(state, fingerprint=replace(saved, seed_drawn_by=None).to_text())


def _shared(field: str, value: Any) -> Any:
    """Return the part of a value that must be equal on all ranks, for ==."""
    if field == "index_digest":
        return unsigned(value)
    if field != "user":
        return value
    sampler = value.get("sampler") if isinstance(value, dict) else None
    if isinstance(sampler, dict) and isinstance(sampler.get("passed"), dict):
        passed = sampler["passed"] | {"digest": unsigned(sampler["passed"].get("digest"))}
        value = value | {"sampler": sampler | {"passed": passed}}
    # The states may hold tensors, which == compares by element.
    return comparable(value)


def comparable(user: Any) -> Any:
    try:
        return encode(user)
    except TypeError:
        return freeze(user, "user's object")

"""From the cursors in a state to a place and back: lanes on another number of ranks (B5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stateful_gpu_loader.assembly import Parts
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.passes import Address
from stateful_gpu_loader.shards.cursor import ENDED, LaneCursor
from stateful_gpu_loader.shards.lanes import LanePlan
from stateful_gpu_loader.state import LoaderState, lane_key

_REMEDY_FOREIGN = "load what StatefulGPULoader.state_dict() returned, unchanged"


def lane_texts(loader: Any, parts: Parts, address: Address) -> dict[int, str] | None:
    """The cursors of the lanes that this rank serves, for its state; None without lanes."""
    plan = parts.lanes
    if plan is None:
        return None
    known = address.lanes or {}
    lanes = parts.lane_division(loader).lanes(plan.num_lanes)
    return {lane: known.get(lane, LaneCursor()).to_text() for lane in lanes}


def lane_place(loader: Any, parts: Parts, state: LoaderState, place: Address) -> Address:
    """The place of a state, with the cursors of its lanes.

    A state of all lanes, merged over its ranks, goes on on any number of ranks that the lanes
    allow; the position then is where as many batches are left as the largest rank has.

    Raises:
        StateMismatch: lanes of this rank are missing, or a cursor is none.
    """
    plan = parts.lanes
    if plan is None:
        if state.lanes:
            raise _unfit(state, "a loader of no ShardedDataset")
        return place
    division = parts.lane_division(loader)
    cursors = {lane: _cursor(plan, lane, text) for lane, text in (state.lanes or {}).items()}
    own = division.lanes(plan.num_lanes)
    missing = [lane for lane in own if lane not in cursors]
    foreign = [lane for lane in cursors if lane >= plan.num_lanes]
    if missing or foreign:
        raise _unfit(
            state,
            f"rank {division.rank} of {division.num_replicas}, which serves lanes "
            f"{list(own)[:8]} of {plan.num_lanes}",
        )
    position = state.position
    if len(cursors) == plan.num_lanes:
        position = _position(loader, parts, plan, state, cursors)
    return replace(place, position=position, lanes=cursors)


def _position(
    loader: Any,
    parts: Parts,
    plan: LanePlan,
    state: LoaderState,
    cursors: Mapping[int, LaneCursor],
) -> int:
    """Batches of the epoch that count as delivered, so that all ranks end together."""
    division = parts.lane_division(loader)
    whole = plan.num_steps(state.seed, state.epoch, division)
    if whole is None:
        return state.position
    counts = {
        # A lane that was read to its end may have been read on from its beginning since.
        lane: cursor.count if cursor.shard < plan.num_shards(lane) else _END
        for lane, cursor in cursors.items()
    }
    left = plan.num_steps(state.seed, state.epoch, division, counts)
    return whole - (left or 0)


_END = 1 << 62


def _unfit(state: LoaderState, present: str) -> StateMismatch:
    return StateMismatch(
        "lanes",
        saved=f"the cursors of {len(state.lanes or {})} lanes: {sorted(state.lanes or {})[:8]}",
        present=present,
        remedy="each rank loads its own state on as many ranks as it was saved on; on another "
        "number, merge_state_dicts() of the states of all ranks",
    )


def _cursor(plan: LanePlan, lane: int, text: str) -> LaneCursor:
    try:
        cursor = LaneCursor.from_text(text)
        return replace(cursor, shard=plan.num_shards(lane)) if cursor.shard == ENDED else cursor
    except ValueError as error:
        raise StateMismatch(
            lane_key(lane), saved=text, present=str(error), remedy=_REMEDY_FOREIGN
        ) from None

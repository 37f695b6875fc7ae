"""Lane cursors in a state: saved, and resumed on another number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stateful_gpu_loader.datasets.lanes import MOST_SAMPLES, LaneDivision, LanePlan
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.state.epoch_progress import Address
from stateful_gpu_loader.state.lane_cursor import ENDED, LaneCursor, LaneCursors, epoch_and_cursor
from stateful_gpu_loader.state.schema import REMEDY_FOREIGN, LoaderState, lane_key, lane_of


def lane_texts(plan: Plan, address: Address) -> dict[str, str] | None:
    """Return the cursors of this rank's lanes, for its state; None without lanes."""
    if plan.lanes is None:
        return None
    if isinstance(address.lanes, LaneCursors):
        return address.lanes.texts()
    known = address.lanes or {}
    lanes = plan.lane_division.lanes(plan.lanes.num_lanes)
    return LaneCursors(
        address.epoch, {lane: known.get(lane, LaneCursor()) for lane in lanes}
    ).texts()


def lane_place(plan: Plan, state: LoaderState, place: Address) -> Address:
    """Return the position of a state, with the cursors of its lanes.

    A state of all lanes, merged over the ranks, resumes on any number of ranks that the lanes
    allow. The position then is the one with as many batches left as the largest rank has.

    Raises:
        StateMismatch: lanes of this rank are missing, a cursor lies outside its lane, or only the
            states of all ranks together tell how many batches are left.
    """
    lanes = plan.lanes
    if lanes is None:
        if state.lanes:
            raise _unfit(state, "a loader of no ShardedDataset")
        return place
    division = plan.lane_division
    own = division.lanes(lanes.num_lanes)
    saved = {lane_of(key): text for key, text in (state.lanes or {}).items()}
    missing = [lane for lane in own if lane not in saved]
    foreign = [lane for lane in saved if lane >= lanes.num_lanes]
    if missing or foreign:
        raise _unfit(
            state,
            f"rank {division.rank} of {division.num_replicas}, which serves lanes "
            f"{list(own)[:8]} of {lanes.num_lanes}",
        )
    cursors = {lane: _cursor(lanes, lane, text, state.epoch) for lane, text in saved.items()}
    whole = lanes.num_steps(state.seed, state.epoch, division)
    same_size = state.global_batch_size == plan.global_batch_size
    if whole is None or (division.num_replicas == 1 and same_size):
        return replace(place, lanes=cursors)
    if len(cursors) == lanes.num_lanes:
        position = whole - num_left(lanes, state.seed, state.epoch, division, cursors)
        if same_size:
            # Same number of ranks; dropped samples can leave the saved position lower.
            position = min(position, state.position)
        return replace(place, position=position, lanes=cursors)
    if len(cursors) > len(own) or not same_size:
        raise StateMismatch(
            "global_batch_size",
            saved=f"{state.global_batch_size}, and the cursors of {len(cursors)} lanes",
            present=f"{plan.global_batch_size}, and {len(own)} lanes",
            remedy="another number of ranks or another batch size needs the cursors of all lanes: "
            "load merge_state_dicts() of the states of all ranks",
        )
    if state.position > whole:
        raise StateMismatch(
            "position",
            saved=state.position,
            present=f"an epoch of {whole} batches",
            remedy=REMEDY_FOREIGN,
        )
    # torch.distributed.checkpoint gives each rank of another number only its own lanes' cursors,
    # and a position that counts the batches of the saved number of ranks.
    others = {lane: LaneCursor(shard=lanes.num_shards(lane)) for lane in range(lanes.num_lanes)}
    left = num_left(lanes, state.seed, state.epoch, division, {**others, **cursors})
    if left > whole - state.position:
        raise StateMismatch(
            "position",
            saved=f"{state.position} of {whole} batches",
            present=f"at most {whole - left}: the lanes of rank {division.rank} of "
            f"{division.num_replicas} have {left} batches left",
            remedy="another number of ranks needs the cursors of all lanes: load "
            "merge_state_dicts() of the states of all ranks, or save the loader in a RankedState",
        )
    return replace(place, lanes=cursors)


def num_left(
    plan: LanePlan,
    seed: int,
    epoch: int,
    division: LaneDivision,
    cursors: Mapping[int, LaneCursor],
) -> int:
    """Return the number of batches of the epoch that the largest rank has left."""
    counts = {
        # A lane that was read to its end may have been read from its beginning again.
        lane: cursor.count if cursor.shard < plan.num_shards(lane) else MOST_SAMPLES
        for lane, cursor in cursors.items()
    }
    return plan.num_steps(seed, epoch, division, counts) or 0


def _unfit(state: LoaderState, present: str) -> StateMismatch:
    saved = sorted(map(lane_of, state.lanes or {}))
    return StateMismatch(
        "lanes",
        saved=f"the cursors of {len(saved)} lanes: {saved[:8]}",
        present=present,
        remedy="each rank loads its own state on as many ranks as it was saved on; on another "
        "number, merge_state_dicts() of the states of all ranks",
    )


def _cursor(plan: LanePlan, lane: int, text: str, epoch: int) -> LaneCursor:
    """Return a lane's cursor, checked to lie within its lane.

    Raises:
        StateMismatch: it is not a cursor, is of another epoch than the state, or lies outside its
            lane.
    """
    try:
        own_epoch, cursor = epoch_and_cursor(text)
    except ValueError as error:
        raise StateMismatch(
            lane_key(lane), saved=text, present=str(error), remedy=REMEDY_FOREIGN
        ) from None
    if own_epoch != epoch:
        raise StateMismatch(
            lane_key(lane),
            saved=f"{text}, of epoch {own_epoch}",
            present=f"epoch {epoch}, as the rest of the state",
            remedy="ranks of which one has ended its epoch have different states: save "
            "gather_state_dict(), or, with torch.distributed.checkpoint, a RankedState",
        )
    num_shards = plan.num_shards(lane)
    if cursor.shard == ENDED:
        return replace(cursor, shard=num_shards)
    num_laps = 1 if plan.num_samples() is None else MOST_SAMPLES
    is_between = cursor.shard % num_shards == 0 if num_shards else True
    limits = {
        "turns": (cursor.turns, MOST_SAMPLES),
        "count": (cursor.count, MOST_SAMPLES),
        "shard": (cursor.shard, num_laps * num_shards + 1),
        "taken": (cursor.taken, max(1, plan.window)),
    }
    if is_between and cursor.shard >= num_laps * num_shards:
        limits |= {"offset": (cursor.offset, 1), "taken": (cursor.taken, 1)}
    for name, (value, end) in limits.items():
        if value >= end:
            raise StateMismatch(
                lane_key(lane),
                saved=text,
                present=f"0 <= {name} < {end} (the lane has {num_shards} shards)",
                remedy=REMEDY_FOREIGN,
            )
    return cursor

"""The parts of a state for lanes and the user's objects: check and restore."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stateful_gpu_loader.datasets.lanes import MOST_SAMPLES, LaneDivision, LanePlan
from stateful_gpu_loader.engine.config import LoaderConfig
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.engine.schedules.sampler_feed import has_own_state
from stateful_gpu_loader.engine.schedules.sampler_snapshot import (
    NOTHING_CAPTURED,
    SamplerSnapshot,
    is_mark,
    replay_mark,
    state_mark,
)
from stateful_gpu_loader.engine.user_objects import DatasetMemory, state_between_passes
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.randomness.generator_state import generator_from_text
from stateful_gpu_loader.randomness.seed import SettledSeed
from stateful_gpu_loader.samplers import is_map
from stateful_gpu_loader.state.epoch_progress import Address
from stateful_gpu_loader.state.lane_cursor import ENDED, LaneCursor, LaneCursors, epoch_and_cursor
from stateful_gpu_loader.state.schema import (
    REMEDY_FOREIGN,
    LoaderState,
    Stateful,
    lane_key,
    lane_of,
)
from stateful_gpu_loader.state.user_states import UserStates, freeze, thaw

_REMEDY_SAME = "build the loader with the saved loader's sampler, dataset and arguments"
_REMEDY_WORKERS = (
    "build the loader with the saved num_workers: the states of the workers' own objects fit only "
    "this number of workers"
)


def states_between_passes(
    plan: Plan, dataset_memory: DatasetMemory, seed: SettledSeed
) -> UserStates:
    """Return the states of the user's objects between passes."""
    user = _sampler_between_passes(plan, seed)
    dataset = dataset_memory.state() if plan.config.num_workers == 0 else None
    return user if dataset is None else replace(user, num_workers=0, workers=(dataset,))


def _sampler_between_passes(plan: Plan, seed: SettledSeed) -> UserStates:
    memory = plan.memory
    if memory is None:
        return UserStates()
    sampler = plan.config.own_sampler
    captured = memory.capture(seed_generator=seed.owing)
    state = state_between_passes(sampler) if has_own_state(sampler) else None
    mark: dict[str, Any] | None = None
    if state is not None:
        mark = state_mark(state, captured=memory.epochs())
    elif any(captured.values()):
        mark = replay_mark(captured)
    return UserStates(
        sampler=None if mark is None else freeze(mark, "a sampler"),
        batches=0 if plan.config.yields_batches else None,
    )


def start_of_pass(
    plan: Plan, place: Address, dataset_memory: DatasetMemory, seed: SettledSeed, *, resumed: bool
) -> Address:
    """Return the place of a pass that begins, with the states of the user's objects.

    The pass is about to move these objects.
    """
    user = place.user
    if place.position == 0:
        user = user or UserStates() if resumed else with_present_sampler(plan, user, seed)
    if plan.config.num_workers == 0 and plan.has_worker_states:
        is_loaded = user is not None and user.workers is not None
        dataset = dataset_memory.begin(is_loaded=is_loaded, as_built=resumed)
        if dataset is not None:
            user = user or UserStates(base=place.position)
            user = replace(user, num_workers=0, workers=(dataset,))
    return replace(place, user=user)


def with_present_sampler(
    plan: Plan, user: UserStates | None, seed: SettledSeed
) -> UserStates | None:
    """Return the states between two passes, with the sampler's present state.

    The user may have set an epoch since. The mark of a sampler without a state is kept if only
    iterating that pass again proves the sampler's position.
    """
    mark = None if user is None or user.sampler is None else thaw(user.sampler)
    if plan.memory is None or (mark is not None and mark.get("passed") is not None):
        return user
    present = _sampler_between_passes(plan, seed)
    return replace(user or present, sampler=present.sampler, batches=present.batches)


def place_of(
    plan: Plan,
    state: LoaderState,
    dataset_memory: DatasetMemory,
    *,
    accept: Collection[str],
) -> Address:
    """Return the position that a state describes.

    Args:
        accept: ``"iterable"`` lets an iterable yield different samples when it is read again.

    Raises:
        StateMismatch: the state does not fit the loader's sampler, dataset or workers.
    """
    config, memory = plan.config, plan.memory
    ahead = _positions_ahead(state)
    user = None if state.user is None else UserStates.from_dict(state.user)
    if memory is None:
        _refuse_unless(state.index_digest is None, "index_digest", state.index_digest, None)
    if user is not None:
        _refuse_unless(
            user.base <= state.position, "user's base", user.base, f"at most {state.position}"
        )
        _check_sampler(user, memory)
        _check_workers(user, config)
        if user.permutation is not None:
            generator_from_text(user.permutation)
        if "iterable" in accept:
            user = user.without_digests()
    if config.num_workers == 0 and (user is None or user.workers is None):
        dataset_memory.check_goes_back()
    if user is not None:
        _check_steps(plan, user, state.position)
    steps = 0 if user is None else user.steps
    if ahead or steps or (user is not None and _is_read_again(user)):
        _check_same_batches(state, plan.global_batch_size)
    if steps and not config.in_order and config.num_workers:
        raise StateMismatch(
            "in_order",
            saved=f"{steps} batches after the last snapshot",
            present="in_order=False, with which they would be different batches",
            remedy="resume with in_order=True, or save with snapshot_every_n_steps=1",
        )
    return Address(state.epoch, state.position, ahead, state.index_digest, user)


def restore_sampler(memory: SamplerSnapshot, place: Address) -> None:
    """Restore a sampler to the start of a pass; attributes set afterwards apply to that pass.

    In the middle of a pass this happens when the pass continues; attributes set before do not
    apply.
    """
    saved = None if place.user is None else place.user.sampler
    mark = NOTHING_CAPTURED if saved is None else thaw(saved)
    if place.position == 0 and mark.get("passed") is None:
        memory.restore(mark)
    memory.note_load(mark["attributes"])


def _positions_ahead(state: LoaderState) -> tuple[tuple[int, str | None], ...]:
    if state.ahead is None:
        return ()
    try:
        listed = json.loads(state.ahead)
    except (ValueError, RecursionError):
        listed = None
    if isinstance(listed, list):
        entries = [entry if isinstance(entry, list) else [entry, None] for entry in listed]
        if all(_is_position_ahead(state.position, *entry) for entry in entries):
            return tuple((position, proof) for position, proof in entries)
    raise StateMismatch(
        "ahead",
        saved=state.ahead,
        present=f"a JSON list of positions from {state.position} on, or of pairs of a position "
        "and a proof",
        remedy=REMEDY_FOREIGN,
    )


def text_of_ahead(ahead: Sequence[tuple[int, str | None]]) -> str | None:
    """Return the state's text for batches delivered ahead of an older one.

    >>> text_of_ahead([(8, None), (16, "indices ab12")])
    '[8, [16, "indices ab12"]]'
    """
    entries = [position if proof is None else (position, proof) for position, proof in ahead]
    return json.dumps(entries) if entries else None


def _is_position_ahead(start: int, position: Any = None, proof: Any = None, *more: Any) -> bool:
    is_pair = type(position) is int and position >= start and not more
    return is_pair and (proof is None or isinstance(proof, str))


def _check_sampler(user: UserStates, memory: SamplerSnapshot | None) -> None:
    if user.sampler is None:
        return
    mark = thaw(user.sampler)
    _refuse_unless(
        is_mark(mark), "user's sampler", sorted(map(str, mark)), "the fields of a sampler's mark"
    )
    if memory is None:
        raise _mismatch("user's sampler", "the state of a sampler", "a loader with its own order")
    memory.check(mark)


def _is_read_again(user: UserStates) -> bool:
    """Whether a worker must read earlier batches again."""
    workers = [thaw(worker) for worker in user.workers or () if worker is not None]
    return any(
        worker["samples"] and worker["dataset"] is None and worker["iterator"] is None
        for worker in workers
    )


def _check_workers(user: UserStates, config: LoaderConfig) -> None:
    if user.workers is None:
        return
    has_states = not is_map(config.dataset) or isinstance(config.dataset, Stateful)
    name = type(config.dataset).__name__
    _refuse_unless(
        has_states, "user's workers", "states of a dataset", f"{name}, which has no state"
    )
    if user.num_workers != config.num_workers:
        raise StateMismatch(
            "num_workers",
            saved=user.num_workers,
            present=config.num_workers,
            remedy=_REMEDY_WORKERS,
        )
    expected = max(1, config.num_workers)
    _refuse_unless(
        len(user.workers) == expected and user.next_worker < expected,
        "user's workers",
        f"{len(user.workers)} states, the next of worker {user.next_worker}",
        f"{expected} states",
    )


def _check_steps(plan: Plan, user: UserStates, position: int) -> None:
    """Check the number of batches delivered after the states."""
    num_after = position - user.base
    if plan.is_iterable:
        fits, wanted = user.steps == num_after, f"{num_after}"  # its positions count batches
    else:
        # A batch sampler may yield empty batches, which do not move the position.
        fits = not user.steps or plan.config.yields_batches or user.steps <= num_after
        wanted = f"at most {num_after}"
    if not fits:
        raise StateMismatch(
            "user's steps",
            saved=user.steps,
            present=f"{wanted} batches from position {user.base} to position {position}",
            remedy=REMEDY_FOREIGN,
        )


def _check_same_batches(state: LoaderState, present: int | None) -> None:
    if state.global_batch_size != present:
        raise StateMismatch(
            "global_batch_size",
            saved=state.global_batch_size,
            present=present,
            remedy="keep the batch size and the number of ranks: the state counts whole batches "
            "(in_order=False, snapshot_every_n_steps > 1, or an iterable without a state)",
        )


def _refuse_unless(fits: bool, field: str, saved: Any, present: Any) -> None:
    if not fits:
        raise _mismatch(field, saved, present)


def _mismatch(field: str, saved: Any, present: Any) -> StateMismatch:
    return StateMismatch(field, saved=saved, present=present, remedy=_REMEDY_SAME)


def lane_texts(plan: Plan, address: Address) -> dict[str, str] | None:
    """Return the cursors of this rank's lanes for its state; None without lanes."""
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

    A state of all lanes resumes on any number of ranks that the lanes allow, with as many batches
    left as the largest rank.

    Raises:
        StateMismatch: lanes of this rank are missing, a cursor lies outside its lane, or only the
            states of all ranks together give the number of batches left.
    """
    lanes = plan.lanes
    if lanes is None:
        if state.lanes:
            raise _unfit_lanes(state, "a loader without a ShardedDataset")
        return place
    division = plan.lane_division
    own = division.lanes(lanes.num_lanes)
    saved = {lane_of(key): text for key, text in (state.lanes or {}).items()}
    missing = [lane for lane in own if lane not in saved]
    foreign = [lane for lane in saved if lane >= lanes.num_lanes]
    if missing or foreign:
        raise _unfit_lanes(
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
            # Dropped samples can leave the saved position lower.
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
    # On another number of ranks, torch.distributed.checkpoint gives each rank only its own lanes'
    # cursors, and the saved position.
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
        # A lane read to its end may have begun again.
        lane: cursor.count if cursor.shard < plan.num_shards(lane) else MOST_SAMPLES
        for lane, cursor in cursors.items()
    }
    return plan.num_steps(seed, epoch, division, counts) or 0


def _unfit_lanes(state: LoaderState, present: str) -> StateMismatch:
    saved = sorted(map(lane_of, state.lanes or {}))
    return StateMismatch(
        "lanes",
        saved=f"the cursors of {len(saved)} lanes: {saved[:8]}",
        present=present,
        remedy="each rank loads its own state on the number of ranks that it was saved on; on "
        "another number, load merge_state_dicts() of the states of all ranks",
    )


def _cursor(plan: LanePlan, lane: int, text: str, epoch: int) -> LaneCursor:
    """Return a lane's cursor, checked to lie within its lane.

    Raises:
        StateMismatch: the text is not a cursor, or belongs to another epoch than the state, or the
            cursor lies outside its lane.
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
            present=f"epoch {epoch}, like the rest of the state",
            remedy="the states of ranks differ when one has ended its epoch: save "
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

"""How many batches of an epoch are behind this rank, and how many are left, from a place in it."""

from __future__ import annotations

from typing import Any

from stateful_gpu_loader.datasets.lanes import LanePlan
from stateful_gpu_loader.engine.engine import Engine
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.engine.resume.lanes import num_left
from stateful_gpu_loader.engine.schedules.positions import Division
from stateful_gpu_loader.state.epoch_progress import Address


def present_place(engine: Engine) -> Address:
    """Where the pass under way stands, or where the next one begins."""
    engine.take_requested_epoch()
    plan, seed = engine.plan, engine.seed.value
    skips = plan.config.on_epoch_boundary == "next_epoch"

    def is_over(place: Address) -> bool:
        # An empty rest is left out as the pass begins (Plan.is_over), or gone through in silence.
        asks = skips or (plan.order is not None and place.user is None)
        return asks and batches_of(plan, place, seed)[1] == 0

    return engine.passes.present(is_over=is_over, skips_empty_rest=skips)


def batches_of(plan: Plan, place: Address, seed: int) -> tuple[int | None, int | None]:
    """Batches of the place's epoch that are behind this rank, and those that are left.

    Where the samples of the epoch are counted, what is left is cut into batches of the present
    size, and all others of a whole epoch are behind: with another batch size than the state's, too,
    the two add up to a whole epoch.

    Returns:
        None for what nobody knows.
    """
    if plan.lanes is not None:
        return _of_lanes(plan, plan.lanes, place, seed)
    division, position, num_samples = plan.division, place.position, None
    use = plan.sampler_use
    if plan.order is not None and not plan.is_endless:
        num_samples = plan.order.of_epoch(seed, place.epoch).n
    elif use is not None:
        num_samples = _length_of(use.sampler)
        if use.yields_batches:
            done = _counted(place)
            if done is None or num_samples is None or done > num_samples:
                return done, None
            return done, num_samples - done
        division = Division(batch_size=use.batch_size, drop_last=use.drop_last)
        if place.user is not None:
            # torchdata's states tell no position behind a snapshot.
            position = place.user.base + place.user.steps * use.batch_size
            position = position if num_samples is None else min(position, num_samples)
    if division is None:
        return position, None  # an iterable's, which counts batches
    ahead = len(place.ahead)
    if num_samples is None or position > num_samples:
        return -(-position // division.global_batch_size) + ahead, None
    left = division.num_steps(num_samples - position) - ahead
    return division.num_steps(num_samples) - left, left


def _of_lanes(plan: Plan, lanes: LanePlan, place: Address, seed: int) -> tuple[int, int | None]:
    division = plan.lane_division
    whole = lanes.num_steps(seed, place.epoch, division)
    if whole is None:
        return place.position, None
    if division.num_replicas > 1:
        return place.position, whole - place.position
    # A rank alone ends by itself, earlier where samples were left out as bad.
    return place.position, num_left(lanes, seed, place.epoch, division, place.lanes or {})


def _counted(place: Address) -> int | None:
    """Of a batch sampler, whose batches may have any size."""
    counted, steps = (None, 0) if place.user is None else (place.user.batches, place.user.steps)
    if counted is None and place.position:
        return None
    return (counted or 0) + steps + len(place.ahead)


def _length_of(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None

"""Number of batches of an epoch that this rank has delivered, and that are left, at a position."""

from __future__ import annotations

from typing import Any

from stateful_gpu_loader.datasets.lanes import LanePlan
from stateful_gpu_loader.engine.engine import Engine
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.engine.resume.places import num_left
from stateful_gpu_loader.engine.schedules.positions import Division
from stateful_gpu_loader.state.epoch_progress import Address


def present_place(engine: Engine) -> Address:
    """Return the position of the pass under way, or the one where the next pass begins."""
    engine.take_requested_epoch()
    plan, seed = engine.plan, engine.seed.value
    skips = plan.config.on_epoch_boundary == "next_epoch"

    def is_over(place: Address) -> bool:
        # An empty rest is left out when the pass begins (Plan.is_over), or passed over by it.
        asks = skips or (plan.order is not None and place.user is None)
        return asks and batches_of(plan, place, seed)[1] == 0

    return engine.passes.present(is_over=is_over, skips_empty_rest=skips)


def batches_of(plan: Plan, place: Address, seed: int) -> tuple[int | None, int | None]:
    """Return the delivered and the remaining batches of this rank in the epoch of ``place``.

    If the number of samples in the epoch is known, the rest is cut into batches of the present size
    and all others of a whole epoch count as delivered. The two numbers so add up to a whole epoch,
    even with another batch size than when the state was saved.

    Returns:
        Both numbers; None for one that is not known.
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
            # torchdata's states hold no position behind a snapshot.
            position = place.user.base + place.user.steps * use.batch_size
            position = position if num_samples is None else min(position, num_samples)
    if division is None:
        return position, None  # iterable datasets count batches
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
    # A single rank ends earlier when bad samples were left out.
    return place.position, num_left(lanes, seed, place.epoch, division, place.lanes or {})


def _counted(place: Address) -> int | None:
    """Return the number of batches that a batch sampler has delivered; they may have any size."""
    counted, steps = (None, 0) if place.user is None else (place.user.batches, place.user.steps)
    if counted is None and place.position:
        return None
    return (counted or 0) + steps + len(place.ahead)


def _length_of(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None

"""State of any position of a stream, from its state at another position."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from stateful_gpu_loader.datasets.lanes import LanePlan
from stateful_gpu_loader.errors import NoSuchPlace
from stateful_gpu_loader.samplers import CallOrder
from stateful_gpu_loader.samplers.sharded import ALGORITHM as SHARDS
from stateful_gpu_loader.state.lane_cursor import LaneCursor, lane_text
from stateful_gpu_loader.state.schema import Fingerprint, LoaderState, as_epoch, as_int

_REMEDY = (
    "Remedy: iterate the loader up to the position, or use a map-style dataset without a state, in "
    "the loader's own order or that of a sampler of this package"
)


def state_of_place(
    state: LoaderState,
    *,
    epoch: int,
    position: int | None = None,
    samples: int | None = None,
    percent: float | None = None,
    length: int | None = None,
) -> LoaderState:
    """Return the state that an uninterrupted run would have at another position.

    Exactly one of ``position``, ``samples`` and ``percent`` is given; see :func:`in_epoch`.

    Args:
        state: the state at any position of the stream.
        epoch: epoch of the position, counted from 0.
        length: number of samples in that epoch, all ranks together; None takes it from the state.

    Raises:
        NoSuchPlace: the position lies outside the epoch, or its state is known only after
            iterating.
        TypeError: a number of samples is not an int.
    """
    saved = Fingerprint.from_text(state.fingerprint)
    refuse_unless_own_order(saved)
    if state.user is not None:
        raise NoSuchPlace(
            "the state holds states of the dataset, or of torchdata's sampler, which belong to the "
            f"position where it was saved. {_REMEDY}"
        )
    if length is None and not saved.order.startswith(SHARDS):
        length = saved.length
    lanes = LanePlan.num_lanes_of(saved.order)
    epoch = existing_epoch(epoch)
    place = in_epoch(
        position=position,
        samples=samples,
        percent=percent,
        saved=saved,
        length=None if lanes is not None else length,
        global_batch_size=state.global_batch_size,
    )
    cursors = None
    if lanes is not None:
        cursors = dict.fromkeys(state.lanes or (), lane_text(epoch, LaneCursor()))
    return replace(state, epoch=epoch, position=place, ahead=None, lanes=cursors)


def existing_epoch(epoch: int) -> int:
    """Return an epoch that a pass may have.

    Raises:
        NoSuchPlace: it is not an int from 0 to 2**32 - 2.
    """
    try:
        return as_epoch(epoch)
    except ValueError as error:
        raise NoSuchPlace(str(error)) from None


def refuse_unless_own_order(saved: Fingerprint) -> None:
    """Refuse a stream whose order is not this package's.

    Raises:
        NoSuchPlace: only iterating shows which sample is at which position.
    """
    if saved.order == "iterable":
        reason = "an iterable dataset is read by its own iterator"
    elif saved.order.startswith("sampler "):
        reason = f"the order comes from a {saved.order}"
    else:
        return
    raise NoSuchPlace(
        f"positions of this stream cannot be computed: {reason}, and only iterating shows which "
        f"sample is where. {_REMEDY}"
    )


def in_epoch(
    *,
    position: int | None,
    samples: int | None,
    percent: float | None,
    saved: Fingerprint,
    length: int | None,
    global_batch_size: int | None,
) -> int:
    """Return the position that exactly one of three arguments gives.

    Args:
        position: position in the epoch's global order.
        samples: number of samples of the epoch that all ranks together have delivered, without
            repetitions in the last step.
        percent: share of the epoch, from 0 to 100, rounded down to the beginning of a batch.
        length: number of samples in the epoch; None if it is not known.
        global_batch_size: number of samples in one step of all ranks.

    Raises:
        NoSuchPlace: the position lies outside the epoch, or is not known.
        TypeError: ``position`` or ``samples`` is not an int.
    """
    given = {"position": position, "samples": samples, "percent": percent}
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) != 1:
        raise NoSuchPlace(
            f"a position in an epoch is given by one of {', '.join(given)}, but {len(named)} of "
            f"them were given: {named}. Remedy: pass exactly one"
        )
    ((name, value),) = named.items()
    if percent is None:
        place = as_int(name, value)
    elif not 0 <= percent <= 100:
        raise NoSuchPlace(f"{percent = } is outside 0 to 100. Remedy: pass a share of the epoch")
    elif percent == 0:
        place = 0
    else:
        place = _at_percent(percent, _known(length, saved, f"{percent} percent"), global_batch_size)
    if place and length is None:
        _known(length, saved, f"position {place}")
    if not 0 <= place <= (length or 0):
        raise NoSuchPlace(
            f"{name} {value} lies outside the epoch, which has {length} samples of all ranks "
            f"together. Remedy: pass 0 to {length}"
        )
    if samples and saved.on_bad_sample == "drop":
        raise NoSuchPlace(
            f"{samples = } counts delivered samples, but on_bad_sample='drop' drops bad samples, "
            "which are known only after reading. Remedy: pass position="
        )
    if samples and saved.order == CallOrder.algorithm and not saved.batched:
        raise NoSuchPlace(
            f"{samples = }, but it is not known how many samples a call of the dataset's function "
            "makes. Remedy: pass position=, the number of earlier calls"
        )
    return place


def _at_percent(percent: float, length: int, global_batch_size: int | None) -> int:
    if percent == 100:
        return length
    # The decimal that was written, not the nearest binary number.
    place = math.floor(Fraction(str(percent)) * length / 100)
    return place - place % (global_batch_size or 1)


def _known(length: int | None, saved: Fingerprint, what: str) -> int:
    if length is not None:
        return length
    if LanePlan.num_lanes_of(saved.order) is not None:
        reason = (
            "the dataset is read in lanes of shards, whose cursors only reading moves. Remedy: "
            "seek the beginning of an epoch, position=0"
        )
    elif saved.order.startswith(SHARDS):
        reason = (
            "the epochs of a ShardSampler differ in length, and the state does not hold their "
            "lengths. Remedy: StatefulGPULoader.seek() of the loader"
        )
    else:
        reason = (
            "the number of samples in an epoch is not known. Remedy: seek the beginning of an "
            "epoch, position=0, or pass length= to a CallableSource"
        )
    raise NoSuchPlace(f"{what} of the epoch cannot be computed: {reason}")

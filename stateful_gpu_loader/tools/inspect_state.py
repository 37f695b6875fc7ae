"""Describes a loader's state in plain words.

Missing values are None, and are never guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from stateful_gpu_loader.datasets.lanes import LanePlan
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.state.bad_samples import BadSamples, FoundBad
from stateful_gpu_loader.state.lane_cursor import ENDED, epoch_and_cursor
from stateful_gpu_loader.state.schema import (
    FORMAT,
    REMEDY_FOREIGN,
    SAMPLED,
    Fingerprint,
    LoaderState,
    lane_key,
    lane_of,
    sampled,
)
from stateful_gpu_loader.state.torchdata import TorchdataState, is_torchdata_state
from stateful_gpu_loader.state.user_states import UserStates, freeze

SAMPLES, BATCHES = "samples", "batches"
_OWN_NAME = re.compile(
    r"(?<![\w.])(?!(?:builtins|torch|torchvision|torchdata|stateful_gpu_loader)\.)"
    r"[A-Za-z_]\w*(?:\.[\w<>]+)+"
)
"""Qualified name of a user's object in the description of a transform."""
_TORCHDATA = "torchdata's StatefulDataLoader"


@dataclass(frozen=True, kw_only=True)
class Lane:
    """How far one lane of a sharded dataset has been read in this epoch."""

    lane: int
    epoch: int
    samples: int | None
    """Number of samples read from the lane; None if only its end is known."""
    shard: int | None
    """Number of the current shard in the lane; None as for ``samples``."""
    ended: bool
    """Whether the state marks the lane as ended; an unmarked lane may have ended, too."""


@dataclass(frozen=True, kw_only=True)
class UserObject:
    """State of a user's object inside a loader's state."""

    name: str
    num_bytes: int
    """Size of the pickled state."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """Content of a loader's state; None stands for an unknown value."""

    library: str
    """Library that wrote the state: ``stateful_gpu_loader`` or torchdata's StatefulDataLoader."""
    version: int | None
    """Version of the state's schema."""
    seed: int | None
    epoch: int | None
    """Number of the pass over the dataset, counted from 0."""
    position: int
    """Position in the epoch, all ranks together, in ``unit``."""
    unit: str
    """``samples`` or ``batches``."""
    epoch_samples: int | None
    """Number of samples in a whole epoch, all ranks together."""
    samples_seen: int | None
    """Number of samples of this epoch that all ranks together have delivered or left out as bad."""
    batches_seen: int | None
    """Number of batches of this epoch, if all had the present global batch size."""
    share: float | None
    """Delivered share of the epoch, 0 to 1."""
    finished: bool | None
    """Whether the pass is over; None if only a resume can show it."""
    global_batch_size: int | None
    """Number of samples of all ranks in one step."""
    ranks: str
    """Description of the ranks that the state belongs to."""
    lanes: tuple[Lane, ...]
    num_lanes: int | None
    """Number of lanes of the whole dataset; None if it has no lanes."""
    ahead: int
    """Number of batches delivered before an older batch (``in_order=False``)."""
    fingerprint: Mapping[str, Any] | None
    """Fields that must not change, if the state has them."""
    unverified: Mapping[str, str]
    """Parts of a loader that the state cannot verify, each with the reason."""
    bad_samples: int | None
    """Number of times that a sample could not be used."""
    bad_sample_list: tuple[FoundBad, ...]
    """First finding of each bad sample, at most 100."""
    user_objects: tuple[UserObject, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def describe(state: Mapping[str, Any]) -> Description:
    """Describe a state.

    Args:
        state: result of ``state_dict()`` of a StatefulGPULoader or of torchdata's
            StatefulDataLoader.

    Raises:
        StateMismatch: this is not a loader's state, or it is damaged.

    >>> from stateful_gpu_loader import StatefulGPULoader
    >>> loader = StatefulGPULoader(range(8), batch_size=2, seed=1)
    >>> _ = next(iter(loader))
    >>> found = describe(loader.state_dict())
    >>> found.epoch, found.position, found.unit, found.share
    (0, 2, 'samples', 0.25)
    """
    if is_torchdata_state(state):
        return _of_torchdata(TorchdataState.from_dict(state))
    return _of_loader(LoaderState.from_dict(state), version=state["version"])


def _of_loader(state: LoaderState, *, version: int) -> Description:
    fingerprint = Fingerprint.from_text(state.fingerprint)
    user = None if state.user is None else UserStates.from_dict(state.user)
    num_lanes = LanePlan.num_lanes_of(fingerprint.order)
    texts = sorted((lane_of(key), text) for key, text in (state.lanes or {}).items())
    lanes = tuple(_lane(lane, text) for lane, text in texts)
    unit = BATCHES if num_lanes is not None or fingerprint.order == "iterable" else SAMPLES
    epoch_samples = fingerprint.length if _is_own_order(fingerprint) else None
    samples = state.position if unit == SAMPLES else _samples_of(lanes, num_lanes)
    record = BadSamples.from_text(state.bad_samples)
    return Description(
        library=FORMAT,
        version=version,
        seed=state.seed,
        epoch=state.epoch,
        position=state.position,
        unit=unit,
        epoch_samples=epoch_samples,
        samples_seen=samples,
        batches_seen=_batches(state, user, unit, epoch_samples),
        share=None if samples is None or not epoch_samples else samples / epoch_samples,
        finished=None,
        global_batch_size=state.global_batch_size,
        ranks=_ranks(lanes, num_lanes, unit),
        lanes=lanes,
        num_lanes=num_lanes,
        ahead=_num_ahead(state.ahead),
        fingerprint=vars(fingerprint),
        unverified=_unverified(fingerprint, has_digest=state.index_digest is not None),
        bad_samples=record.total,
        bad_sample_list=record.samples,
        user_objects=_user_objects(state.user),
    )


def _of_torchdata(state: TorchdataState) -> Description:
    has_samples = state.samples is not None and not state.steps
    objects = {
        "sampler": state.sampler,
        "sampler's iterator": None if state.permutation is not None else state.sampler_iterator,
        "batch sampler": state.index_sampler,
        **{f"worker {i}'s dataset": worker.dataset for i, worker in enumerate(state.workers)},
        **{f"worker {i}'s iterator": worker.iterator for i, worker in enumerate(state.workers)},
    }
    nothing = "torchdata's states do not describe it"
    return Description(
        library=_TORCHDATA,
        version=None,
        seed=None,
        epoch=None,
        position=state.batches,
        unit=BATCHES,
        epoch_samples=None,
        samples_seen=state.samples if has_samples else None,
        batches_seen=state.batches,
        share=None,
        finished=state.finished,
        global_batch_size=None,
        ranks="one rank; the state does not say which",
        lanes=(),
        num_lanes=None,
        ahead=0,
        fingerprint=None,
        unverified=dict.fromkeys(("dataset", "order", "transform", "seed"), nothing),
        bad_samples=None,
        bad_sample_list=(),
        user_objects=_sized(objects),
    )


def _is_own_order(fingerprint: Fingerprint) -> bool:
    """Return whether the fingerprint's length is that of an epoch, not of the dataset."""
    return not fingerprint.order.startswith("sampler ") and fingerprint.order != "iterable"


def _lane(lane: int, text: str) -> Lane:
    try:
        epoch, cursor = epoch_and_cursor(text)
    except ValueError as error:
        raise StateMismatch(
            lane_key(lane), saved=text, present=str(error), remedy=REMEDY_FOREIGN
        ) from None
    ended = cursor.shard == ENDED
    return Lane(
        lane=lane,
        epoch=epoch,
        samples=None if ended else cursor.count,
        shard=None if ended else cursor.shard,
        ended=ended,
    )


def _samples_of(lanes: tuple[Lane, ...], num_lanes: int | None) -> int | None:
    counts = [lane.samples for lane in lanes if lane.samples is not None]
    # One rank's lanes do not show other ranks' places.
    return sum(counts) if num_lanes is not None and len(counts) == num_lanes else None


def _batches(
    state: LoaderState, user: UserStates | None, unit: str, epoch_samples: int | None
) -> int | None:
    if unit == BATCHES:
        return state.position
    if user is not None and user.batches is not None:
        return user.batches + user.steps
    size = state.global_batch_size
    if size is None:
        return None
    is_at_the_end = state.position == epoch_samples
    return -(-state.position // size) if is_at_the_end or not state.position % size else None


def _ranks(lanes: tuple[Lane, ...], num_lanes: int | None, unit: str) -> str:
    if num_lanes is None:
        same = "the same on every rank; the number of ranks is not saved"
        return same if unit == SAMPLES else "one rank; the state does not say which"
    if len(lanes) == num_lanes:
        return "all ranks: the state has every lane"
    return f"some of the ranks: the state has {len(lanes)} of {num_lanes} lanes"


def _num_ahead(text: str | None) -> int:
    try:
        ahead = [] if text is None else json.loads(text)
        return len(ahead)
    except (ValueError, TypeError, RecursionError) as error:
        raise StateMismatch(
            "ahead", saved=text, present=f"a list in JSON ({error})", remedy=REMEDY_FOREIGN
        ) from None


def _unverified(fingerprint: Fingerprint, *, has_digest: bool) -> dict[str, str]:
    found = {
        field: "the state does not describe it"
        for field in ("dataset", "dataset_transform", "collate_fn", "batched")
        if getattr(fingerprint, field) is None
    }
    for field in ("transform", "batch_transform", "dataset_transform", "collate_fn"):
        names = _OWN_NAME.findall(getattr(fingerprint, field) or "")
        if names:
            found[field] = f"{', '.join(dict.fromkeys(names))} is compared by name only"
    for field, digest in (fingerprint.content or {}).items():
        if digest.endswith(SAMPLED):
            found[sampled(field)] = "the data is too long to be compared in full"
    kind, _, sampler = fingerprint.order.partition(" ")
    if fingerprint.order == "iterable":
        found["order"] = "the order of an iterable dataset is not compared, only its kind"
    elif kind == "sampler" and " " not in sampler and not has_digest:
        found["sampler"] = f"your {sampler} is compared by its class only"
    return found


def _user_objects(user: Any) -> tuple[UserObject, ...]:
    if user is None:
        return ()
    workers = [worker or {} for worker in user["workers"] or ()]
    return _sized(
        {
            "sampler": user["sampler"],
            "generator of the order": user["permutation"],
            **{f"worker {i}'s dataset": worker.get("dataset") for i, worker in enumerate(workers)},
            **{f"worker {i}'s iterator": each.get("iterator") for i, each in enumerate(workers)},
        }
    )


def _sized(objects: Mapping[str, Any]) -> tuple[UserObject, ...]:
    return tuple(
        UserObject(name=name, num_bytes=len(freeze(state, name)))
        for name, state in objects.items()
        if state is not None
    )

"""Says what a loader's state holds in words that need no knowledge of its fields.

What a state does not hold is None here, and is never guessed.
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
"""A qualified name of the user's in the description of a transform."""
_TORCHDATA = "torchdata's StatefulDataLoader"


@dataclass(frozen=True, kw_only=True)
class Lane:
    """How far one lane of a sharded dataset has been read in this epoch."""

    lane: int
    epoch: int
    samples: int | None
    """Samples that came from the lane; None where the state says only that it has ended."""
    shard: int | None
    """Ordinal of the shard that is being read, within the lane's own shards; None as above."""
    ended: bool
    """Whether the state says outright that the lane has ended; others may have, too."""


@dataclass(frozen=True, kw_only=True)
class UserObject:
    """The state of an object of the user's inside a loader's state."""

    name: str
    num_bytes: int
    """Of its pickled copy."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a loader's state holds; None stands for what it does not say."""

    library: str
    """Who wrote it: ``stateful_gpu_loader`` or torchdata's StatefulDataLoader."""
    version: int | None
    """Of the state's schema."""
    seed: int | None
    epoch: int | None
    """Pass over the dataset, counted from 0."""
    position: int
    """How far the epoch has come over all ranks, in ``unit``."""
    unit: str
    """``samples`` or ``batches``."""
    epoch_samples: int | None
    """Samples of a whole epoch, all ranks together."""
    samples_seen: int | None
    """Samples of this epoch that were delivered, all ranks together, bad ones that were left out
    included."""
    batches_seen: int | None
    """Batches of this epoch, if they all had the present global batch size."""
    share: float | None
    """Part of the epoch that was delivered, 0 to 1."""
    finished: bool | None
    """Whether the pass is over, so that the next one is new; None where only a resume shows it."""
    global_batch_size: int | None
    """Samples that all ranks deliver in one step."""
    ranks: str
    """Which ranks the state speaks of."""
    lanes: tuple[Lane, ...]
    num_lanes: int | None
    """Lanes of the whole dataset; None where it has none."""
    ahead: int
    """Batches delivered before an older one (``in_order=False``)."""
    fingerprint: Mapping[str, Any] | None
    """What must not change until the state is loaded; None where nothing of it is saved."""
    unverified: Mapping[str, str]
    """Parts of a loader that the state cannot prove to be the same, each with the reason."""
    bad_samples: int | None
    """How often a sample could not be used."""
    bad_sample_list: tuple[FoundBad, ...]
    """The first finding of each, at most 100."""
    user_objects: tuple[UserObject, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def describe(state: Mapping[str, Any]) -> Description:
    """Say what a state holds.

    Args:
        state: what ``state_dict()`` of a StatefulGPULoader or of torchdata's StatefulDataLoader
            returned.

    Raises:
        StateMismatch: it is no such state, or is damaged.

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
        ranks="one rank, the state does not say which",
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
    """Whether the fingerprint's length is that of an epoch; under a user's sampler it is not."""
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
    # A rank's own lanes do not tell how far the other ranks are.
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
        same = "the same on every rank; how many there were is not saved"
        return same if unit == SAMPLES else "one rank, the state does not say which"
    if len(lanes) == num_lanes:
        return "all ranks: it has every lane"
    return f"one rank, or some: it has {len(lanes)} of {num_lanes} lanes"


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
            found[sampled(field)] = "it is too long to be compared in full"
    kind, _, sampler = fingerprint.order.partition(" ")
    if fingerprint.order == "iterable":
        found["order"] = "an iterable dataset yields what it yields; only its kind is compared"
    elif kind == "sampler" and " " not in sampler and not has_digest:
        found["sampler"] = f"of your {sampler} only the class is known"
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

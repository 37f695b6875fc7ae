"""Says in a person's words what a loader's state holds; what it does not hold is unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stateful_gpu_loader.datasets.lanes import LanePlan
from stateful_gpu_loader.samplers.orders import SequentialOrder, ShuffledOrder
from stateful_gpu_loader.state.bad_samples import BadSamples, FoundBad
from stateful_gpu_loader.state.lane_cursor import ENDED, epoch_and_cursor
from stateful_gpu_loader.state.schema import FORMAT, Fingerprint, LoaderState
from stateful_gpu_loader.state.torchdata import TorchdataState
from stateful_gpu_loader.state.user_states import UserStates

_WHOLE_ORDERS = (SequentialOrder.algorithm, ShuffledOrder.algorithm)
"""Orders whose epoch has each sample of the dataset once."""
_OWN_NAME = re.compile(
    r"(?<![\w.])(?!(?:builtins|torch|torchvision|torchdata|stateful_gpu_loader)\.)"
    r"[A-Za-z_]\w*(?:\.[\w<>]+)+"
)
"""A qualified name of the user's in the description of a transform."""
_NEVER_SAVED = "how many workers and ranks the run had that saved it"


@dataclass(frozen=True, kw_only=True)
class LanePosition:
    """How far a lane of a sharded dataset was read."""

    lane: int
    num_samples: int
    """Samples of this epoch that came from it."""
    shard: int | None
    """Ordinal of the shard, in the lane's own sequence; None if the lane has ended."""


@dataclass(frozen=True, kw_only=True)
class StateDescription:
    """What a state says, and what it does not."""

    writer: str
    """The class of the loader that wrote it."""
    epoch: int | None
    """Counted from 0; None where the state does not tell."""
    position: int
    """How much of the epoch was delivered, in :attr:`unit`."""
    unit: str
    """What the position counts."""
    epoch_length: int | None
    """How many of those an epoch has; None where the state does not tell."""
    global_batch_size: int | None
    """Samples that all ranks together deliver in one step; None where the state does not tell."""
    samples_seen: int | None
    """Samples delivered since the first epoch, if each epoch was read to its end."""
    seed: int | None
    fingerprint: Mapping[str, Any]
    """What must be the same where the state is loaded, field by field."""
    lanes: tuple[LanePosition, ...]
    num_lanes: int | None
    """Lanes of all ranks together; None without lanes."""
    num_bad_samples: int
    """How many samples could not be used, in all."""
    bad_samples: tuple[FoundBad, ...]
    """The first of them."""
    user_states: tuple[str, ...]
    """Of which of the user's own objects it holds the state."""
    unverified: tuple[str, ...]
    """What a load cannot compare, or only by its name."""
    unknown: tuple[str, ...]
    """What the state does not tell."""

    @property
    def share(self) -> float | None:
        """Delivered part of the epoch, from 0 to 1; None where it is not known."""
        return self.position / self.epoch_length if self.epoch_length else None

    @property
    def steps(self) -> int | None:
        """Steps of the epoch, if all were of :attr:`global_batch_size`; None if not known."""
        if not self.unit.startswith("samples"):
            return self.position
        if self.global_batch_size is None:
            return None
        return -(-self.position // self.global_batch_size)


def describe_state(state: Mapping[str, Any]) -> StateDescription:
    """Describe what ``state_dict()`` of a StatefulGPULoader or a StatefulDataLoader returned.

    Raises:
        StateMismatch: the state is damaged, or of a later version.

    >>> from stateful_gpu_loader import StatefulGPULoader
    >>> loader = StatefulGPULoader(range(10), batch_size=4, shuffle=True, seed=7)
    >>> _ = next(iter(loader))
    >>> found = describe_state(loader.state_dict())
    >>> found.epoch, found.position, found.unit, found.share, found.steps, found.samples_seen
    (0, 4, 'samples of the epoch, over all ranks', 0.4, 1, 4)
    """
    if state.get("format") != FORMAT:
        return _of_torchdata(TorchdataState.from_dict(state))
    loaded = LoaderState.from_dict(state)
    fingerprint = Fingerprint.from_text(loaded.fingerprint)
    lanes = tuple(_lane(lane, text) for lane, text in sorted((loaded.lanes or {}).items()))
    num_lanes = LanePlan.num_lanes_of(fingerprint.order)
    unit, length, unknown = _measure(fingerprint, num_lanes)
    if num_lanes is not None and len(lanes) < num_lanes:
        unknown.append(f"{num_lanes - len(lanes)} of {num_lanes} lanes: other ranks' states")
    if loaded.global_batch_size is None:
        unknown.append("the batch size: batches are as the user's sampler or dataset makes them")
    bad = BadSamples.from_text(loaded.bad_samples)
    is_counted = length is not None and unit.startswith("samples")
    return StateDescription(
        writer="StatefulGPULoader",
        epoch=loaded.epoch,
        position=loaded.position,
        unit=unit,
        epoch_length=length,
        global_batch_size=loaded.global_batch_size,
        samples_seen=loaded.epoch * (length or 0) + loaded.position if is_counted else None,
        seed=loaded.seed,
        fingerprint=vars(fingerprint),
        lanes=lanes,
        num_lanes=num_lanes,
        num_bad_samples=bad.total,
        bad_samples=bad.samples,
        user_states=_user_states(loaded.user),
        unverified=_unverified(fingerprint, has_digest=loaded.index_digest is not None),
        unknown=(*unknown, _NEVER_SAVED),
    )


def _measure(fingerprint: Fingerprint, num_lanes: int | None) -> tuple[str, int | None, list[str]]:
    """What a position counts, how many an epoch has, and what is unknown of it."""
    order = fingerprint.order
    if num_lanes is not None:
        return "batches of the rank with most of them", None, ["how many batches an epoch has"]
    if order == "iterable":
        return "batches", None, ["how many batches an epoch has"]
    if order.startswith("sampler "):
        return (
            "indices that the sampler gave on this rank",
            None,
            ["how many indices the sampler gives in an epoch"],
        )
    unit = "samples of the epoch, over all ranks"
    if order in _WHOLE_ORDERS and fingerprint.length is not None:
        return unit, fingerprint.length, []
    return unit, None, [f"how many samples an epoch of the order {order!r} has"]


def _lane(lane: int, text: str) -> LanePosition:
    _, cursor = epoch_and_cursor(text)
    shard = None if cursor.shard == ENDED else cursor.shard
    return LanePosition(lane=lane, num_samples=cursor.count, shard=shard)


def _user_states(user: Any) -> tuple[str, ...]:
    if user is None:
        return ()
    states = UserStates.from_dict(user)
    found = []
    if states.sampler is not None:
        found.append(f"the sampler ({len(states.sampler):,} bytes)")
    for number, worker in enumerate(states.workers or ()):
        size = 0 if worker is None else len(worker)
        place = "the main process" if states.num_workers == 0 else f"worker {number}"
        found.append(f"dataset or iterator in {place} ({size:,} bytes)")
    if states.steps:
        found.append(f"taken {states.steps} batches ago, which are made again at a load")
    return tuple(found)


def _unverified(fingerprint: Fingerprint, *, has_digest: bool) -> tuple[str, ...]:
    found = []
    if fingerprint.dataset is None:
        found.append("dataset: nothing is known of what it holds, only its length is compared")
    for field in ("transform", "batch_transform", "dataset_transform", "collate_fn"):
        names = _OWN_NAME.findall(getattr(fingerprint, field) or "")
        if names:
            found.append(f"{field}: {', '.join(dict.fromkeys(names))} is compared by name only")
    if fingerprint.order.startswith("sampler "):
        proof = "the indices it gave so far are compared" if has_digest else "by its class only"
        found.append(f"sampler: {fingerprint.order.removeprefix('sampler ')}, {proof}")
    return tuple(found)


def _of_torchdata(state: TorchdataState) -> StateDescription:
    return StateDescription(
        writer="StatefulDataLoader of torchdata",
        epoch=None,
        position=state.batches,
        unit="batches",
        epoch_length=None,
        global_batch_size=None,
        samples_seen=None,
        seed=None,
        fingerprint={},
        lanes=(),
        num_lanes=None,
        num_bad_samples=0,
        bad_samples=(),
        user_states=tuple(
            f"dataset or iterator in worker {number}"
            for number, worker in enumerate(state.workers)
            if worker.dataset is not None or worker.iterator is not None
        ),
        unverified=("everything: torchdata's states do not describe the loader",),
        unknown=(
            "the epoch, the batch size, the dataset and the transforms",
            f"how to go on with another number of workers than {state.num_workers}, where it "
            "holds states of the dataset or of iterators",
        ),
    )

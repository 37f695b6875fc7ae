"""Which sample stands at a place of a stream, and at which places a sample is delivered."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from stateful_gpu_loader.datasets.lanes import LanePlan
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.engine.resume.rank_states import merge_state_dicts
from stateful_gpu_loader.engine.resume.seek import existing_epoch, refuse_unless_own_order
from stateful_gpu_loader.engine.schedules.positions import Division
from stateful_gpu_loader.errors import NoSuchPlace
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.samplers import EpochOrder, PositionOrder
from stateful_gpu_loader.samplers.choice import order_described
from stateful_gpu_loader.samplers.orders import has_inverse, positions_of
from stateful_gpu_loader.state.bad_samples import BadSamples
from stateful_gpu_loader.state.schema import COMPARED, Fingerprint, LoaderState
from stateful_gpu_loader.state.user_states import UserStates
from stateful_gpu_loader.tools.seek import states_of_one_loader

_DECIDES_THE_ORDER = {"dataset", "length", "order", "shuffle", "drop_last", "batched"}


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A sample at one place of an epoch."""

    epoch: int
    position: int
    """Position in the epoch's global order. From the epoch's length on it is a sample from the
    epoch's beginning, repeated so that all ranks deliver as many in the last step."""
    index: int
    """Index in the dataset."""
    name: str | None
    """Where the sample is stored, if a loader over a Source was given and it can be read."""
    is_delivered: bool | None
    """Whether it is delivered: drop_last leaves out an incomplete last step, so this is not known
    (None) where the steps are not known."""
    step: int | None
    """Number of the step in the epoch, counted from 0; None if not delivered or not known."""
    rank: int | None
    """Rank that delivers it, among the ranks that share the order; None as for ``step``."""
    row: int | None
    """Place in that rank's batch, counted from 0; None as for ``step``."""
    bad: str | None
    """Why the sample is recorded as bad, if the state does so; ``on_bad_sample="replace"`` then
    delivers another one in its place."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Epoch:
    """One epoch of a stream: the order of its samples, and how they are divided."""

    epoch: int
    order: EpochOrder
    global_batch_size: int | None
    """Number of samples in one step of all ranks; None if the steps are not known."""
    num_replicas: int | None
    """Number of ranks; None if it is not known."""
    drop_last: bool
    unknown: str | None
    """Why the steps or the ranks are not known; None if they are."""
    bad_samples: Mapping[Any, str]
    """Reasons of the samples that the state records as bad, by index."""
    source: Source | None
    """Names the samples."""

    @property
    def is_searched(self) -> bool:
        """Whether :meth:`of_sample` looks at all positions, because the order has no inverse."""
        return not has_inverse(self.order)

    @cached_property
    def end(self) -> int:
        """Number of places in the epoch: its samples, and those repeated in the last step."""
        n, size, ranks = self.order.n, self.global_batch_size, self.num_replicas
        is_padded = size is not None and ranks is not None and not self.drop_last
        return -(-n // ranks) * ranks if is_padded and ranks else n

    def of_sample(self, index: int) -> list[Placed]:
        """Return every place of a sample, in order; none if the epoch does not contain it.

        It takes the same time for any length of the epoch, unless :attr:`is_searched`.

        Raises:
            NoSuchPlace: the index is negative.
        """
        if index < 0:
            raise NoSuchPlace(f"{index = } is negative. Remedy: count from 0")
        n = self.order.n
        first = positions_of(self.order, index)
        laps = range(-(-self.end // n)) if n else range(0)
        every = np.concatenate([first[:0], *(first + lap * n for lap in laps)])
        return self._placed(every[every < self.end])

    def at_position(self, position: int) -> Placed:
        """Return the sample at a position of the epoch's global order.

        Raises:
            NoSuchPlace: the epoch has no such position.
        """
        if not 0 <= position < self.end:
            raise NoSuchPlace(
                f"{position = } lies outside epoch {self.epoch}, which has {self.end} places. "
                f"Remedy: pass 0 to {self.end - 1}"
            )
        return self._placed(np.array([position], dtype=np.int64))[0]

    def at_step(self, step: int, *, rank: int | None = None) -> list[Placed]:
        """Return the samples of one step, in the order of their positions.

        Args:
            step: counted from 0 in each epoch.
            rank: the rank whose batch is meant; None means the batches of all ranks.

        Raises:
            NoSuchPlace: the epoch has no such step or rank, or its steps or ranks are not known.
        """
        size, ranks = self.global_batch_size, self.num_replicas
        if size is None or (rank is not None and ranks is None):
            raise NoSuchPlace(f"the samples of step {step} are not known: {self.unknown}")
        if rank is not None and ranks is not None and not 0 <= rank < ranks:
            raise NoSuchPlace(f"{rank = } is none of the {ranks} ranks")
        num_steps = Division(batch_size=size, drop_last=self.drop_last).num_steps(self.order.n)
        if not 0 <= step < num_steps:
            raise NoSuchPlace(
                f"{step = } lies outside epoch {self.epoch}, which has {num_steps} steps of {size} "
                "samples, all ranks together. Remedy: steps are counted from 0 in each epoch"
            )
        positions = np.arange(step * size, min(self.end, (step + 1) * size), dtype=np.int64)
        return self._placed(positions if rank is None else positions[rank::ranks])

    def _placed(self, positions: IndexArray) -> list[Placed]:
        n, size, ranks = self.order.n, self.global_batch_size, self.num_replicas
        indices = self.order(positions % n) if len(positions) else positions
        last = n // size * size if size is not None and self.drop_last else self.end
        is_known = size is not None or not self.drop_last
        found = []
        for position, index in zip(positions.tolist(), indices.tolist(), strict=True):
            is_delivered = position < last
            step, offset = divmod(position, size) if size and is_delivered else (None, None)
            row, rank = divmod(offset, ranks) if ranks and offset is not None else (None, None)
            found.append(
                Placed(
                    epoch=self.epoch,
                    position=position,
                    index=index,
                    name=name_of(self.source, index),
                    is_delivered=is_delivered if is_known else None,
                    step=step,
                    rank=rank,
                    row=row,
                    bad=self.bad_samples.get(index),
                )
            )
        return found


def epoch_of(
    state: Mapping[str, Any],
    *,
    epoch: int | None = None,
    loader: DataLoader[Any] | None = None,
    num_replicas: int | None = None,
) -> Epoch:
    """Return an epoch of the stream that a state belongs to.

    The state alone is enough for a sequential or shuffled order, rounds of it, draws with
    replacement, repetitions, blocks of one length, and a subset that is a range. For weights,
    classes, lists, mixtures and shards it holds a digest only, and the loader is needed. Steps are
    those of the state's global batch size.

    Args:
        state: what ``StatefulGPULoader.state_dict()`` returned.
        epoch: None is that of the state.
        loader: a StatefulGPULoader of the stream, which is not iterated: it gives the order, the
            ranks and the names of the samples.
        num_replicas: number of ranks, if neither state nor loader say it.

    Raises:
        NoSuchPlace: only iterating tells the order, a loader is needed to know it, or the number
            of ranks contradicts the state or the loader.
        StateMismatch: the state is damaged, or the loader is one of another stream.

    >>> saved = StatefulGPULoader(range(10**11), batch_size=4, shuffle=True, seed=1).state_dict()
    >>> (place,) = epoch_of(saved, epoch=3, num_replicas=2).of_sample(12_345_678_901)
    >>> place.step, place.rank, place.row
    (8998390782, 1, 1)
    """
    own = LoaderState.from_dict(state)
    saved = Fingerprint.from_text(own.fingerprint)
    refuse_unless_own_order(saved)
    if LanePlan.num_lanes_of(saved.order) is not None:
        raise NoSuchPlace(
            "the samples of shards have no index: only reading the lanes tells what comes where"
        )
    number = own.epoch if epoch is None else existing_epoch(epoch)
    if own.user is not None and number == own.epoch:
        _refuse_torchdatas(own)
    plan = None if loader is None else _plan_of(loader, saved)
    order = _order_of(saved, plan).of_epoch(own.seed, number)
    size = own.global_batch_size
    ranks, unknown = _ranks(own, plan, num_replicas)
    if size and number == own.epoch and own.position % size and own.position < order.n:
        unknown = (
            f"position {own.position} of the state is no multiple of its global batch size {size}, "
            f"so epoch {number} was begun with another one. Its positions alone are known"
        )
        size = ranks = None
    return Epoch(
        epoch=number,
        order=order,
        global_batch_size=size,
        num_replicas=ranks,
        drop_last=saved.drop_last,
        unknown=unknown,
        bad_samples={
            bad.index: bad.reason for bad in BadSamples.from_text(own.bad_samples).samples
        },
        source=None if plan is None or not plan.is_read else plan.source,
    )


def state_in(path: str | os.PathLike[str], where: str | None = None) -> dict[str, Any]:
    """Return the state of one loader in a file, with what its ranks have found to be bad.

    Args:
        path: the file, of any kind that :func:`find_states` reads.
        where: place of the loader's state in the file, needed if it holds several loaders.

    Raises:
        NoState: there is no state, or there are those of several loaders.
        StateMismatch: a state is damaged, or the ranks stand at different places.
    """
    found = states_of_one_loader(path, where)
    return found[0].state if len(found) == 1 else merge_state_dicts([one.state for one in found])


def _refuse_torchdatas(state: LoaderState) -> None:
    if UserStates.from_dict(state.user).permutation is not None:
        raise NoSuchPlace(
            f"epoch {state.epoch} goes on from a state of torchdata's, in torchdata's order. "
            "Remedy: ask for a later epoch, which has this package's order"
        )


def _plan_of(loader: DataLoader[Any], saved: Fingerprint) -> Plan:
    """Return the plan of a loader of the same stream.

    Raises:
        StateMismatch: it has another order or dataset.
    """
    if not isinstance(loader, StatefulGPULoader):
        raise NoSuchPlace(
            f"a {type(loader).__name__} does not tell its order without being iterated. Remedy: "
            "give a StatefulGPULoader"
        )
    plan = loader._engine.plan
    accept = set(COMPARED) - _DECIDES_THE_ORDER
    loader._engine.identity.fingerprint.check(saved, accept=accept, position=0)
    return plan


def _order_of(saved: Fingerprint, plan: Plan | None) -> PositionOrder:
    found = None
    if plan is not None and not plan.is_endless:
        found = plan.order
    elif plan is None and saved.length is not None:
        found = order_described(saved.order, saved.length)
    if found is not None:
        return found
    if saved.length is None:
        raise NoSuchPlace(
            "where an epoch of this stream ends is not known. Remedy: CallableSource(..., length=)"
        )
    raise NoSuchPlace(
        f"the state tells the order {saved.order!r} apart from others, but does not hold all of "
        "it. Remedy: give the loader as well (--factory MODULE:FACTORY)"
    )


def _ranks(
    state: LoaderState, plan: Plan | None, given: int | None
) -> tuple[int | None, str | None]:
    """Return the number of ranks, or None and why it is not known.

    Raises:
        NoSuchPlace: the given number contradicts the state or the loader.
    """
    size = state.global_batch_size
    if size is None:
        return None, "the state does not tell its global batch size"
    said = 1 if size == 1 else None
    division = None if plan is None else plan.division
    if plan is not None and division is not None:
        is_auto = plan.config.num_replicas == "auto"
        if division.global_batch_size == size and not is_auto:
            said = division.num_replicas
        elif is_auto and size % division.batch_size == 0:
            said = size // division.batch_size
    if given is None:
        unknown = (
            f"of the {size} samples in a step, the state does not tell how many ranks share them. "
            "Remedy: pass the number of ranks (--num-replicas)"
        )
        return said, unknown if said is None else None
    if given < 1 or size % given:
        raise NoSuchPlace(f"the {size} samples in a step are not shared by {given} ranks alike")
    if said not in (None, given):
        raise NoSuchPlace(f"num_replicas={given} is given, but there are {said} ranks")
    return given, None


def name_of(source: Source | None, index: int) -> str | None:
    """Return where a sample is stored; None if there is no source, or it cannot be read."""
    if source is None:
        return None
    try:
        return source.read(index).name
    except (OSError, ValueError, IndexError):
        return None  # a sample that cannot be read has an index all the same

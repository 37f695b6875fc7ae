"""Finds the sample at a place of a stream, and the places of a sample."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sized
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
from stateful_gpu_loader.samplers.blocks import BlockOrder
from stateful_gpu_loader.samplers.choice import order_described
from stateful_gpu_loader.samplers.orders import SequentialOrder, has_inverse, positions_of
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
    """Position in the epoch's global order; beyond the epoch's length, samples of its beginning
    fill the last step."""
    index: int
    """Index in the dataset."""
    name: str | None
    """Name under which the sample is stored, if a loader over a Source was given."""
    is_delivered: bool | None
    """Whether the sample is delivered; drop_last leaves out an incomplete last step. None if
    unknown."""
    step: int | None
    """Number of the step in the epoch, counted from 0; None if not delivered or unknown."""
    rank: int | None
    """Rank that delivers the sample; None as for ``step``."""
    row: int | None
    """Place in that rank's batch, counted from 0; None as for ``step``."""
    bad: str | None
    """Reason, if the state records the sample as bad; ``on_bad_sample="replace"`` then delivers
    another sample in its place."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Epoch:
    """One epoch of a stream: the order of its samples, and their division into steps and ranks."""

    epoch: int
    order: EpochOrder
    global_batch_size: int | None
    """Number of samples in one step of all ranks, if known."""
    num_replicas: int | None
    """Number of ranks, if known."""
    drop_last: bool
    unknown: str | None
    """Why the steps or the ranks are unknown, if so."""
    bad_samples: Mapping[Any, str]
    """Reasons for the samples that the state records as bad, by index."""
    source: Source | None
    """Source of the samples' names."""
    num_samples: int | None
    """Number of samples in the dataset, if known."""

    @property
    def is_searched(self) -> bool:
        """Whether :meth:`of_sample` searches all positions, because the order has no inverse."""
        return not has_inverse(self.order)

    @cached_property
    def end(self) -> int:
        """Number of places in the epoch, with those repeated in the last step."""
        n, size, ranks = self.order.n, self.global_batch_size, self.num_replicas
        is_padded = size is not None and ranks is not None and not self.drop_last
        return -(-n // ranks) * ranks if is_padded and ranks else n

    def of_sample(self, index: int) -> list[Placed]:
        """Return all places of a sample, in order; none if the epoch does not contain it.

        The time depends on the epoch's length only if :attr:`is_searched`.

        Raises:
            NoSuchPlace: the dataset has no such index.
        """
        if index < 0:
            raise NoSuchPlace(f"{index = } is negative. Remedy: count from 0")
        if self.num_samples is not None and index >= self.num_samples:
            raise NoSuchPlace(
                f"there is no sample {index}: the stream has {self.num_samples} samples. Remedy: "
                f"pass 0 to {self.num_samples - 1}"
            )
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
            step: number of the step, counted from 0 in each epoch.
            rank: rank of the batch; None returns the batches of all ranks.

        Raises:
            NoSuchPlace: the epoch has no such step or rank, or its steps or ranks are not known.
        """
        size, ranks = self.global_batch_size, self.num_replicas
        if size is None or (rank is not None and ranks is None):
            raise NoSuchPlace(f"the samples of step {step} are not known: {self.unknown}")
        if rank is not None and ranks is not None and not 0 <= rank < ranks:
            raise NoSuchPlace(f"{rank = } does not exist. Remedy: pass 0 to {ranks - 1}")
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

    The state alone suffices for a sequential or shuffled order, rounds of it, draws with
    replacement, repetitions, blocks of one length, and a subset that is a range. Weights, classes,
    lists, mixtures and shards need the loader. Steps have the state's global batch size.

    Args:
        state: result of ``StatefulGPULoader.state_dict()``.
        epoch: number of the epoch; None is the epoch of the state.
        loader: a StatefulGPULoader of the stream, for the order, the ranks and the names of the
            samples. It is not iterated.
        num_replicas: number of ranks, if neither the state nor the loader says it.

    Raises:
        NoSuchPlace: the order is known only by iterating or with the loader, or the number of ranks
            contradicts the state or the loader.
        StateMismatch: the state is damaged, or the loader belongs to another stream.

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
            "the samples of shards have no index, and only reading the lanes shows their places"
        )
    number = own.epoch if epoch is None else existing_epoch(epoch)
    if own.user is not None and number == own.epoch:
        _refuse_torchdatas(own)
    plan = None if loader is None else _plan_of(loader, saved)
    whole_order = _order_of(saved, plan)
    order = whole_order.of_epoch(own.seed, number)
    size = own.global_batch_size
    ranks, unknown = _ranks(own, plan, num_replicas)
    if size and number == own.epoch and own.position % size and own.position < order.n:
        unknown = (
            f"position {own.position} of the state is not a multiple of its global batch size "
            f"{size}, so epoch {number} was begun with another batch size. Only its positions are "
            "known"
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
        num_samples=_num_samples(whole_order, plan),
    )


def state_in(path: str | os.PathLike[str], where: str | None = None) -> dict[str, Any]:
    """Return the state of one loader in a file, with the bad samples of all ranks.

    Args:
        path: the file, of any kind that :func:`find_states` reads.
        where: place of the loader's state in the file, needed if it holds several loaders.

    Raises:
        NoState: the file has no state, or states of several loaders.
        StateMismatch: a state is damaged, or the ranks are at different places.
    """
    found = states_of_one_loader(path, where)
    return found[0].state if len(found) == 1 else merge_state_dicts([one.state for one in found])


def _refuse_torchdatas(state: LoaderState) -> None:
    if UserStates.from_dict(state.user).permutation is not None:
        raise NoSuchPlace(
            f"epoch {state.epoch} continues a state of torchdata's, in torchdata's order. Remedy: "
            "pass a later epoch, which has this package's order"
        )


def _plan_of(loader: DataLoader[Any], saved: Fingerprint) -> Plan:
    """Return the plan of a loader of the same stream.

    Raises:
        StateMismatch: the loader has another order or dataset.
    """
    if not isinstance(loader, StatefulGPULoader):
        raise NoSuchPlace(
            f"the order of a {type(loader).__name__} is known only by iterating it. Remedy: pass a "
            "StatefulGPULoader"
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
            "the end of an epoch of this stream is not known. Remedy: CallableSource(..., length=)"
        )
    raise NoSuchPlace(
        f"the state holds only a digest of the order {saved.order!r}. Remedy: pass the loader as "
        "well (--factory MODULE:FACTORY)"
    )


def _num_samples(order: PositionOrder, plan: Plan | None) -> int | None:
    """Return the length of the dataset, if the loader or the order shows it."""
    dataset = None if plan is None else plan.config.dataset
    if plan is not None and plan.calls is None and isinstance(dataset, Sized):
        return len(dataset)
    return order.num_positions if isinstance(order, (SequentialOrder, BlockOrder)) else None


def _ranks(
    state: LoaderState, plan: Plan | None, given: int | None
) -> tuple[int | None, str | None]:
    """Return the number of ranks, or None and why it is unknown.

    Raises:
        NoSuchPlace: the given number contradicts the state or the loader.
    """
    size = state.global_batch_size
    if size is None:
        return None, "the state does not hold its global batch size"
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
            f"the state does not hold the number of ranks that share the {size} samples of a step. "
            "Remedy: pass the number of ranks (--num-replicas)"
        )
        return said, unknown if said is None else None
    if given < 1 or size % given:
        raise NoSuchPlace(f"{given} ranks cannot share the {size} samples of a step equally")
    if said not in (None, given):
        raise NoSuchPlace(f"num_replicas={given} was passed, but there are {said} ranks")
    return given, None


def name_of(source: Source | None, index: int) -> str | None:
    """Return the name under which a sample is stored, if it can be read."""
    if source is None:
        return None
    try:
        return source.read(index).name
    except (OSError, ValueError, IndexError):
        return None  # the index is shown even if the sample cannot be read

"""Requests from a user's sampler, with or without a state.

A sampler with a state resumes in torchdata's order: the sampler's state, then ``iter()``, then the
iterator's state. A sampler without a state is iterated again, and a digest verifies the skipped
indices.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from stateful_gpu_loader.engine.schedules.rank_share import RankShare
from stateful_gpu_loader.engine.schedules.sampler_snapshot import (
    NOTHING_CAPTURED,
    SamplerSnapshot,
    replay_mark,
    state_mark,
)
from stateful_gpu_loader.engine.user_objects import load_user_state, state_of
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.randomness.global_generators import (
    caller_generators_restored,
    seed_global_generators,
)
from stateful_gpu_loader.randomness.philox import SeedBlock, Stream
from stateful_gpu_loader.records import Request
from stateful_gpu_loader.state.epoch_progress import Address
from stateful_gpu_loader.state.schema import Stateful
from stateful_gpu_loader.state.user_states import freeze, thaw

_DRAW_AT_THE_START = (
    SequentialSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    DistributedSampler,
    StatefulDistributedSampler,
    list,
    tuple,
    range,
)
"""Samplers, without subclasses, that draw from the global generators only when they start.

Otherwise they depend only on what :class:`SamplerSnapshot` keeps.
"""


_DIVIDES = (DistributedSampler, StatefulDistributedSampler)
"""Samplers, without subclasses, whose arguments determine their indices.

Any rank can load any rank's state.
"""


_KEEP_OWN = (
    "load into each rank the state that this rank saved: keep one file per rank, or, with "
    "torch.distributed.checkpoint, a RankedState, which holds all states"
)


@dataclass(frozen=True, kw_only=True)
class SamplerUse:
    """A sampler, and the settings for iterating it."""

    sampler: Any
    """Sampler that yields indices, or whole batches of indices."""
    yields_batches: bool
    batch_size: int
    """Batch size for a sampler that yields indices; 1 without collation."""
    drop_last: bool
    memory: SamplerSnapshot
    rank: int
    num_replicas: int
    """Number of ranks, between which only keys differ."""


class SamplerFeed:
    """Iterates over the requests of one pass over a sampler.

    Args:
        use: the sampler and its settings.
        place: where the pass begins; its ``user`` may hold the sampler's state.
        resumed: whether ``place`` was loaded, so that the sampler must be restored to it.
    """

    def __init__(self, use: SamplerUse, place: Address, *, seed: int, resumed: bool) -> None:
        self._use = use
        self._place = place
        self._seed = seed
        self._resumed = resumed
        self._iterator: Any = None
        self._has_state = has_own_state(use.sampler)
        self._share = RankShare(None if type(use.sampler) in _DIVIDES else use.sampler)
        self._seeds = SeedBlock(Stream.SAMPLER)
        self._partial: list[Any] = []
        self._exhausted = False
        self.is_lost = False
        self._ordinal = 0
        self._capture: Mapping[str, Any] = NOTHING_CAPTURED
        self._start_mark: bytes | None = None
        self._digest = hashlib.blake2b(digest_size=12)
        self.position = place.position if place.user is None else place.user.base
        known = None if place.user is None else place.user.batches
        if known is None and not self.position:
            known = 0
        self.batches: int | None = known if use.yields_batches else None

    @property
    def has_state(self) -> bool:
        """Whether the sampler or its iterator has ``state_dict``; known after ``iter()``."""
        return self._has_state

    def draw(self) -> Request | None:
        with self._keyed():
            if self._iterator is None:
                try:
                    self._begin()
                except BaseException:
                    self._iterator = None  # begin again next time
                    self._digest = hashlib.blake2b(digest_size=12)
                    raise
            indices = self._drawn()
        if indices is None:
            return None
        step = self._use.num_replicas
        return Request(
            ordinal=self._ordinal,
            seed=self._seed,
            epoch=self._place.epoch,
            start=self.position * step + self._use.rank,
            step=step,
            indices=indices,
            end=self.position + len(indices),
        )

    def advance(self, request: Request) -> None:
        self._partial = []
        self._ordinal += 1
        self.position = request.end

    def mark(self) -> bytes:
        """Return the serialized state of the sampler and its iterator after the last request."""
        return self._frozen_state(self._capture, iterator=self._iterator)

    def start_mark(self) -> bytes | None:
        """Return the mark where the iteration began; None if the sampler was as built."""
        return self._start_mark

    def count(self, request: Request) -> str | None:
        """Count a delivered request; return the digest of all indices, however batched."""
        self._use.memory.note_delivery()
        if self.batches is not None:
            self.batches += 1
        if self._has_state:
            return None
        self._digest.update(self._written(request.index_list()))
        return self._share.signed(self._digest.hexdigest())

    def proof_of(self, request: Request) -> str | None:
        rank, num_replicas = self._use.rank, self._use.num_replicas
        parts = [f"rank {rank} of {num_replicas}"] if num_replicas > 1 else []
        if not self._has_state:
            indices = _text(request.index_list())
            parts.insert(0, f"indices {hashlib.blake2b(indices, digest_size=12).hexdigest()}")
        return " on ".join(parts) or None

    def _written(self, indices: list[Any]) -> bytes:
        if type(self._use.sampler) in _DIVIDES:
            return b"," * len(indices)
        return _text(indices)

    def end_mark(self) -> bytes | None:
        """Return the mark where the next pass begins."""
        if has_own_state(self._use.sampler):
            return self._frozen_state({}, iterator=None)
        if not self._has_state and type(self._use.sampler) not in _DRAW_AT_THE_START:
            whole = self._digest.copy()
            whole.update(_text(self._partial))  # a tail that drop_last drops
            passed = {
                "epoch": self._place.epoch,
                "indices": self.position + len(self._partial),
                "digest": self._share.signed(whole.hexdigest()),
            }
            return freeze(replay_mark(self._capture, passed), "a sampler")
        capture = self._use.memory.capture()
        return freeze(replay_mark(capture), "a sampler") if any(capture.values()) else None

    def _frozen_state(self, capture: Mapping[str, Any], *, iterator: Any) -> bytes:
        """Serialize a sampler's own state, or its iterator's state since ``capture``."""
        sampler = self._use.sampler
        own = has_own_state(sampler)
        mark = state_mark(
            sampler.state_dict() if own else None,
            state_of(iterator),
            exhausted=iterator is not None and self._exhausted,
            captured=self._use.memory.epochs() if own else capture,
        )
        return freeze(mark, type(sampler).__name__)

    def _begin(self) -> None:
        if not self._resumed:
            self._use.memory.apply_overruled_epoch()
        saved = None if self._place.user is None else self._place.user.sampler
        if saved is None and self._resumed:
            self._restore_start(NOTHING_CAPTURED)
        if saved is None or not self._resumed:
            self._begin_as_it_is()
            return
        state = thaw(saved)
        if state["kind"] == "state":
            self._restore(state)
        else:
            self._replay(state)

    def _begin_as_it_is(self) -> None:
        if has_own_state(self._use.sampler):
            self._start_mark = self._frozen_state({}, iterator=None)
        self._open_as_captured()

    def _open_as_captured(self) -> None:
        if not self._has_state:
            self._seed_for(0, self._place.epoch)
            self._capture = self._use.memory.capture()
            if any(self._capture.values()):
                self._start_mark = freeze(replay_mark(self._capture), "a sampler")
        self._open()
        if type(self._use.sampler) in _DIVIDES:
            self._digest.update(_text([*_identity(self._use.sampler).values()]))
        if self._resumed and not self._has_state:
            place = self._place
            self._skip(self.position, place.index_digest, epoch=place.epoch, start=self._capture)

    def _open(self) -> None:
        self._iterator = iter(self._use.sampler)
        self._has_state = self._has_state or isinstance(self._iterator, Stateful)

    def _restore(self, state: dict[str, Any]) -> None:
        """Restore in torchdata's order: the sampler's state, ``iter()``, the iterator's state."""
        sampler = self._use.sampler
        self._start_mark = freeze(state, type(sampler).__name__)
        self._restore_start(state)
        load_user_state("sampler", sampler, state["sampler"])
        self._capture = {key: state[key] for key in ("attributes", "generators")}
        self._open()
        load_user_state("sampler's iterator", self._iterator, state["iterator"])
        self._exhausted = state["exhausted"]

    def _replay(self, state: dict[str, Any]) -> None:
        if has_own_state(self._use.sampler):
            raise StateMismatch(
                "sampler",
                saved="a sampler without state",
                present=type(self._use.sampler).__name__,
                remedy="build the loader with the sampler that it was saved with",
            )
        if state["passed"] is not None:
            self._replay_previous_pass(state)
        else:
            self._restore_start(state)
        self._open_as_captured()

    def _restore_start(self, state: Mapping[str, Any]) -> None:
        """Restore the sampler to the start of the pass.

        Between two passes, loading the state has already done so, for one pass.
        """
        memory = self._use.memory
        if self._place.position:
            memory.restore_within_pass(state)
        elif not memory.take_restored():
            memory.restore(state)

    def _replay_previous_pass(self, state: dict[str, Any]) -> None:
        """Iterate the previous pass again, to verify the sampler's position."""
        passed = state["passed"]
        changed = self._use.memory.set_since_load()
        self._use.memory.restore(state)
        self._seed_for(0, passed["epoch"])
        self._iterator = iter(self._use.sampler)
        self._skip(
            passed["indices"], passed["digest"], epoch=passed["epoch"], start=state, to_end=True
        )
        self._use.memory.set_attributes(changed)
        self._digest = hashlib.blake2b(digest_size=12)

    def _skip(
        self,
        count: int,
        digest: str | None,
        *,
        epoch: int,
        start: Mapping[str, Any],
        to_end: bool = False,
    ) -> None:
        """Skip the delivered indices, and verify that they are the same.

        Args:
            count: number of indices.
            digest: their digest, or the digest of another rank's share.
            epoch: epoch of the loader in which they were delivered.
            start: snapshot of the sampler before its first index.
            to_end: whether they were the whole pass.
        """
        if not (count or to_end):
            return
        other = self._share.other_rank(digest)
        if other is None:
            self._prove(count, digest, epoch, to_end=to_end)
        else:
            self._skip_as_another_rank(other, count, digest, epoch, start, to_end)

    def _skip_as_another_rank(
        self,
        other: int,
        count: int,
        digest: str | None,
        epoch: int,
        start: Mapping[str, Any],
        to_end: bool,
    ) -> None:
        """Verify that the sampler, iterated as the other rank, yields the delivered indices.

        It is iterated twice, to reveal changes in the sampler.
        """
        for _ in range(2):
            self._rewind(start, epoch)
            with self._share.taken_as(other):
                self._iterator = iter(self._use.sampler)
                try:
                    steps = self._prove(count, digest, epoch, to_end=to_end)
                except Exception as error:
                    raise self._not_of_this_rank(count, other, digest) from error
        self._rewind(start, epoch)
        self._iterator = iter(self._use.sampler)
        skipped = self._skip_indices(sys.maxsize if to_end else count, epoch)
        if not to_end and skipped != (count, steps):
            raise self._not_of_this_rank(count, other, digest)

    def _rewind(self, start: Mapping[str, Any], epoch: int) -> None:
        self._use.memory.restore(start)
        self._seed_for(0, epoch)
        self._digest = hashlib.blake2b(digest_size=12)

    def _prove(self, count: int, digest: str | None, epoch: int, *, to_end: bool) -> int:
        """Skip ``count`` indices and compare their digest; return the number of their batches.

        Raises:
            StateMismatch: the indices differ.
        """
        skipped, steps = self._skip_indices(count, epoch)
        if skipped < count:
            raise self._not_reproducible(count, f"an end after {skipped}")
        saved = None if digest is None else digest.partition(" ")[0]
        if skipped > count or saved not in (None, self._digest.hexdigest()):
            divides = type(self._use.sampler) in _DIVIDES
            raise self._not_reproducible(
                count, f"indices of {_identity(self._use.sampler)}" if divides else "other indices"
            )
        if to_end and next(self._iterator, self) is not self:
            raise self._not_reproducible(count, "more indices")
        return steps

    def _skip_indices(self, count: int, epoch: int) -> tuple[int, int]:
        """Skip at least ``count`` indices; return the numbers of indices and of batches."""
        draws_at_start = type(self._use.sampler) in _DRAW_AT_THE_START
        skipped = steps = 0
        while skipped < count:
            if skipped and not draws_at_start:
                self._seed_for(skipped, epoch)
            if self._use.yields_batches:
                indices = list(next(self._iterator, ()))
            else:
                size = min(self._use.batch_size, count - skipped)
                indices = list(_next_of(self._iterator, size))
            if not indices:
                break
            skipped, steps = skipped + len(indices), steps + 1
            self._digest.update(self._written(indices))
        if not draws_at_start:
            self._seed_for(skipped, epoch)
        return skipped, steps

    def _drawn(self) -> list[Any] | None:
        """Return the indices of the next request; None at the end.

        An attribute keeps them, so that an exception does not lose them.
        """
        yields_batches = self._use.yields_batches
        size = 1 if yields_batches else self._use.batch_size
        if not self._exhausted and len(self._partial) < size:
            given = _next_of(self._iterator, size - len(self._partial))
            try:
                # A single call in C, which no signal handler can interrupt.
                self._partial.extend(map(list, given) if yields_batches else given)
            except BaseException as error:
                ends_it = not isinstance(error, Exception) or inspect.isgenerator(self._iterator)
                self.is_lost = ends_it
                raise
            self._exhausted = len(self._partial) < size
        if yields_batches:
            return self._partial[0] if self._partial else None
        is_dropped = len(self._partial) < size and self._use.drop_last
        return None if is_dropped or not self._partial else self._partial

    @contextmanager
    def _keyed(self) -> Iterator[None]:
        """Seed the global generators while the sampler draws, then restore the caller's."""
        if self._iterator is not None and type(self._use.sampler) in _DRAW_AT_THE_START:
            yield
            return
        with caller_generators_restored():
            self._seed_for(self.position, self._place.epoch)
            yield

    def _not_reproducible(self, count: int, present: str) -> StateMismatch:
        of_another_rank = keep_own = ""
        if self._use.num_replicas > 1 and type(self._use.sampler) not in _DIVIDES:
            of_another_rank = f", or the state belongs to another rank than {self._use.rank}"
            keep_own = f"; {_KEEP_OWN}"
        return StateMismatch(
            "sampler",
            saved=f"the digest of {count} indices",
            present=f"{present}: the sampler is not reproducible{of_another_rank}",
            remedy="build it as it was, with the same batch size, or give it state_dict() and "
            f"load_state_dict(){keep_own}",
        )

    def _not_of_this_rank(self, count: int, other: int, digest: str | None) -> StateMismatch:
        return StateMismatch(
            "sampler",
            saved=f"the digest of {count} indices {(digest or '').partition(' ')[2]}",
            present=f"the sampler of rank {self._use.rank}, which yields other indices if its "
            f"rank is set to {other}, so the state of another rank cannot give its position",
            remedy="build the sampler as it was; if it takes its share when it is built, "
            f"{_KEEP_OWN}",
        )

    def _seed_for(self, position: int, epoch: int) -> None:
        seed_global_generators(self._seeds.at(self._seed, epoch, position))


def has_own_state(sampler: Any) -> bool:
    """Whether a sampler keeps its own state.

    torchdata's StatefulDistributedSampler does not count, because between two epochs its state is
    the end of the previous epoch.
    """
    return isinstance(sampler, Stateful) and type(sampler) is not StatefulDistributedSampler


def _next_of(iterator: Iterator[Any], count: int) -> Iterator[Any]:
    """Return the next items of an iterator, at most ``count``.

    Only ``next()`` is called, as in torch.
    """
    return map(next, repeat(iterator, count))


def _text(indices: list[Any]) -> bytes:
    return "".join(f"{index!r}," for index in indices).encode()


def _identity(sampler: Any) -> dict[str, Any]:
    """Return the arguments that determine a distributed sampler's indices on all ranks."""
    arguments = "num_replicas", "shuffle", "seed", "drop_last", "epoch"
    length = len(sampler.dataset)
    return {**{name: getattr(sampler, name) for name in arguments}, "len(dataset)": length}

"""Progress of a loader: each pass's epoch, start and deliveries.

The state describes delivered batches. A batch is delivered when the user's loop takes it out of its
pass's :class:`Offer`, in a single C call that no signal handler can interrupt. All other progress
follows from that call, so an exception finds the progress either before or after a delivery.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stateful_gpu_loader.randomness.seed import SettledSeed
from stateful_gpu_loader.state.bad_samples import BadSamples, FoundBad

HISTORY = 16
"""Number of batches that ``state_dict(batches_ago=)`` can go back."""


@dataclass(frozen=True, slots=True)
class Address:
    """Address of the next sample: an epoch and a position in its global order."""

    epoch: int
    position: int
    """Position of the oldest undelivered sample. With a user's sampler: number of indices
    that the sampler has yielded. Over an iterable dataset: number of batches."""
    ahead: tuple[tuple[int, str | None], ...] = field(default=(), repr=False)
    """Positions of batches delivered before an older one (``in_order=False``), each with a proof to
    compare, or None."""
    index_digest: str | None = field(default=None, repr=False)
    """Digest of the indices before ``position``, which a sampler without state has to skip."""
    user: Any = field(default=None, repr=False)
    """States of the user's own objects, as ``UserStates``."""
    lanes: Mapping[int, Any] | None = field(default=None, repr=False)
    """Cursor of each lane of a sharded dataset; None at the beginning."""


class Delivered(NamedTuple):
    number: int
    """Number of the batch among those of the loader; later batches have larger numbers."""
    request: Any
    bad: tuple[FoundBad, ...]


class PassProgress(NamedTuple):
    """Deliveries of a pass, replaced as a whole."""

    place: Address
    """Place of the next sample to deliver."""
    history: tuple[Address, ...] = ()
    """Places before the loader's last delivered batches, oldest first, at most 16."""
    last_delivered: Address | None = None
    """Place after the last delivered batch, if failed batches lie between it and ``place``."""
    delivered: bool = False
    """Whether a batch of the pass has reached the user."""
    has_moved: bool = False
    """Whether a batch of the pass was delivered or failed, or the pass has ended."""
    following: Address | None = None
    """Place of the next pass, once this pass has ended."""
    bad: BadSamples | None = None
    """Record of the loader's bad samples up to the last in this pass, if any."""
    last: Delivered | None = None
    """Last batch of the pass, if any."""


class Offer(NamedTuple):
    """A batch that is ready for the user's loop, or an exception in its place."""

    content: list[Any]
    """The batch or the exception, until the user's loop takes it."""
    progress: PassProgress
    """Progress of the pass once the offer is taken."""
    is_failure: bool


class Pass:
    """One iterator's deliveries of one epoch.

    Args:
        start: place where the pass begins.
        number: number of the pass, counted from 1 as passes begin.
        generation: number of ``load_state_dict`` calls before the pass began.
        resumed: whether the pass continues a loaded state.
        seed: seed of the pass.
        bad: record of bad samples up to ``start``.

    >>> seed = SettledSeed(0, None)
    >>> current = Pass(Address(0, 0), number=1, generation=0, resumed=False, seed=seed, bad=None)
    >>> current.offer("batch", PassProgress(Address(0, 8), delivered=True))
    >>> current.progress.place
    Address(epoch=0, position=0)
    >>> current.offered.content.pop(), current.progress.place
    ('batch', Address(epoch=0, position=8))
    """

    __slots__ = (
        "_offer",
        "_progress",
        "generation",
        "is_left",
        "number",
        "resumed",
        "seed",
        "start",
    )

    def __init__(
        self,
        start: Address,
        *,
        number: int,
        generation: int,
        resumed: bool,
        seed: SettledSeed,
        bad: BadSamples | None,
    ) -> None:
        self.start = start
        self.number = number
        self.generation = generation
        self.resumed = resumed
        self.seed = seed
        self.is_left = False
        """Whether the pass's iterator is gone, for example after ``break``."""
        self._progress = PassProgress(start, bad=bad)
        self._offer: Offer | None = None

    @property
    def progress(self) -> PassProgress:
        """Deliveries up to now."""
        offer = self._offer
        return self._progress if offer is None or offer.content else offer.progress

    @property
    def is_over(self) -> bool:
        """Whether the pass will deliver nothing more."""
        return self.is_left or self.progress.following is not None

    @property
    def offered(self) -> Offer | None:
        """The offer that was not taken yet, or None."""
        offer = self._offer
        return offer if offer is not None and offer.content else None

    def offer(self, content: Any, progress: PassProgress, *, is_failure: bool = False) -> None:
        """Hold a batch or an exception ready for the user's loop."""
        self._progress = self.progress
        self._offer = Offer([content], progress, is_failure)

    def set_progress(self, progress: PassProgress) -> None:
        """Replace the progress without a delivery."""
        self._progress = self.progress
        self._offer = Offer([], progress, is_failure=False)


class _Base(NamedTuple):
    """Start set by the constructor or the last load, replaced as a whole."""

    seed: SettledSeed
    next: Address
    """Place where the next pass begins, until a pass has moved."""
    loaded: bool
    """Whether ``next`` comes from a state."""
    generation: int
    """Number of ``load_state_dict`` calls."""
    bad_samples: BadSamples
    """Record of bad samples up to ``next``."""
    gone_back: PassProgress | None = None
    """Progress of the pass that stopped at ``next``, if no state was loaded since."""


class _Requested(NamedTuple):
    """An epoch that the user asked for."""

    epoch: int
    num_begun: int
    """Number of passes begun before the request; a later pass takes the epoch."""
    generation: int


class Passes:
    """Passes of one loader, in the order in which they deliver.

    A pass takes its epoch when it begins: that of the loaded state, or else the epoch requested
    with :meth:`request_epoch`, or else the epoch after the last one that delivered a batch. A pass
    that fails before its first delivery changes nothing.

    >>> passes = Passes()
    >>> first = passes.begin()
    >>> passes.offer(first, "batch", Address(epoch=0, position=8))
    >>> first.offered.content.pop()
    'batch'
    >>> passes.address()
    Address(epoch=0, position=8)
    >>> passes.end(first, Address(epoch=1, position=0))
    >>> passes.address()
    Address(epoch=1, position=0)

    Another thread or a signal handler may change the passes at any moment. A change computes new
    values, and stores them if the old ones are still there. To read several values that fit
    together, read those of a ``copy.copy()``.

    Args:
        seed: seed until a state is loaded.
    """

    def __init__(self, seed: SettledSeed | None = None) -> None:
        self._base = _Base(seed or SettledSeed(0, None), Address(0, 0), False, 0, BadSamples())
        self._request: _Requested | None = None
        self._passes: tuple[Pass, ...] = ()
        """Passes that the state may describe, or that may continue, oldest first."""

    @property
    def seed(self) -> SettledSeed:
        """Seed of the passes from now on."""
        return self._base.seed

    @property
    def generation(self) -> int:
        """Number of ``load_state_dict`` calls."""
        return self._base.generation

    @property
    def is_new(self) -> bool:
        """Whether no pass has begun and no state was loaded."""
        return self._num_begun == 0 and self.generation == 0

    def begin(
        self, *, is_over: Callable[[Address], bool] | None = None, skips_empty_rest: bool = True
    ) -> Pass:
        """Begin a new pass. The state does not change before the pass delivers or ends.

        Args:
            is_over: returns whether nothing is left of the epoch at a place.
            skips_empty_rest: whether a pass loaded at such a place belongs to the next epoch, as it
                always does if :meth:`request_epoch` asked for it, instead of being empty.
        """
        while True:
            seen = copy.copy(self)
            new, passes = seen._begun(is_over, skips_empty_rest)
            if self._passes is seen._passes:
                self._passes = passes
                break
        if new.resumed and seen._requested not in (None, new.start.epoch):
            warnings.warn(
                f"set_epoch({seen._requested}) after load_state_dict() of epoch {new.start.epoch}: "
                f"the resumed pass stays in epoch {new.start.epoch}; call set_epoch() after it",
                stacklevel=6,
            )
        return new

    def _begun(
        self, is_over: Callable[[Address], bool] | None, skips_empty_rest: bool
    ) -> tuple[Pass, tuple[Pass, ...]]:
        """Return a new pass, and all passes with it."""
        start, base, current = self._start(is_over, skips_empty_rest), self._base, self._current
        new = Pass(
            start,
            number=self._num_begun + 1,
            generation=base.generation,
            resumed=self._loaded,
            seed=base.seed,
            bad=self.bad_samples,
        )
        if current is None and base.gone_back is not None:
            history, last = base.gone_back.history, base.gone_back.last_delivered
            new.set_progress(new.progress._replace(history=history, last_delivered=last))
        before = 0 if current is None else current.number
        return new, (*(p for p in self._passes if p.number >= before or not p.is_over), new)

    def offer(
        self,
        current: Pass,
        batch: Any,
        place: Address,
        *,
        request: Any = None,
        bad: tuple[FoundBad, ...] = (),
        found_bad: tuple[FoundBad, ...] = (),
    ) -> None:
        """Offer a batch of ``current`` to the user; the next batch starts at ``place``.

        Args:
            request: the request that the batch was made from.
            bad: samples that the batch could not use.
            found_bad: bad samples met since the pass's last offer.
        """
        progress, last = current.progress, self.last
        before = progress.last_delivered or progress.place
        history = progress.history if progress.has_moved else self._history_of(current)
        progress = PassProgress(
            place,
            (*history[1 - HISTORY :], before),
            delivered=True,
            has_moved=True,
            bad=self._recorded(found_bad) or progress.bad,
            last=Delivered(1 if last is None else last.number + 1, request, bad),
        )
        current.offer(batch, progress)

    def offer_failure(
        self,
        current: Pass,
        error: Any,
        place: Address | None,
        *,
        found_bad: tuple[FoundBad, ...] = (),
    ) -> None:
        """Offer an exception of ``current`` to the user; the next batch starts at ``place``.

        Loading an earlier state (``batches_ago=``) tries the failed batch again.

        Args:
            place: None if the failed batch does not move the place.
            found_bad: as for :meth:`offer`.
        """
        progress = current.progress
        if place is not None:
            progress = progress._replace(
                place=place,
                history=self._history_of(current),
                last_delivered=progress.last_delivered or progress.place,
                has_moved=True,
            )
        progress = progress._replace(bad=self._recorded(found_bad) or progress.bad)
        current.offer(error, progress, is_failure=True)

    def end(
        self, current: Pass, following: Address, *, found_bad: tuple[FoundBad, ...] = ()
    ) -> None:
        """Note that ``current`` has delivered everything; the next pass starts at ``following``.

        Args:
            found_bad: as for :meth:`offer`.
        """
        progress = current.progress
        current.set_progress(
            progress._replace(
                history=self._history_of(current),
                has_moved=True,
                following=following,
                bad=self._recorded(found_bad) or progress.bad,
            )
        )

    def note_bad(self, current: Pass, found_bad: tuple[FoundBad, ...]) -> None:
        """Record bad samples that no batch follows."""
        progress = current.progress
        current.set_progress(progress._replace(bad=self._recorded(found_bad) or progress.bad))

    @property
    def bad_samples(self) -> BadSamples:
        """Record of bad samples up to the current place of the stream."""
        records = [p.progress.bad for p in self._passes if p.generation == self.generation]
        known = [record for record in records if record is not None]
        return max([self._base.bad_samples, *known], key=lambda record: record.total)

    @property
    def last(self) -> Delivered | None:
        """Last delivered batch, or None."""
        delivered = [p.progress.last for p in self._passes if p.progress.last is not None]
        return max(delivered, default=None, key=lambda each: each.number)

    def load(
        self, address: Address, bad_samples: BadSamples, seed: SettledSeed | None = None
    ) -> None:
        """Start the next pass, and any begun pass that has delivered nothing, at ``address``.

        Args:
            bad_samples: record up to ``address``.
            seed: seed from now on; None keeps the present one.
        """
        base = self._base
        self._base = _Base(seed or base.seed, address, True, base.generation + 1, bad_samples)

    def note_start(self, current: Pass, place: Address) -> None:
        """Complete the start of a pass that has delivered nothing."""
        base = self._base
        noted = base._replace(next=place)
        current.start = place
        current.set_progress(current.progress._replace(place=place))
        is_next = self._current is None and current.generation == base.generation
        if is_next and self._base is base:
            self._base = noted

    def go_back(self, current: Pass) -> None:
        """Let the next pass continue where ``current`` stopped, unless another pass has."""
        base, moved = self._base, self._current
        never_moved = not current.progress.has_moved and current.generation == self.generation
        if moved is current or (never_moved and (moved is None or current.number > moved.number)):
            progress = current.progress._replace(history=self._history_of(current))
            back = _Base(
                base.seed,
                progress.place,
                True,
                base.generation + 1,
                self.bad_samples,
                gone_back=progress,
            )
            if self._base is base:
                self._base = back

    def request_epoch(self, epoch: int) -> None:
        """Let the next pass take this epoch, unless it continues a loaded state."""
        self._request = _Requested(epoch, self._num_begun, self.generation)

    def address(self, batches_ago: int = 0) -> Address:
        """Return the place of the stream, now or ``batches_ago`` delivered batches earlier.

        Raises:
            ValueError: fewer batches were delivered since the loader was built or loaded, or
                ``batches_ago`` exceeds 16.
        """
        current = self._current
        if batches_ago == 0:
            if current is None or current.progress.following is not None:
                return self._upcoming()
            return current.progress.place
        progress = self._base.gone_back if current is None else current.progress
        history = () if progress is None else progress.history
        if not 0 < batches_ago <= len(history):
            raise ValueError(
                f"{batches_ago = } is out of reach: {len(history)} of the last {HISTORY} "
                "batches are remembered since the loader was built or loaded"
            )
        return history[-batches_ago]

    def present(
        self, *, is_over: Callable[[Address], bool] | None = None, skips_empty_rest: bool = True
    ) -> Address:
        """Return the place of the pass in progress or, between two passes, of the next one.

        It ignores a pass whose iterator is gone. The arguments are those of :meth:`begin`.
        """
        in_progress = self._in_progress
        if in_progress is None:
            return self._start(is_over, skips_empty_rest)
        return in_progress.progress.place

    @property
    def is_in_progress(self) -> bool:
        """Whether some iterator has delivered a batch of a pass and may continue it."""
        return self._in_progress is not None

    @property
    def is_between(self) -> bool:
        """Whether the pass that began last has ended, and no state was loaded since."""
        current = self._current
        has_ended = current is not None and current.progress.following is not None
        return has_ended and current is not None and current.number == self._num_begun

    def twin(self, seed: SettledSeed) -> Passes:
        """Return passes for a copy of the loader, which begin with this loader's next batch.

        Args:
            seed: a copy of this loader's seed.
        """
        seen, twin = copy.copy(self), Passes(seed)
        in_progress, record = seen._in_progress, seen.bad_samples
        if in_progress is not None:
            twin.load(in_progress.progress.place, record)
            return twin
        if seen._requested is not None:
            twin.request_epoch(seen._requested)
        twin._base = twin._base._replace(
            next=seen._following(), loaded=seen._loaded, bad_samples=record
        )
        return twin

    def _recorded(self, found_bad: tuple[FoundBad, ...]) -> BadSamples | None:
        """Return the record extended by ``found_bad``, or None if nothing was found."""
        if not found_bad:
            return None
        later = BadSamples()
        later.add(found_bad)
        return self.bad_samples.followed_by(later)

    @property
    def _num_begun(self) -> int:
        return self._passes[-1].number if self._passes else 0

    @property
    def _current(self) -> Pass | None:
        """The pass that the state describes: the last one that has moved since the last load."""
        generation = self.generation
        for candidate in reversed(self._passes):
            if candidate.generation == generation and candidate.progress.has_moved:
                return candidate
        return None

    @property
    def _in_progress(self) -> Pass | None:
        current = self._current
        if current is None or current.is_over:
            return None
        return current

    @property
    def _loaded(self) -> bool:
        """Whether the next pass continues a loaded state."""
        return self._base.loaded and self._current is None

    @property
    def _requested(self) -> int | None:
        """Requested epoch that no pass has taken yet."""
        request, current = self._request, self._current
        if request is None or request.generation != self.generation:
            return None
        is_taken = current is not None and current.number > request.num_begun
        return None if is_taken else request.epoch

    def _history_of(self, current: Pass) -> tuple[Address, ...]:
        """Return the places before earlier batches, of all passes."""
        if current.progress.has_moved or current.generation != self.generation:
            return current.progress.history
        before = self._current
        return current.progress.history if before is None else before.progress.history

    def _start(self, is_over: Callable[[Address], bool] | None, skips_empty_rest: bool) -> Address:
        start = self._upcoming()
        skips_empty_rest = skips_empty_rest or self._requested == start.epoch + 1
        is_rest = self._loaded and start.position > 0
        if is_rest and is_over is not None and skips_empty_rest and is_over(start):
            return Address(start.epoch + 1, 0)
        return start

    def _following(self) -> Address:
        current = self._current
        if current is None:
            return self._base.next
        return current.progress.following or Address(current.start.epoch + 1, 0)

    def _upcoming(self) -> Address:
        following, requested = self._following(), self._requested
        if requested is None or self._loaded:
            return following
        return Address(requested, 0, user=following.user)

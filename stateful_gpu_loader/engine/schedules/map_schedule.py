"""MapSchedule: a pass over a map-style dataset, in the order of the loader or a sampler.

Issued requests are kept until they are delivered, for the case of lost workers.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from stateful_gpu_loader.engine.pipeline import Answer
from stateful_gpu_loader.engine.schedules.schedule import Arrival
from stateful_gpu_loader.engine.schedules.worker_schedule import WorkerLedger, worker_starts
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.records import Request, WorkerStart
from stateful_gpu_loader.state.epoch_progress import Address
from stateful_gpu_loader.state.user_states import UserStates

_REMEDY_STEPS = (
    "keep the sampler, the batch size and drop_last: the state counts the batches after its last "
    "snapshot"
)


class Feed(Protocol):
    """Yields new requests in the order of the pass."""

    position: int
    """Position at which the next request begins."""
    batches: int | None
    """Number of delivered batches of a user's batch sampler."""

    @property
    def has_state(self) -> bool:
        """Whether the feed resumes from marks, not from a position."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether an exception has ended the user's iterator."""
        ...

    def draw(self) -> Request | None:
        """Return the next request, or None at the end; the same request until :meth:`advance`.

        It may be called again after an exception, unless :attr:`is_lost`.
        """
        ...

    def advance(self, request: Request) -> None: ...

    def mark(self) -> bytes:
        """Return the serialized state after the last request; only for a feed with state."""
        ...

    def start_mark(self) -> bytes | None:
        """Return the mark where the feed began, or None if it began as it was built."""
        ...

    def count(self, request: Request) -> str | None:
        """Count a delivered request; return the digest of all requests so far."""
        ...

    def proof_of(self, request: Request) -> str | None:
        """Return the proof of a request delivered out of order."""
        ...

    def end_mark(self) -> bytes | None:
        """Return the mark where the next pass begins."""
        ...


@dataclass(slots=True, eq=False)
class _Issued:
    request: Request
    begin: int
    mark: bytes | None
    """Mark of the feed after the request."""
    is_boundary: bool
    """Whether a snapshot is taken after the request."""
    is_done: bool = False


class MapSchedule:
    """The requests of one pass, and the position after each request.

    Args:
        place: where the pass begins.
        loads: whether the workers' states must be loaded; otherwise the workers have them.
        feed: yields the requests from ``place`` on, or from ``place.user.base``.
        in_order: False delivers batches as they are finished.
        interval: ``snapshot_every_n_steps`` for the states of the sampler and the workers.
        worker_states: whether the dataset's state binds requests to workers.
        keeps_workers: whether the next pass uses the same dataset objects.
    """

    def __init__(
        self,
        place: Address,
        *,
        loads: bool,
        feed: Feed,
        seed: int,
        num_workers: int,
        in_order: bool,
        interval: int,
        worker_states: bool,
        keeps_workers: bool,
    ) -> None:
        user = place.user or UserStates(base=place.position)
        self._epoch = place.epoch
        self._seed = seed
        self._feed = feed
        self._num_workers = num_workers
        # Batches delivered ahead of a missing batch are listed until that is delivered.
        self._in_order = (in_order or num_workers == 0) and not place.ahead
        self._has_states = worker_states
        self._keeps_workers = keeps_workers
        # Persistent workers carry their state into the next pass, so every batch comes with it.
        carries = keeps_workers and worker_states
        every = carries or not self._in_order or num_workers == 0
        self._interval = 1 if every else interval
        self._ledger = WorkerLedger(
            user.workers or (None,) * max(1, num_workers), interval=self._interval
        )
        all_workers = range(len(self._ledger.states))
        self._pending = set(all_workers if loads else user.pending)
        """Workers that have not loaded their states yet."""
        self._has_started = False
        self._first_worker = self._next_worker = user.next_worker
        self._permutation = user.permutation
        self._position = place.position
        self._base = user.base
        self._mark: bytes | None = user.sampler
        self._digest = place.index_digest
        self._to_skip = user.steps
        self._start = place
        self._ahead = dict(sorted(place.ahead))
        """Positions delivered before the resume and not drawn again, with their proofs."""
        self._to_repeat: deque[Request] = deque()
        """Drawn requests to be executed."""
        self._done_ahead: dict[int, str | None] = {}
        """Positions delivered out of order since the resume, with proofs."""
        self._issued: OrderedDict[int, _Issued] = OrderedDict()
        """Requests after the last snapshot, oldest first."""
        self._drawn = 0
        self._num_done = 0
        """Number of delivered requests after the last snapshot."""
        self._failed: dict[int, _Issued] = {}
        """Failed requests, which a later delivery skips."""
        self._is_drawing = False

    @property
    def is_interrupted(self) -> bool:
        return self._is_drawing or self._feed.is_lost

    def requests(self) -> Iterator[Request]:
        self._ledger = WorkerLedger(self._ledger.states, interval=self._interval)
        makes_done_again = self._has_states and self._in_order
        self._to_repeat = deque(
            issued.request
            for ordinal, issued in self._issued.items()
            if makes_done_again or not (issued.is_done or ordinal in self._failed)
        )
        return iter(self._next, None)  # unlike a generator, it continues after an exception

    def starts(self) -> Sequence[WorkerStart] | None:
        if not self._has_states:
            return None
        states = self._ledger.states
        if self._has_started:
            # the former workers and their loaded states were lost
            self._pending = set(range(len(states)))
        self._has_started = True
        return worker_starts(states, seed=self._seed, epoch=self._epoch, loads=self._pending)

    def arrive(self, request: Request, answer: Answer | None) -> Arrival | None:
        was_delivered = self._issued[request.ordinal].is_done
        return None if was_delivered else Arrival(request.start, request)

    def deliver(self, request: Request, answer: Answer | None) -> Address:
        issued = self._issued[request.ordinal]
        of_answer = 0 if answer is None else answer.worker
        worker = of_answer if request.worker is None else request.worker
        self._pending.discard(worker)
        if not issued.is_done:
            for each in (*self._failed.values(), issued):
                self._set_done(each)
            self._failed.clear()
            ended_at = None if answer is None else answer.ended_at
            self._position = request.end if ended_at is None else ended_at
        if self._has_states:
            self._ledger.deliver(worker, answer)
        complete = issued.is_boundary and (not self._has_states or self._ledger.take_snapshot())
        if not self._in_order:
            while self._issued and next(iter(self._issued.values())).is_done:
                self._move_base()
            self._position = self._base
        elif complete:
            while self._issued and next(iter(self._issued)) <= request.ordinal:
                self._move_base()
        return self._place()

    def fail(self, request: Request, answer: Answer | None) -> Address | None:
        issued = self._issued[request.ordinal]
        if self._has_states or issued.mark is not None:
            # The user's objects have advanced.
            was_delivered = issued.is_done
            place = self.deliver(request, answer)
            return None if was_delivered else place
        self._failed[request.ordinal] = issued
        return None

    def end(self) -> Address:
        while self._issued:
            self._move_base()
        sampler = self._feed.end_mark()
        workers: tuple[bytes | None, ...] | None = None
        if self._has_states and self._keeps_workers:
            workers = self._ledger.latest()
        counted = None if self._feed.batches is None else 0
        if sampler is None and workers is None and counted is None:
            return Address(self._epoch + 1, 0)
        user = UserStates(
            sampler=sampler,
            batches=counted,
            num_workers=None if workers is None else self._num_workers,
            workers=workers,
            pending=frozenset(self._pending),
        )
        return Address(self._epoch + 1, 0, user=user)

    def _next(self) -> Request:
        """Return the next request, after verifying all batches delivered ahead of it."""
        while self._ahead or not self._to_repeat:
            request = self._feed.draw()
            if request is None:
                self._check_not_skipping()
                self._check_ahead(None)
                raise StopIteration
            self._is_drawing = True
            request = self._note_drawn(request)
            if request is not None:
                self._to_repeat.append(request)
            self._is_drawing = False
        return self._to_repeat.popleft()

    def _note_drawn(self, request: Request) -> Request | None:
        """Return the request, or None if it was delivered."""
        begin, ordinal = self._feed.position, self._drawn
        self._feed.advance(request)
        self._drawn += 1
        mark = self._feed.start_mark()
        if self._mark is None:
            self._mark = mark
        is_boundary = True
        if self._feed.has_state:
            is_boundary = self._interval > 0 and (ordinal + 1) % self._interval == 0
            if is_boundary:
                mark = self._feed.mark()
        if self._has_states:
            request = request._replace(
                worker=self._worker_of(ordinal) if self._in_order else None,
                snapshot=self._ledger.wants_snapshot(ordinal),
            )
        issued = _Issued(request, begin, mark, is_boundary)
        self._issued[ordinal] = issued
        was_delivered = self._to_skip > 0
        self._to_skip -= was_delivered
        if was_delivered and self._to_skip == 0:
            self._check_same_place(request.end)
        is_ahead = begin in self._ahead
        if self._ahead:
            self._check_ahead(begin, request)
            self._ahead.pop(begin, None)
        if was_delivered or is_ahead:
            self._set_done(issued)
        return None if is_ahead or (was_delivered and not self._has_states) else request

    def _set_done(self, issued: _Issued) -> None:
        issued.is_done = True
        self._num_done += 1
        if not self._in_order:
            self._done_ahead[issued.begin] = self._feed.proof_of(issued.request)

    def _check_ahead(self, begin: int | None, request: Request | None = None) -> None:
        """Check that the order still has the batches delivered ahead of older ones.

        Args:
            begin: position where the drawn request begins; None after the last request.
        """
        if not self._ahead:
            return
        position, saved = next(iter(self._ahead.items()))
        if begin is not None and begin < position:
            return
        present = None if request is None else self._feed.proof_of(request)
        if begin == position and saved in (None, present):
            return
        of = f" of {saved}" if saved else ""
        raise StateMismatch(
            "ahead",
            saved=f"a delivered batch{of} at position {position}",
            present=(f"a batch of {present}" if begin == position else "no batch that begins there")
            + ": the order is not reproducible, or the state belongs to another rank",
            remedy="build the sampler as it was, with the same batch size, or give it state_dict() "
            "and load_state_dict(); with in_order=False, load into each rank the state that this "
            "rank saved",
        )

    def _check_same_place(self, position: int) -> None:
        """Check that the batches delivered since the snapshot end at the state's position.

        torchdata's states hold only the number of these batches.
        """
        user = self._start.user
        is_known = self._start.position != user.base + user.steps
        if is_known and position != self._start.position:
            raise StateMismatch(
                "position",
                saved=self._start.position,
                present=f"{position}, where the same number of batches ends",
                remedy=_REMEDY_STEPS,
            )

    def _check_not_skipping(self) -> None:
        """Check at the end of the order that it had all batches that the state counts."""
        if self._to_skip:
            steps = self._start.user.steps if self._start.user else 0
            raise StateMismatch(
                "user's steps",
                saved=steps,
                present=f"{steps - self._to_skip}, after which the epoch ends",
                remedy=_REMEDY_STEPS,
            )

    def _worker_of(self, ordinal: int) -> int:
        return (self._first_worker + ordinal) % len(self._ledger.states)

    def _move_base(self) -> None:
        ordinal, issued = self._issued.popitem(last=False)
        self._num_done -= issued.is_done
        self._done_ahead.pop(issued.begin, None)
        self._base, self._mark = issued.request.end, issued.mark
        self._digest = self._feed.count(issued.request)
        self._next_worker = self._worker_of(ordinal + 1)

    def _place(self) -> Address:
        ahead: tuple[tuple[int, str | None], ...] = ()
        steps = self._num_done
        if not self._in_order:
            ahead = (*self._done_ahead.items(), *sorted(self._ahead.items()))
            steps = 0
        user = None
        if (
            self._has_states
            or steps
            or self._mark is not None
            or self._permutation is not None
            or self._feed.batches is not None
        ):
            user = self._user(steps)
        return Address(self._epoch, self._position, ahead, self._digest, user)

    def _user(self, steps: int) -> UserStates:
        workers: tuple[bytes | None, ...] | None = None
        if self._has_states:
            workers = self._ledger.states
        return UserStates(
            sampler=self._mark,
            permutation=self._permutation,
            num_workers=None if workers is None else self._num_workers,
            workers=workers,
            next_worker=self._next_worker if self._has_states else 0,
            base=self._base,
            steps=steps,
            batches=self._feed.batches,
        )

"""A pass over the lanes of a sharded dataset: each batch's lane, and the lanes' cursors.

The next batch comes from the first lane with the fewest turns among the lanes with a whole batch
left. After that, the rests of all lanes are joined into batches. If other ranks have more batches,
the lanes are read again, in another lap.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stateful_gpu_loader.datasets.lanes import LaneDivision, LanePlan, key_of_lane
from stateful_gpu_loader.engine.pipeline import SKIPPED, Answer
from stateful_gpu_loader.engine.schedules.schedule import Arrival
from stateful_gpu_loader.records import LanePart, LaneTurn, RestTurn, WorkerStart
from stateful_gpu_loader.state.bad_samples import FoundBad
from stateful_gpu_loader.state.epoch_progress import Address
from stateful_gpu_loader.state.lane_cursor import LaneCursor, LaneCursors, LaneProgress


class LaneSchedule:
    """The turns of one rank's lanes, in the order of :class:`LaneRequests`.

    Args:
        place: where the pass begins; its ``lanes`` are the cursors, or None at the beginning.
        division: the part that this rank reads.
        num_steps: number of batches in a whole epoch, if known. One of several ranks with fewer
            batches reads its lanes again.
    """

    def __init__(
        self,
        place: Address,
        *,
        plan: LanePlan,
        division: LaneDivision,
        seed: int,
        num_workers: int,
        num_steps: int | None,
    ) -> None:
        self._service = LaneService(
            plan=plan,
            division=division,
            seed=seed,
            epoch=place.epoch,
            num_workers=num_workers,
            num_steps=num_steps if division.num_replicas > 1 else None,
        )
        known = place.lanes or {}
        lanes = division.lanes(plan.num_lanes)
        cursors = {lane: known.get(lane, LaneCursor()) for lane in lanes}
        self._cursors = LaneCursors(place.epoch, cursors)
        self._position = place.position
        self._pending: dict[int, LaneCursor] = {}
        """Cursors after requests without a batch, for the next batch."""
        self._requests = LaneRequests(self._service, self._cursors, self._position)

    @property
    def is_interrupted(self) -> bool:
        return self._requests.is_interrupted

    def requests(self) -> Iterator[LaneTurn | RestTurn]:
        self._requests = LaneRequests(self._service, self._cursors, self._position)
        self._pending = dict(self._requests.opening)
        return self._requests

    def starts(self) -> Sequence[WorkerStart] | None:
        return None

    def arrive(self, request: LaneTurn | RestTurn, answer: Answer | None) -> Arrival:
        """Key the batch by its first sample."""
        if isinstance(request, RestTurn):
            part = request.parts[0]
            count = LaneCursor.from_text(part.cursor).count + part.skip
            return Arrival(key_of_lane(part.lane, count), request)
        cursor = self._requests.cursor_before(request)
        if request.cursor is None:
            request = request._replace(cursor=cursor.to_text())
        return Arrival(key_of_lane(request.lane, cursor.count), request)

    def deliver(self, request: LaneTurn | RestTurn, answer: Answer | None) -> Address:
        is_batch = answer is None or answer.payload is not SKIPPED
        self._note(request, answer, is_batch=is_batch)
        if is_batch:
            self._cursors = self._cursors.moved(self._pending)
            self._pending.clear()
            self._position += 1
        return Address(self._service.epoch, self._position, lanes=self._cursors)

    def fail(self, request: LaneTurn | RestTurn, answer: Answer | None) -> Address | None:
        self._note(request, answer, is_batch=False)
        return None

    def end(self) -> Address:
        return Address(self._service.epoch + 1, 0)

    def _note(self, request: LaneTurn | RestTurn, answer: Answer | None, *, is_batch: bool) -> None:
        progress: LaneProgress | None = None if answer is None else answer.snapshot
        progress = progress or LaneProgress()
        self._pending |= self._requests.note(request, progress, is_batch=is_batch)


_starts = itertools.count()


@dataclass(frozen=True, kw_only=True)
class LaneService:
    """One rank's lanes in one epoch, and how they are read."""

    plan: LanePlan
    division: LaneDivision
    seed: int
    epoch: int
    num_workers: int
    num_steps: int | None
    """Number of batches of the epoch on every rank; None to end after the lanes."""


class LaneRequests:
    """Iterates over requests from a position on, as far as they are known.

    Each answer must be passed to :meth:`note`, in the order of the requests. If the next request
    depends on missing answers, a request without parts is returned, which yields no batch.

    Args:
        service: the lanes and how they are read.
        cursors: cursors of all lanes of the rank at the start.
        position: number of batches of the epoch that were delivered before.
    """

    def __init__(
        self, service: LaneService, cursors: Mapping[int, LaneCursor], position: int
    ) -> None:
        self._service = service
        self._position = position
        self._start = next(_starts)
        self.is_interrupted = False
        """Whether an exception interrupted the drawing of a request."""
        self._ordinals = itertools.count()
        self._num_unanswered = 0
        """Number of unanswered requests that may become batches."""
        self._shards = {lane: service.plan.num_shards(lane) for lane in cursors}
        self._rests: dict[int, int] = {}
        """Number of samples left in lanes without a whole batch."""
        self._parts: deque[tuple[LanePart, ...]] | None = None
        """Unrequested batches of these rests; None until all rests are counted."""
        self._bad: dict[int, tuple[FoundBad, ...]] = {}
        """Bad samples found while a lane's rest was counted."""
        self._counts: dict[int, int] = {}
        """Number of samples read from each lane, including its rest."""
        self._lap_starts: dict[int, dict[int, LaneCursor]] = {}
        self._is_checked = service.num_steps is None
        self._lap = self._noted_lap = self._lap_of(cursors)
        self._is_whole_lap = False
        """Whether this lap was read from its beginning."""
        self._position_before = position
        self._open_lap(self._lap, cursors)
        self.opening = self._cursors
        """Cursors at the start, for the first delivered batch."""
        self._reached = dict(self._cursors)
        """Cursors after all answered requests, delivered or failed."""

    def __iter__(self) -> LaneRequests:
        return self

    def __next__(self) -> LaneTurn | RestTurn:
        self.is_interrupted = True
        request = self._next()
        self.is_interrupted = False
        if request is None:
            raise StopIteration
        return request

    def _next(self) -> LaneTurn | RestTurn | None:
        num_steps, division = self._service.num_steps, self._service.division
        if not self._is_checked:
            self._service.plan.check_shares(self._service.seed, self._service.epoch, division)
            self._is_checked = True
        while num_steps is None or self._position < num_steps:
            if num_steps is not None and self._position + self._num_unanswered >= num_steps:
                return self._nothing()
            lane = self._next_lane()
            if lane is not None:
                return self._turn(*lane)
            if self._parts is None:
                self._parts = self._join_rests()
            if self._parts:
                self._num_unanswered += 1
                return self._rests_of(self._parts.popleft())
            if any(self._bad.values()):
                return self._left_out()
            if num_steps is None:
                break
            if self._num_unanswered:
                return self._nothing()
            self._begin_next_lap(num_steps)
        return None

    def cursor_before(self, request: LaneTurn) -> LaneCursor:
        """Return the cursor of a lane before the oldest unanswered request."""
        lanes = self._reached
        if request.lap > self._noted_lap:
            lanes = self._lap_starts[request.lap]
        return lanes[request.lane]

    def note(
        self, request: LaneTurn | RestTurn, progress: LaneProgress, *, is_batch: bool
    ) -> dict[int, LaneCursor]:
        """Note the answer to a request; return the cursors it moved, of all lanes if a lap begins.

        Args:
            request: the oldest unanswered request.
            progress: the worker's report with the answer.
            is_batch: whether a batch was delivered.
        """
        moved: dict[int, LaneCursor] = {}
        if isinstance(request, RestTurn) and not request.parts:
            return moved
        self._num_unanswered -= 1
        self._position += is_batch
        lap = request.lap if isinstance(request, LaneTurn) else request.parts[0].lap
        if lap > self._noted_lap:
            self._noted_lap = lap
            moved |= self._lap_starts[lap]
        moved |= progress.cursors
        if isinstance(request, RestTurn):
            moved |= {
                # The lane has nothing left.
                part.lane: self._end_of(part.lane, lap, moved[part.lane])
                for part in request.parts
                if part.lane in moved and part.skip + part.num_samples == self._rests[part.lane]
            }
        self._reached |= moved
        if progress.rest is not None and isinstance(request, LaneTurn):
            self._rests[request.lane] = progress.rest
            self._bad[request.lane] = self._bad.get(request.lane, ()) + progress.bad
        return moved

    def _lap_of(self, cursors: Mapping[int, LaneCursor]) -> int:
        """Return the number of times that all lanes were read to their end."""
        if self._service.num_steps is None:
            return 0
        return min((cursors[lane].shard // n for lane, n in self._shards.items() if n), default=0)

    def _open_lap(self, lap: int, cursors: Mapping[int, LaneCursor]) -> None:
        self._lap = lap
        self._cursors = {
            # If all lanes have ended, the next lap begins.
            lane: replace(cursor, turns=0) if lap and self._is_start(lane, cursor, lap) else cursor
            for lane, cursor in cursors.items()
        }
        self._unopened = set(cursors)
        self._rests = {
            lane: 0 for lane, n in self._shards.items() if cursors[lane].shard >= (lap + 1) * n
        }
        self._parts = None
        self._bad = {}
        self._counts = {}
        self._heap = [
            (cursor.turns, lane)
            for lane, cursor in self._cursors.items()
            if lane not in self._rests
        ]
        heapq.heapify(self._heap)

    def _end_of(self, lane: int, lap: int, cursor: LaneCursor) -> LaneCursor:
        end = (lap + 1) * self._shards[lane]
        return LaneCursor(turns=cursor.turns, count=cursor.count, shard=end)

    def _is_start(self, lane: int, cursor: LaneCursor, lap: int) -> bool:
        return (cursor.shard, cursor.offset, cursor.taken) == (lap * self._shards[lane], 0, 0)

    def _next_lane(self) -> tuple[int, int] | None:
        while self._heap:
            turn, lane = self._heap[0]
            if lane not in self._rests:
                heapq.heapreplace(self._heap, (turn + 1, lane))
                return lane, turn
            heapq.heappop(self._heap)
        return None

    def _turn(self, lane: int, turn: int) -> LaneTurn:
        service, division = self._service, self._service.division
        cursor = None
        if lane in self._unopened:
            self._unopened.discard(lane)
            cursor = self._cursors[lane].to_text()
        self._num_unanswered += 1
        return LaneTurn(
            ordinal=next(self._ordinals),
            seed=service.seed,
            epoch=service.epoch,
            lane=lane,
            turn=turn,
            lap=self._lap,
            num_samples=division.batch_size,
            cursor=cursor,
            start=self._start,
            worker=(lane - division.rank) // division.num_replicas % max(1, service.num_workers),
        )

    def _rests_of(self, parts: tuple[LanePart, ...]) -> RestTurn:
        """Return the request of a batch, with its lanes' bad samples."""
        bad: tuple[FoundBad, ...] = ()
        for part in parts:
            if part.skip + part.num_samples == self._rests[part.lane]:
                bad += self._bad.pop(part.lane, ())
        return self._request(parts, bad)

    def _left_out(self) -> RestTurn:
        """Return a request without a batch, for bad samples of lanes without batches."""
        bad = tuple(found for lane in sorted(self._bad) for found in self._bad[lane])
        self._bad = {}
        return self._request((), bad)

    def _nothing(self) -> RestTurn:
        """Return a request without a batch, answered after all earlier requests."""
        return self._request((), ())

    def _request(self, parts: tuple[LanePart, ...], bad: tuple[FoundBad, ...]) -> RestTurn:
        service = self._service
        return RestTurn(next(self._ordinals), service.seed, service.epoch, parts, bad=bad)

    def _join_rests(self) -> deque[tuple[LanePart, ...]]:
        """Join the rests of all lanes, in order, and cut them into batches."""
        size, cursors = self._service.division.batch_size, self._reached
        self._counts = {lane: cursors[lane].count + rest for lane, rest in self._rests.items()}
        batches: deque[tuple[LanePart, ...]] = deque()
        parts: list[LanePart] = []
        room = size
        for lane in sorted(self._rests):
            skip, rest = 0, self._rests[lane]
            while rest:
                n = min(rest, room)
                parts.append(LanePart(lane, self._lap, cursors[lane].to_text(), skip, n))
                skip, rest, room = skip + n, rest - n, room - n
                if not room:
                    batches.append(tuple(parts))
                    parts, room = [], size
        if parts and not self._service.division.drop_last:
            batches.append(tuple(parts))
        return batches

    def _begin_next_lap(self, num_steps: int) -> None:
        if self._is_whole_lap and self._position == self._position_before:
            raise ValueError(
                f"rank {self._service.division.rank} has no batch in its lanes in epoch "
                f"{self._service.epoch}, but must deliver {num_steps - self._position} more "
                "batches, as other ranks do. Remedy: repair its shards, or use fewer ranks"
            )
        self._is_whole_lap, self._position_before = True, self._position
        lap = self._lap + 1
        self._lap_starts[lap] = {
            lane: LaneCursor(count=count, shard=lap * self._shards[lane])
            for lane, count in self._counts.items()
        }
        self._open_lap(lap, self._lap_starts[lap])

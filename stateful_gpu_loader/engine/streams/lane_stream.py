"""A pass over a sharded dataset: lanes take turns, and the state is a cursor for each.

The order: of all lanes that have a whole batch left, the one with the fewest turns is next, the
first of several. Then come the rests of the lanes, joined. It depends on no timing, so it goes on
from the cursors alone.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from stateful_gpu_loader.engine.lane_news import LaneNews
from stateful_gpu_loader.engine.pipeline import SKIPPED, Answer
from stateful_gpu_loader.passes import Address
from stateful_gpu_loader.records import LanePart, LaneTurn, RestTurn, WorkerStart
from stateful_gpu_loader.shards.cursor import LaneCursor
from stateful_gpu_loader.shards.lanes import LaneDivision, LanePlan, key_of_lane

_starts = itertools.count()


class LaneStream:
    """Turns of one rank's lanes.

    Args:
        place: where the pass begins; its ``lanes`` are the cursors, None is the beginning.
        plan: of the dataset.
        division: what this rank serves.
        seed: of the loader.
        num_workers: 0 for the user's own thread.
        num_steps: batches of a whole epoch, where the numbers of samples are known: a rank that has
            fewer reads its lanes another time.
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
        self._plan = plan
        self._division = division
        self._seed, self._epoch = seed, place.epoch
        self._workers = max(1, num_workers)
        self._num_steps = num_steps
        lanes = division.lanes(plan.num_lanes)
        known = place.lanes or {}
        self._cursors = {lane: known.get(lane, LaneCursor()) for lane in lanes}
        self._start = replace(place, lanes=dict(self._cursors))
        self._position = place.position
        self._failed: dict[int, LaneCursor] = {}
        """Behind batches that could not be made: not counted until a later one is."""
        self._laps = _Laps(plan, self._cursors)
        self._requests: _LaneRequests | None = None

    @property
    def is_over(self) -> bool:
        """Whether all batches that are due were delivered."""
        return self._num_steps is not None and self._position >= self._num_steps

    def requests(self) -> Iterator[LaneTurn | RestTurn]:
        self._requests = _LaneRequests(self)
        return self._requests

    def start_place(self) -> Address:
        return self._start

    def starts(self) -> Sequence[WorkerStart] | None:
        return None

    def key_position(self, request: LaneTurn | RestTurn) -> int:
        """The first sample's."""
        if isinstance(request, LaneTurn):
            return key_of_lane(request.lane, self._cursors[request.lane].count)
        part = request.parts[0]
        return key_of_lane(part.lane, LaneCursor.from_text(part.cursor).count + part.skip)

    def is_replay(self, request: LaneTurn | RestTurn) -> bool:
        """What a rank reads another time is asked for ahead of knowing how much of it is due."""
        return self.is_over

    def deliver(self, request: LaneTurn | RestTurn, answer: Answer | None) -> Address:
        if self.is_over:
            return self._place()
        self._begin_lap(request)
        news = _news_of(answer)
        is_batch = answer is None or answer.payload is not SKIPPED
        if is_batch:
            self._cursors |= self._failed
            self._failed.clear()
            self._position += 1
        self._cursors |= news.cursors
        if news.rest is not None and isinstance(request, LaneTurn) and self._requests is not None:
            self._requests.note_rest(request.lane, news.rest)
        return self._place()

    def fail(self, request: LaneTurn | RestTurn, answer: Answer | None) -> Address | None:
        self._failed |= _news_of(answer).cursors
        return None

    def end(self) -> Address:
        return Address(self._epoch + 1, 0)

    def _begin_lap(self, request: LaneTurn | RestTurn) -> None:
        lap = request.lap if isinstance(request, LaneTurn) else request.parts[0].lap
        if lap > self._laps.present:
            self._cursors |= self._laps.begin(lap)

    def _place(self) -> Address:
        return Address(self._epoch, self._position, lanes=dict(self._cursors))


class _Laps:
    """How often a rank has read its lanes, and where each time begins.

    Args:
        plan: of the dataset.
        cursors: of the rank's lanes, at the pass's start.
    """

    def __init__(self, plan: LanePlan, cursors: dict[int, LaneCursor]) -> None:
        self._shards = {lane: plan.num_shards(lane) for lane in cursors}
        laps = [cursors[lane].shard // n for lane, n in self._shards.items() if n]
        self.present = min(laps, default=0)
        """Of the batches delivered."""
        self._starts: dict[int, dict[int, LaneCursor]] = {}

    def has_ended(self, lane: int, cursor: LaneCursor, lap: int) -> bool:
        """Whether the lane is known to have nothing left in this lap."""
        return cursor.shard >= (lap + 1) * self._shards[lane]

    def plan_next(self, lap: int, counts: dict[int, int]) -> dict[int, LaneCursor]:
        """Where lanes begin that have given so many samples in the laps before."""
        self._starts[lap] = {
            lane: LaneCursor(count=count, shard=lap * self._shards[lane])
            for lane, count in counts.items()
        }
        return self._starts[lap]

    def begin(self, lap: int) -> dict[int, LaneCursor]:
        """The first news of a lap has come."""
        self.present = lap
        return self._starts[lap]


class _LaneRequests:
    """Requests behind the delivered place, as far as is known when each is asked for."""

    def __init__(self, stream: LaneStream) -> None:
        self._stream = stream
        self._start = next(_starts)
        self._ordinals = itertools.count()
        self._rests: dict[int, int] = {}
        """Samples that lanes have left in this lap, of those that have no whole batch left."""
        self._parts: deque[tuple[LanePart, ...]] | None = None
        """Batches of rests that are still to be asked for, once all rests are known."""
        self._counts: dict[int, int] = {}
        """Of each lane, behind its rest."""
        self._position = 0
        """Behind the last batch of rests."""
        self._whole_lap_from: dict[int, int] | None = None
        """Counts at the beginning of a lap that was read from there on."""
        self._open_lap(stream._laps.present, stream._cursors)

    def __iter__(self) -> _LaneRequests:
        return self

    def __next__(self) -> LaneTurn | RestTurn:
        stream = self._stream
        while not stream.is_over:
            lane = self._next_lane()
            if lane is not None:
                return self._turn(*lane)
            if self._parts is None:
                self._parts = self._join_rests()
            if self._parts:
                return RestTurn(
                    next(self._ordinals), stream._seed, stream._epoch, self._parts.popleft()
                )
            if stream._num_steps is None or self._position >= stream._num_steps:
                break
            self._begin_next_lap(stream._num_steps)
        raise StopIteration

    def note_rest(self, lane: int, rest: int) -> None:
        """A lane has no whole batch left."""
        self._rests[lane] = rest

    def _open_lap(self, lap: int, cursors: dict[int, LaneCursor]) -> None:
        self._lap = lap
        self._cursors = dict(cursors)
        self._unopened = set(cursors)
        ended = self._stream._laps.has_ended
        self._rests = {lane: 0 for lane in cursors if ended(lane, cursors[lane], lap)}
        self._parts = None
        self._heap = [
            (cursor.turns, lane) for lane, cursor in cursors.items() if lane not in self._rests
        ]
        heapq.heapify(self._heap)

    def _next_lane(self) -> tuple[int, int] | None:
        """The lane whose turn it is, and the number of its turn."""
        while self._heap:
            turn, lane = self._heap[0]
            if lane not in self._rests:
                heapq.heapreplace(self._heap, (turn + 1, lane))
                return lane, turn
            heapq.heappop(self._heap)
        return None

    def _turn(self, lane: int, turn: int) -> LaneTurn:
        stream, division = self._stream, self._stream._division
        cursor = None
        if lane in self._unopened:
            self._unopened.discard(lane)
            cursor = self._cursors[lane].to_text()
        return LaneTurn(
            ordinal=next(self._ordinals),
            seed=stream._seed,
            epoch=stream._epoch,
            lane=lane,
            turn=turn,
            lap=self._lap,
            num_samples=division.batch_size,
            cursor=cursor,
            start=self._start,
            worker=(lane - division.rank) // division.num_replicas % stream._workers,
        )

    def _join_rests(self) -> deque[tuple[LanePart, ...]]:
        """All lanes' rests in the order of the lanes, cut into batches."""
        stream, size = self._stream, self._stream._division.batch_size
        cursors = {lane: stream._cursors[lane] for lane in self._rests}
        if self._lap > stream._laps.present:
            cursors = self._cursors
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
        if parts and not stream._division.drop_last:
            batches.append(tuple(parts))
        self._position = stream._position + len(batches)
        if stream._num_steps is not None:
            while self._position > stream._num_steps:
                batches.pop()
                self._position -= 1
        return batches

    def _begin_next_lap(self, num_steps: int) -> None:
        stream = self._stream
        if not any(self._counts.values()) or self._counts == self._whole_lap_from:
            raise ValueError(
                f"rank {stream._division.rank} has no sample in its lanes in epoch "
                f"{stream._epoch}, and {num_steps - self._position} batches are due, as many as "
                "other ranks have. Remedy: use fewer ranks, or a smaller num_lanes, so that each "
                "has a shard"
            )
        lap, self._whole_lap_from = self._lap + 1, self._counts
        self._open_lap(lap, stream._laps.plan_next(lap, self._counts))


def _news_of(answer: Answer | None) -> LaneNews:
    if answer is None or answer.snapshot is None:
        return LaneNews()
    return LaneNews.from_bytes(answer.snapshot)

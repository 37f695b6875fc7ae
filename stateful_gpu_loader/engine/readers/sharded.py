"""Reads a sharded dataset: the samples of a lane for each request, shuffled in windows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from stateful_gpu_loader.datasets.lanes import EpochLanes, LanePlan
from stateful_gpu_loader.datasets.sharded import EncodedShards, ShardedDataset
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.own_generators import SampleGenerators
from stateful_gpu_loader.engine.pipeline import Stopped, never_stopped
from stateful_gpu_loader.engine.readers.lane_shards import LaneAddress, LaneShards
from stateful_gpu_loader.engine.readers.reading import Reading, ReadySample
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.randomness.draw_rule import DrawRule
from stateful_gpu_loader.randomness.global_generators import caller_generators_restored
from stateful_gpu_loader.randomness.permutation import permutations_of_seeds
from stateful_gpu_loader.randomness.philox import Stream, sample_seeds
from stateful_gpu_loader.records import IndexArray, LanePart, LaneTurn, RestTurn
from stateful_gpu_loader.state.bad_samples import FoundBad
from stateful_gpu_loader.state.lane_cursor import LaneCursor, LaneProgress

_SECONDS_BETWEEN_CHECKS = 0.1


class ShardedReader:
    """Reads the next samples of a lane.

    Threads share it; the turns of one lane are read one after the other.

    Samples are seeded as by :class:`SampleMaker`; a turn that draws without seeds is read again
    from the lane's cursor. Encoded samples draw nothing.

    Args:
        policy: policy for bad samples; it also applies to the rest of a damaged shard.
    """

    def __init__(self, plan: LanePlan, *, policy: BadSamplePolicy) -> None:
        self._plan = plan
        self._policy = policy
        self._served: dict[int, _ServedLane] = {}
        self._epoch: tuple[int, int, EpochLanes] | None = None
        self._lock = threading.RLock()
        self._turn_came = threading.Condition(self._lock)
        is_encoded = isinstance(plan.dataset, EncodedShards)
        self._generators = SampleGenerators(None if is_encoded else plan.dataset)
        draws = False if is_encoded else getattr(plan.dataset, "draws", None)
        self._rule = DrawRule(
            type(plan.dataset).__name__, True if self._generators.has_private else draws
        )

    @property
    def uses_global_generators(self) -> bool:
        return self._rule.seeds

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(ShardedReader, self._plan, policy=self._policy), ()

    def __call__(self, request: LaneTurn | RestTurn, check: Callable[[], None]) -> Reading:
        if isinstance(request, RestTurn):
            return self._rests(request, check)
        served = self._wait_for_turn(request, check)
        try:
            taken = self._taken(served, request, check)
            reader = served.reader
            bad = reader.take_bad()
            if taken is None:
                if reader.num_left:
                    progress = LaneProgress(rest=reader.num_left, bad=bad)
                    return Reading(snapshot=progress)
                progress = LaneProgress(cursors={request.lane: reader.end()}, rest=0)
                return Reading(snapshot=progress, bad=bad)
        finally:
            with self._lock:
                served.turn += 1
                self._turn_came.notify_all()
        progress = LaneProgress(cursors={request.lane: taken.cursor})
        return Reading(samples=taken.samples, positions=taken.positions, bad=bad, snapshot=progress)

    def _taken(
        self, served: _ServedLane, request: LaneTurn, check: Callable[[], None]
    ) -> Taken | None:
        def take(is_seeded: bool) -> Taken | None:
            turns = request.turn + 1
            return served.reader.take(request.num_samples, check, turns=turns, is_seeded=is_seeded)

        begin = served.reader.cursor
        if not served.reader.is_at_cursor and self._rule.may_seed:
            with caller_generators_restored():
                return self._rule.watched(lambda: take(is_seeded=True))

        def go_back() -> None:
            served.reader.close()
            served.reader = self._reader(request, request.lane, request.lap, begin)

        return self._seeded_if_drawing(take, go_back)

    def _seeded_if_drawing(
        self, take: Callable[[bool], Taken | None], go_back: Callable[[], None]
    ) -> Taken | None:
        """Take samples; if one draws without a seed, take them again with seeds.

        Args:
            take: takes them, with seeds or without.
            go_back: lets ``take`` begin with the same samples again.
        """
        if self._rule.seeds:
            return self._rule.watched(lambda: take(True))
        try:
            taken = self._rule.unseeded(lambda: take(False))
        except Exception:
            if not self._rule.draws:
                raise
        if not self._rule.draws:
            return taken
        go_back()
        with caller_generators_restored():
            return take(True)

    def _rests(self, request: RestTurn, check: Callable[[], None]) -> Reading:
        if not request.parts:
            return Reading(bad=request.bad)
        taken = [self._rest(request, part, check) for part in request.parts]
        samples = [sample for rest in taken for sample in rest.samples]
        positions = np.concatenate([rest.positions for rest in taken])
        pairs = zip(request.parts, taken, strict=True)
        progress = LaneProgress(cursors={part.lane: rest.cursor for part, rest in pairs})
        return Reading(samples=samples, positions=positions, bad=request.bad, snapshot=progress)

    def _rest(self, request: RestTurn, part: LanePart, check: Callable[[], None]) -> Taken:
        """Read the rest of a lane again, which has no whole batch."""
        cursor = LaneCursor.from_text(part.cursor)

        def take(is_seeded: bool) -> Taken | None:
            reader = self._reader(request, part.lane, part.lap, cursor, is_second=True)
            turns = cursor.turns
            try:
                if part.skip:
                    reader.take(part.skip, check, turns=turns, is_seeded=is_seeded)
                return reader.take(part.num_samples, check, turns=turns, is_seeded=is_seeded)
            finally:
                reader.close()

        taken = self._seeded_if_drawing(take, _go_on)
        if taken is None:
            raise LoaderError(
                f"lane {part.lane} had {part.skip + part.num_samples} samples left after cursor "
                f"{part.cursor}, but now has fewer. Remedy: leave shards unchanged while they are "
                "read"
            )
        return taken

    def _wait_for_turn(self, request: LaneTurn, check: Callable[[], None]) -> _ServedLane:
        with self._lock:
            check()  # an abandoned turn must not reopen the lane
            if request.cursor is not None:
                cursor = LaneCursor.from_text(request.cursor)
                reader = self._reader(request, request.lane, request.lap, cursor)
                served = _ServedLane(reader, request.start, request.turn)
                self._served[request.lane] = served
                self._turn_came.notify_all()
                return served
            while True:
                lane = self._served.get(request.lane)
                if lane is not None and lane.start == request.start:
                    if lane.turn == request.turn:
                        lane.begin = lane.reader.cursor
                        return lane
                    if lane.turn == request.turn + 1:
                        # The answer to this turn was lost, so it is repeated.
                        lane.reader = self._reader(request, request.lane, request.lap, lane.begin)
                        lane.turn = request.turn
                        return lane
                if check is never_stopped:
                    raise Stopped  # an exception interrupted the previous turn; it never ends
                self._turn_came.wait(_SECONDS_BETWEEN_CHECKS)
                check()

    def _reader(
        self,
        request: LaneTurn | RestTurn,
        lane: int,
        lap: int,
        cursor: LaneCursor,
        *,
        is_second: bool = False,
    ) -> LaneReader:
        lanes = self._lanes_of(request.seed, request.epoch)
        address = LaneAddress(
            seed=request.seed,
            epoch=request.epoch,
            lane=lane,
            shards=lanes.shards_of(lane),
            lap=lap,
        )
        return LaneReader(
            self._plan.dataset,
            address,
            cursor,
            window=self._plan.window,
            drops_bad=self._policy.mode == "drop",
            rule=self._rule,
            generators=self._generators,
            is_second=is_second,
        )

    def _lanes_of(self, seed: int, epoch: int) -> EpochLanes:
        known = self._epoch
        if known is None or known[:2] != (seed, epoch):
            self._epoch = known = seed, epoch, self._plan.of_epoch(seed, epoch)
        return known[2]


def _go_on() -> None:
    """Do nothing: each call opens the lane again."""


class _ServedLane:
    def __init__(self, reader: LaneReader, start: int, turn: int) -> None:
        self.reader = reader
        self.begin = reader.cursor
        """Cursor before the last turn that was read."""
        self.start = start
        """Number of the workers' start that opened the lane."""
        self.turn = turn


_DRAWN_TOGETHER = 256
"""Number of samples in small windows whose orders are drawn together."""


class Taken(NamedTuple):
    samples: list[ReadySample]
    positions: IndexArray
    """Keys of the samples, int64 [n]."""
    cursor: LaneCursor
    """Position of the lane after them."""


class LaneReader:
    """Yields a lane's samples in batches, determined by its address and cursor.

    A window is always read from its beginning, so no shuffle buffer needs to be saved.

    Args:
        window: number of samples that are shuffled together; 0 leaves them in order.
        drops_bad: drop the rest of a damaged shard instead of raising an exception.
        rule: notes which of the seeded samples draw.
        generators: generators that are seeded for each sample.
        is_second: whether the damage after the cursor was reported before.
    """

    def __init__(
        self,
        dataset: ShardedDataset,
        address: LaneAddress,
        cursor: LaneCursor,
        *,
        window: int,
        drops_bad: bool,
        rule: DrawRule,
        generators: SampleGenerators,
        is_second: bool = False,
    ) -> None:
        self._address = address
        self._cursor = cursor
        self._window_size = window
        self._is_second = is_second
        self._shards = LaneShards(
            dataset,
            address,
            shard=cursor.shard,
            offset=cursor.offset,
            ordinal=cursor.window_start,
            drops_bad=drops_bad,
            rule=rule,
            generators=generators,
        )
        self._begin = self._shards.place
        """Shard and offset where the present window begins."""
        self._reading: list[ReadySample] = []
        """Samples of the window being read."""
        self._length = 0
        """Number of samples in the present window."""
        self._left: list[ReadySample] = []
        """Samples of the window that are not taken yet."""
        self._held: list[ReadySample] = []
        """Samples taken from windows and not yet returned."""
        self._orders: dict[int, list[int]] = {}
        """Orders of this and the next windows, by their first samples' ordinals."""
        self._to_skip = cursor.taken
        self.is_at_cursor = True
        """Whether a new reader at the cursor would read the same samples.

        False after a failed call, which this reader does not repeat.
        """

    @property
    def cursor(self) -> LaneCursor:
        """Cursor of the lane after the samples taken so far."""
        return self._cursor

    @property
    def num_left(self) -> int:
        """Number of samples left in the lane, after :meth:`take` has found too few."""
        return len(self._held)

    def take(
        self, n: int, check: Callable[[], None], *, turns: int, is_seeded: bool = True
    ) -> Taken | None:
        """Return the next n samples; if fewer are left, keep them and return None.

        Args:
            check: called between samples.
            turns: number of the lane's turns including this one.
            is_seeded: whether the global generators are seeded for each sample that is read.

        Raises:
            Exception: as :meth:`LaneShards.read`; samples that were read are kept for the next
                call.
        """
        self._shards.is_seeded, self.is_at_cursor = is_seeded, False
        while len(self._held) < n:
            check()
            wanted = n - len(self._held)
            if not self._left and not self._read_window(wanted, check):
                return None
            self._held += self._left[:wanted]
            del self._left[:wanted]
        samples, self._held = self._held, []
        start = self._cursor.count
        shard, offset = self._begin if self._left else self._shards.place
        self._cursor = LaneCursor(
            turns=turns,
            count=start + n,
            shard=shard,
            offset=offset,
            taken=self._length - len(self._left) if self._left else 0,
        )
        self.is_at_cursor = True
        first = self._address.position(start)
        positions = np.arange(first, first + n, dtype=np.int64)
        return Taken(samples=samples, positions=positions, cursor=self._cursor)

    def end(self) -> LaneCursor:
        """Return the position of the lane at its end."""
        before = self._cursor
        return LaneCursor(turns=before.turns, count=before.count, shard=self._shards.end)

    def take_bad(self) -> tuple[FoundBad, ...]:
        return self._shards.take_bad()

    def close(self) -> None:
        """Close the dataset's generator, which may hold a file open."""
        self._shards.close()

    def _read_window(self, wanted: int, check: Callable[[], None]) -> bool:
        """Read the next window, or ``wanted`` samples if nothing is shuffled; False at the end."""
        size = self._window_size or wanted
        if not self._reading:
            self._begin = self._shards.place
        start = self._shards.ordinal - len(self._reading)
        # Damage within a window was reported before its first delivery.
        self._shards.is_damage_reported = self._is_second or self._to_skip > 0
        self._shards.read(self._reading, size, check)
        window, self._reading = self._reading, []
        n = len(window)
        if self._window_size and n > 1:
            window = [window[number] for number in self._order_of(start, n)]
        self._length, self._left = n, window[self._to_skip :]
        self._to_skip = 0
        return n > 0

    def _order_of(self, start: int, n: int) -> list[int]:
        """Return the order of the n samples of a window.

        The orders of small windows are drawn together.

        Args:
            start: ordinal of its first sample.
        """
        if start not in self._orders or len(self._orders[start]) != n:
            address = self._address
            starts = range(start, start + max(n, _DRAWN_TOGETHER), n)
            places = [address.position(ordinal) for ordinal in starts]
            seeds = sample_seeds(address.seed, address.epoch, places, Stream.SHARDS)
            orders = permutations_of_seeds(n, seeds).tolist()
            self._orders = dict(zip(starts, orders, strict=True))
        return self._orders[start]

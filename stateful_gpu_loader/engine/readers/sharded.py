"""ShardedReader: reads the samples of a sharded dataset, each request's from one of its lanes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from stateful_gpu_loader.datasets.lanes import EpochLanes, LanePlan
from stateful_gpu_loader.datasets.sharded import EncodedShards
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.own_generators import SampleGenerators
from stateful_gpu_loader.engine.pipeline import Stopped, never_stopped
from stateful_gpu_loader.engine.readers.lane_reader import LaneReader, Taken
from stateful_gpu_loader.engine.readers.lane_shards import LaneAddress
from stateful_gpu_loader.engine.readers.reading import Reading
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.randomness.draw_rule import DrawRule
from stateful_gpu_loader.randomness.global_generators import caller_generators_restored
from stateful_gpu_loader.records import LanePart, LaneTurn, RestTurn
from stateful_gpu_loader.state.lane_cursor import LaneCursor, LaneProgress

_SECONDS_BETWEEN_CHECKS = 0.1


class ShardedReader:
    """Reads the next samples of a lane.

    Threads share it; the turns of one lane are read one after the other.

    The first samples are seeded and watched; if none of them draws, later ones are only watched. A
    turn in which a later one draws is read again with seeds from the lane's cursor, as a resume
    would. Encoded samples draw nothing. An attribute ``draws`` of the dataset, True or False,
    decides instead.

    Args:
        plan: lanes of the dataset.
        policy: what is done about bad samples; the rest of a damaged shard is treated alike.
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
            found = reader.found()
            if taken is None:
                if reader.num_left:
                    news = LaneProgress(rest=reader.num_left, bad=found)
                    return Reading(snapshot=news)
                news = LaneProgress(cursors={request.lane: reader.end()}, rest=0)
                return Reading(snapshot=news, bad=found)
        finally:
            with self._lock:
                served.turn += 1
                self._turn_came.notify_all()
        news = LaneProgress(cursors={request.lane: taken.cursor})
        return Reading(samples=taken.samples, positions=taken.positions, bad=found, snapshot=news)

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
        """Take samples; again, from where they begin and with seeds, if one draws without seeds.

        Args:
            take: takes them, with seeds or without.
            go_back: makes it begin with the same samples again.
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
        news = LaneProgress(cursors={part.lane: rest.cursor for part, rest in pairs})
        return Reading(samples=samples, positions=positions, bad=request.bad, snapshot=news)

    def _rest(self, request: RestTurn, part: LanePart, check: Callable[[], None]) -> Taken:
        """Read the rest of a lane again, which was found to hold no whole batch."""
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
                f"lane {part.lane} had {part.skip + part.num_samples} samples left, and has fewer "
                f"now, behind cursor {part.cursor}. Remedy: leave shards unchanged while they are "
                "read"
            )
        return taken

    def _wait_for_turn(self, request: LaneTurn, check: Callable[[], None]) -> _ServedLane:
        with self._lock:
            check()  # an abandoned turn must not open the lane behind the one that followed it
            if request.cursor is not None:
                cursor = LaneCursor.from_text(request.cursor)
                reader = self._reader(request, request.lane, request.lap, cursor)
                served = _ServedLane(reader, request.start, request.turn)
                self._served[request.lane] = served
                self._turn_came.notify_all()
                return served
            while True:
                found = self._served.get(request.lane)
                if found is not None and found.start == request.start:
                    if found.turn == request.turn:
                        found.begin = found.reader.cursor
                        return found
                    if found.turn == request.turn + 1:
                        # The answer to this turn was lost on its way, and the turn comes again.
                        found.reader = self._reader(request, request.lane, request.lap, found.begin)
                        found.turn = request.turn
                        return found
                if check is never_stopped:
                    raise Stopped  # an exception has torn the turn before, and nothing ends it
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
    """Do nothing, as each call opens the lane anew."""


class _ServedLane:
    """A lane that is being read here."""

    def __init__(self, reader: LaneReader, start: int, turn: int) -> None:
        self.reader = reader
        self.begin = reader.cursor
        """Cursor before the turn that was read last."""
        self.start = start
        """Number of the start of the workers that the lane was opened for."""
        self.turn = turn
        """Number of the turn that is read next."""

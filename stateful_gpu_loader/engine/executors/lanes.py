"""Batches of a sharded dataset: read from a lane, then made as any other batch of samples."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from stateful_gpu_loader.bad_samples import FoundBad
from stateful_gpu_loader.engine.executors.badness import reason_of
from stateful_gpu_loader.engine.executors.encoded import EncodedBatch
from stateful_gpu_loader.engine.executors.lane_reader import LaneReader, Taken
from stateful_gpu_loader.engine.executors.lane_shards import LaneAddress, LaneSample
from stateful_gpu_loader.engine.executors.policy import BadSamplePolicy
from stateful_gpu_loader.engine.lane_news import LaneNews
from stateful_gpu_loader.engine.pipeline import SKIPPED, Answer, Executor, Failure, Stopped
from stateful_gpu_loader.errors import BadSample, LoaderError
from stateful_gpu_loader.records import (
    EncodedSample,
    IndexArray,
    LanePart,
    LaneTurn,
    Request,
    RestTurn,
)
from stateful_gpu_loader.shards.cursor import LaneCursor
from stateful_gpu_loader.shards.lanes import EpochLanes, LanePlan
from stateful_gpu_loader.shards.sharded_dataset import EncodedShards
from stateful_gpu_loader.sources.source import Source

_SECONDS_BETWEEN_CHECKS = 0.1


class HandedSamples:
    """A dataset whose indices are the samples themselves."""

    def __getitem__(self, index: LaneSample) -> Any:
        return index.sample


class HandedImages(Source):
    """A source whose indices are the encoded images themselves."""

    def __len__(self) -> int:
        raise TypeError("what is handed over one by one has no length")

    def read(self, index: Any) -> EncodedSample:
        sample: EncodedSample = index.sample
        return sample

    def fingerprint(self) -> str:
        raise TypeError("what is handed over one by one has no fingerprint")


class LaneExecutor:
    """Reads a lane's next samples and lets another executor make the batch.

    In threads, which share it, a lane's turns are read one after the other; what is made of them
    is not.

    Args:
        plan: of the dataset.
        make: makes a batch of :class:`LaneSample`.
        policy: what is done about bad samples; a damaged shard's rest is left out with them.
    """

    def __init__(self, plan: LanePlan, make: Executor, *, policy: BadSamplePolicy) -> None:
        self._plan = plan
        self._make = make
        self._policy = policy
        self._served: dict[int, _ServedLane] = {}
        self._epoch: tuple[int, int, EpochLanes] | None = None
        self._turns = threading.Condition()
        is_encoded = isinstance(plan.dataset, EncodedShards)
        self.uses_global_generators = make.uses_global_generators or not is_encoded

    def __reduce__(self) -> tuple[Any, ...]:
        return _lane_executor, (self._plan, self._make, self._policy)

    def __call__(self, request: LaneTurn | RestTurn, check: Callable[[], None]) -> Answer:
        if isinstance(request, RestTurn):
            return self._rests(request, check)
        served = self._wait_for_turn(request, check)
        reader = served.reader
        try:
            taken = reader.take(request.num_samples, check, turns=request.turn + 1)
            found = reader.found()
            if taken is None:
                if reader.num_left:
                    news = LaneNews(rest=reader.num_left, bad=found)
                    return Answer(SKIPPED, snapshot=news.to_bytes())
                news = LaneNews(cursors={request.lane: reader.end()}, rest=0)
                return Answer(SKIPPED, snapshot=news.to_bytes(), bad=found)
        finally:
            with self._turns:
                served.turn += 1
                self._turns.notify_all()
        news = LaneNews(cursors={request.lane: taken.cursor})
        return self._batch(request, taken.samples, taken.positions, news, found, check)

    def _rests(self, request: RestTurn, check: Callable[[], None]) -> Answer:
        if not request.parts:
            return Answer(SKIPPED, bad=request.bad)
        taken = [self._rest(request, part, check) for part in request.parts]
        samples = [sample for rest in taken for sample in rest.samples]
        positions = np.concatenate([rest.positions for rest in taken])
        pairs = zip(request.parts, taken, strict=True)
        news = LaneNews(cursors={part.lane: rest.cursor for part, rest in pairs})
        return self._batch(request, samples, positions, news, request.bad, check)

    def _rest(self, request: RestTurn, part: LanePart, check: Callable[[], None]) -> Taken:
        """Whoever found that the lane has no whole batch left has read it before."""
        cursor = LaneCursor.from_text(part.cursor)
        reader = self._reader(request, part.lane, part.lap, cursor, is_second=True)
        try:
            if part.skip:
                reader.take(part.skip, check, turns=cursor.turns)
            taken = reader.take(part.num_samples, check, turns=cursor.turns)
        finally:
            reader.close()
        if taken is None:
            raise LoaderError(
                f"lane {part.lane} had {part.skip + part.num_samples} samples left, and has fewer "
                f"now, behind cursor {part.cursor}. Remedy: leave shards unchanged while they are "
                "read"
            )
        return taken

    def _batch(
        self,
        turn: LaneTurn | RestTurn,
        samples: list[LaneSample],
        positions: IndexArray,
        news: LaneNews,
        found: tuple[FoundBad, ...],
        check: Callable[[], None],
    ) -> Answer:
        request = Request(
            ordinal=turn.ordinal,
            seed=turn.seed,
            epoch=turn.epoch,
            start=int(positions[0]),
            step=1,
            indices=list(samples),
            end=0,
            listed=positions,
        )
        said = self._made(request, check)
        if isinstance(said.payload, EncodedBatch) and not self._policy.is_active:
            said = dataclasses.replace(said, payload=_without_bytes(said.payload))
        return dataclasses.replace(said, snapshot=news.to_bytes(), bad=(*found, *said.bad))

    def _made(self, request: Request, check: Callable[[], None]) -> Answer:
        try:
            said = self._make(request, check)
        except Stopped:
            raise
        except Exception as error:
            if isinstance(error, BadSample) and self._policy.mode == "drop":
                return Answer(SKIPPED, bad=_all_bad(request, error))
            return Answer(Failure(error))
        return said if isinstance(said, Answer) else Answer(said)

    def _wait_for_turn(self, request: LaneTurn, check: Callable[[], None]) -> _ServedLane:
        with self._turns:
            if request.cursor is not None:
                cursor = LaneCursor.from_text(request.cursor)
                reader = self._reader(request, request.lane, request.lap, cursor)
                served = _ServedLane(reader, request.start, request.turn)
                self._served[request.lane] = served
                self._turns.notify_all()
                return served
            while True:
                found = self._served.get(request.lane)
                if found is not None and found.start == request.start:
                    if found.turn == request.turn:
                        found.begin = found.reader.cursor
                        return found
                    if found.turn == request.turn + 1:
                        # The user's own thread was interrupted in this request, and asks again.
                        found.reader = self._reader(request, request.lane, request.lap, found.begin)
                        found.turn = request.turn
                        return found
                self._turns.wait(_SECONDS_BETWEEN_CHECKS)
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
            is_second=is_second,
        )

    def _lanes_of(self, seed: int, epoch: int) -> EpochLanes:
        known = self._epoch
        if known is None or known[:2] != (seed, epoch):
            self._epoch = known = seed, epoch, self._plan.of_epoch(seed, epoch)
        return known[2]


class LaneFinisher:
    """Finishes the batches of lanes on a device; one of which no image can be used is left out.

    Args:
        finish: batches of encoded images.
        policy: what is done about bad samples.
    """

    def __init__(self, finish: Callable[[EncodedBatch], Any], policy: BadSamplePolicy) -> None:
        self._finish = finish
        self._policy = policy

    def __call__(self, batch: EncodedBatch) -> Any:
        try:
            return self._finish(batch)
        except BadSample as error:
            if self._policy.mode != "drop":
                raise
            return Answer(SKIPPED, bad=_all_bad(batch.request, error))


class _ServedLane:
    """A lane that is open here."""

    def __init__(self, reader: LaneReader, start: int, turn: int) -> None:
        self.reader = reader
        self.begin = reader.cursor
        """Before the turn that was read last."""
        self.start = start
        """Which start of the workers it belongs to."""
        self.turn = turn
        """That is read next."""


def _lane_executor(plan: LanePlan, make: Executor, policy: BadSamplePolicy) -> LaneExecutor:
    return LaneExecutor(plan, make, policy=policy)


def _all_bad(request: Request, error: BadSample) -> tuple[FoundBad, ...]:
    """The record of a batch of which no sample can be used."""
    keys = request.keys()
    reason = reason_of(error)
    return tuple(FoundBad(repr(key.index), key.position, key.epoch, reason, False) for key in keys)


def _without_bytes(batch: EncodedBatch) -> EncodedBatch:
    """The images' bytes travel once, in the arena."""
    names = [repr(index) for index in batch.request.index_list()]
    return dataclasses.replace(batch, request=dataclasses.replace(batch.request, indices=names))

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
from stateful_gpu_loader.engine.executors.lane_reader import LaneAddress, LaneReader, LaneSample
from stateful_gpu_loader.engine.executors.policy import BadSamplePolicy
from stateful_gpu_loader.engine.lane_news import LaneNews
from stateful_gpu_loader.engine.pipeline import SKIPPED, Answer, Executor, Failure, Stopped
from stateful_gpu_loader.errors import BadSample
from stateful_gpu_loader.records import EncodedSample, IndexArray, LaneTurn, Request, RestTurn
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
        try:
            reader = served.reader
            taken = reader.take(request.num_samples, check)
            found = reader.found()
            if taken is None:
                end = {} if reader.num_left else {request.lane: reader.end()}
                news = LaneNews(cursors=end, rest=reader.num_left)
                return Answer(SKIPPED, snapshot=news.to_bytes(), bad=found)
        finally:
            with self._turns:
                served.turn += 1
                self._turns.notify_all()
        cursor = dataclasses.replace(taken.cursor, turns=request.turn + 1)
        news = LaneNews(cursors={request.lane: cursor})
        return self._batch(request, taken.samples, taken.positions, news, found, check)

    def _rests(self, request: RestTurn, check: Callable[[], None]) -> Answer:
        samples: list[LaneSample] = []
        positions: list[IndexArray] = []
        cursors: dict[int, LaneCursor] = {}
        found: list[FoundBad] = []
        for part in request.parts:
            cursor = LaneCursor.from_text(part.cursor)
            reader = self._reader(request, part.lane, part.lap, cursor)
            if part.skip:
                reader.take(part.skip, check)
            taken = reader.take(part.num_samples, check)
            if taken is None:
                raise ValueError(
                    f"lane {part.lane} had {part.skip + part.num_samples} samples left, and has "
                    f"fewer now, behind cursor {part.cursor}. Remedy: leave shards unchanged while "
                    "they are read"
                )
            samples += taken.samples
            positions.append(taken.positions)
            cursors[part.lane] = dataclasses.replace(taken.cursor, turns=cursor.turns)
            found += reader.found()
        news = LaneNews(cursors=cursors)
        return self._batch(request, samples, np.concatenate(positions), news, tuple(found), check)

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
                if found is not None and (found.start, found.turn) == (request.start, request.turn):
                    return found
                self._turns.wait(_SECONDS_BETWEEN_CHECKS)
                check()

    def _reader(
        self, request: LaneTurn | RestTurn, lane: int, lap: int, cursor: LaneCursor
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
        )

    def _lanes_of(self, seed: int, epoch: int) -> EpochLanes:
        known = self._epoch
        if known is None or known[:2] != (seed, epoch):
            self._epoch = known = seed, epoch, self._plan.of_epoch(seed, epoch)
        return known[2]


class _ServedLane:
    """A lane that is open here."""

    def __init__(self, reader: LaneReader, start: int, turn: int) -> None:
        self.reader = reader
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

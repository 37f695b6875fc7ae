"""LaneSchedule: a pass over a sharded dataset, whose state is a cursor for each lane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from stateful_gpu_loader.datasets.lanes import LaneDivision, LanePlan, key_of_lane
from stateful_gpu_loader.engine.pipeline import SKIPPED, Answer
from stateful_gpu_loader.engine.schedules.lane_requests import LaneRequests, LaneService
from stateful_gpu_loader.engine.schedules.schedule import Arrival
from stateful_gpu_loader.records import LaneTurn, RestTurn, WorkerStart
from stateful_gpu_loader.state.epoch_progress import Address
from stateful_gpu_loader.state.lane_cursor import LaneCursor, LaneCursors, LaneProgress


class LaneSchedule:
    """The turns of one rank's lanes, in the order of :class:`LaneRequests`.

    Args:
        place: where the pass begins; its ``lanes`` are the cursors, or None at the beginning.
        plan: lanes of the dataset.
        division: the part that this rank reads.
        seed: seed of the loader.
        num_workers: number of workers; 0 is the user's own thread.
        num_steps: number of batches in a whole epoch, if it is known: one of several ranks that has
            fewer reads its lanes again. A single rank ends on its own.
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
        # Not one of the moments that follow, as all of these would be kept with it.
        self._start = replace(place, lanes=cursors)
        self._cursors = LaneCursors(place.epoch, cursors)
        self._position = place.position
        self._pending: dict[int, LaneCursor] = {}
        """Cursors after requests that gave no batch; they count once a later one does."""
        self._requests = LaneRequests(self._service, self._cursors, self._position)

    @property
    def is_torn(self) -> bool:
        return self._requests.is_torn

    def requests(self) -> Iterator[LaneTurn | RestTurn]:
        self._requests = LaneRequests(self._service, self._cursors, self._position)
        self._pending = dict(self._requests.opening)
        return self._requests

    def start_place(self) -> Address:
        return self._start

    def starts(self) -> Sequence[WorkerStart] | None:
        return None

    def arrive(self, request: LaneTurn | RestTurn, answer: Answer | None) -> Arrival:
        """Key the batch by its first sample; no batch is made twice, as lanes have cursors."""
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
        news: LaneProgress | None = None if answer is None else answer.snapshot
        news = news or LaneProgress()
        self._pending |= self._requests.note(request, news, is_batch=is_batch)

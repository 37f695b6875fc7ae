"""The next batch of lanes to request, and the state after it."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from stateful_gpu_loader.datasets.lanes import LaneDivision, LanePlan, key_of_lane
from stateful_gpu_loader.engine.pipeline import SKIPPED, Answer, Failure
from stateful_gpu_loader.engine.schedules.lane_schedule import LaneSchedule
from stateful_gpu_loader.records import LaneTurn, RestTurn
from stateful_gpu_loader.state.epoch_progress import Address
from stateful_gpu_loader.state.lane_cursor import LaneCursor, LaneProgress
from tests.datasets.shards import Numbers

SIZES = (7, 2, 5)


def schedule_of(
    sizes: tuple[int, ...] = SIZES,
    *,
    ranks: int = 1,
    rank: int = 0,
    num_workers: int = 2,
    num_steps: int | None = None,
    place: Address | None = None,
    drop_last: bool = False,
) -> LaneSchedule:
    """Return the schedule of lanes of one shard each, in batches of 2."""
    return LaneSchedule(
        place or Address(0, 0),
        plan=LanePlan(
            Numbers(sizes, lanes=len(sizes), counted=num_steps is not None), shuffle=False
        ),
        division=LaneDivision(batch_size=2, drop_last=drop_last, rank=rank, num_replicas=ranks),
        seed=1,
        num_workers=num_workers,
        num_steps=num_steps,
    )


class Worker:
    """Answers like the maker, from the sizes of the lanes."""

    def __init__(self, sizes: tuple[int, ...] = SIZES) -> None:
        self.sizes = sizes
        self.left: dict[int, int] = {}
        self.cursors: dict[int, LaneCursor] = {}

    def answer(self, request: LaneTurn | RestTurn) -> Answer:
        if isinstance(request, RestTurn):
            if not request.parts:
                return Answer(SKIPPED)
            cursors = {}
            for part in request.parts:
                before = LaneCursor.from_text(part.cursor)
                count = before.count + part.skip + part.num_samples
                cursors[part.lane] = LaneCursor(turns=before.turns, count=count, shard=part.lap)
            return Answer("rest", snapshot=LaneProgress(cursors=cursors))
        lane = request.lane
        if request.cursor is not None:
            self.cursors[lane] = LaneCursor.from_text(request.cursor)
            self.left[lane] = self.sizes[lane] - self.cursors[lane].offset
        if self.left[lane] < 2:
            return Answer(SKIPPED, snapshot=LaneProgress(rest=self.left[lane]))
        self.left[lane] -= 2
        before = self.cursors[lane]
        self.cursors[lane] = LaneCursor(
            turns=request.turn + 1,
            count=before.count + 2,
            shard=request.lap,
            offset=before.offset + 2,
        )
        news = LaneProgress(cursors={lane: self.cursors[lane]})
        return Answer("batch", snapshot=news)


def run(
    schedule: LaneSchedule, ahead: int, sizes: tuple[int, ...] = SIZES
) -> tuple[list[Any], list[Address]]:
    """Return the delivered batches and the place after each, with ``ahead`` requests in flight."""
    worker, requests = Worker(sizes), schedule.requests()
    waiting: deque[tuple[Any, Answer]] = deque()
    delivered: list[Any] = []
    places: list[Address] = []
    is_over = False
    for _ in range(500):
        while not is_over and len(waiting) < ahead:
            request = next(requests, None)
            is_over = request is None
            if request is not None:
                waiting.append((request, worker.answer(request)))
        if not waiting:
            return delivered, places
        request, answer = waiting.popleft()
        place = schedule.deliver(request, answer)
        if answer.payload is not SKIPPED:
            places.append(place)
            if isinstance(request, LaneTurn):
                delivered.append((request.lane, request.turn, request.lap))
            else:
                delivered.append([(p.lane, p.skip, p.num_samples) for p in request.parts])
    raise AssertionError("it does not end")


@pytest.mark.parametrize("ahead", [1, 2, 7])
def test_lanes_take_turns_and_their_rests_come_last(ahead: int) -> None:
    """For any number of requests in flight."""
    delivered, places = run(schedule_of(), ahead)
    assert delivered == [
        (0, 0, 0), (1, 0, 0), (2, 0, 0), (0, 1, 0), (2, 1, 0), (0, 2, 0), [(0, 0, 1), (2, 0, 1)],
    ]  # fmt: skip
    assert [place.position for place in places] == [1, 2, 3, 4, 5, 6, 7]
    last = places[-1].lanes
    assert last is not None
    assert [last[lane].shard for lane in (0, 2)] == [1, 1], "what was read to its end has ended"


def test_the_fewest_turns_are_next_and_then_the_lowest_lane() -> None:
    """The order follows from cursors alone."""
    cursors = {0: LaneCursor(turns=3), 1: LaneCursor(turns=1), 2: LaneCursor(turns=1)}
    requests = schedule_of(place=Address(0, 5, lanes=cursors)).requests()
    asked = [next(requests) for _ in range(6)]
    assert [(one.lane, one.turn) for one in asked if isinstance(one, LaneTurn)] == [
        (1, 1), (2, 1), (1, 2), (2, 2), (0, 3), (1, 3),
    ]  # fmt: skip


def test_the_first_request_of_a_lane_carries_its_cursor() -> None:
    """Each lane has its worker, whatever the rank."""
    schedule = schedule_of((9, 9, 9, 9), ranks=2, rank=1)
    requests = schedule.requests()
    asked = [next(requests) for _ in range(4)]
    assert [getattr(one, "cursor", "") for one in asked] == ["0:0:0:0:0"] * 2 + [None] * 2
    assert [(getattr(one, "lane", -1), one.worker) for one in asked] == [
        (1, 0), (3, 1), (1, 0), (3, 1),
    ]  # fmt: skip
    again = next(schedule.requests())
    assert isinstance(again, LaneTurn)
    assert again.cursor is not None
    assert again.start != asked[0].start  # type: ignore[union-attr]


@pytest.mark.parametrize("ahead", [1, 3, 8])
def test_no_batch_is_asked_for_beyond_those_that_are_due(ahead: int) -> None:
    """So nothing is read, and nothing fails, that is not delivered."""
    delivered, places = run(schedule_of((2, 3), ranks=2, rank=1, num_steps=5), ahead, (2, 3))
    assert delivered == [(1, 0, 0), [(1, 0, 1)], (1, 0, 1), [(1, 0, 1)], (1, 0, 2)]
    assert len(places) == 5
    last = places[-1].lanes
    assert last is not None
    assert (last[1].count, last[1].shard) == (8, 2)


def test_a_failed_batch_counts_with_the_next_one() -> None:
    """The rests are cut after it."""
    schedule, worker = schedule_of((4, 3)), Worker((4, 3))
    requests = schedule.requests()
    first, second = next(requests), next(requests)
    answer = worker.answer(first)
    assert schedule.fail(first, Answer(Failure(ValueError()), snapshot=answer.snapshot)) is None
    assert schedule.arrive(next(requests), None).position == key_of_lane(0, 2), "it has moved on"
    place = schedule.deliver(second, worker.answer(second))
    assert place.position == 1
    assert place.lanes is not None
    assert [place.lanes[lane].count for lane in (0, 1)] == [2, 2]


def test_a_restart_forgets_what_has_failed() -> None:
    """It is requested again, and may succeed."""
    schedule, worker = schedule_of((4, 3)), Worker((4, 3))
    requests = schedule.requests()
    first = next(requests)
    schedule.fail(first, Answer(Failure(ValueError()), snapshot=worker.answer(first).snapshot))
    requests = schedule.requests()
    again, other = next(requests), next(requests)
    assert isinstance(again, LaneTurn)
    assert (again.lane, again.turn, again.cursor) == (0, 0, "0:0:0:0:0")
    place = schedule.deliver(other, worker.answer(other))
    assert place.lanes is not None
    assert place.lanes[0] == LaneCursor()


def test_keys_are_those_of_the_first_sample() -> None:
    """For turns and for rests."""
    schedule, worker = schedule_of(), Worker()
    requests, keys = schedule.requests(), []
    for request in requests:
        answer = worker.answer(request)
        if answer.payload is not SKIPPED:
            keys.append(schedule.arrive(request, answer).position)
        schedule.deliver(request, answer)
    wanted = [(0, 0), (1, 0), (2, 0), (0, 2), (2, 2), (0, 4), (0, 6)]
    assert keys == [key_of_lane(*one) for one in wanted]

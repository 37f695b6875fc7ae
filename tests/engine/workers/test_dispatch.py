"""Routing of requests to workers, after lost answers and lost workers."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from stateful_gpu_loader.engine.pipeline import Answer, Failure, WorkersDied
from stateful_gpu_loader.engine.stats import Tally
from stateful_gpu_loader.engine.workers import dispatch as module
from stateful_gpu_loader.engine.workers.cluster import Answered, Lost, Started, Unreadable
from stateful_gpu_loader.engine.workers.dispatch import Dispatch
from stateful_gpu_loader.engine.workers.pool import PoolPipeline
from stateful_gpu_loader.records import LaneTurn
from stateful_gpu_loader.state.lane_cursor import LaneCursor, LaneProgress
from tests.engine.workers import fakes


class NoCluster:
    """A cluster that accepts all calls and does nothing."""

    queues = True

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any]] = []

    def start(self, worker: int, place: int) -> None: ...

    def send(self, worker: int, number: int, message: Any, *, first: int) -> None:
        self.sent.append((worker, message.request))

    def kill(self, worker: int) -> None: ...

    def resources(self) -> str:
        return "none of a test"


class Late(NoCluster):
    """Accepts requests only for workers that have started."""

    queues = False


def dispatch(
    *,
    max_losses: int,
    limit: int = 2,
    threads: int = 1,
    in_order: bool = True,
    connect: Any = NoCluster,
) -> Dispatch:
    return Dispatch(
        connect,
        num_workers=2,
        limit=limit,
        in_order=in_order,
        depth=2,
        threads=threads,
        takes_turns=True,
        max_losses=max_losses,
        tally=Tally(),
    )


def begun(count: int, **options: Any) -> Dispatch:
    """Return a dispatch that has sent as many of ``count`` requests as its limit allows."""
    made = dispatch(**options)
    made.begin(iter([fakes.request(i, fakes.nothing) for i in range(count)]), None)
    made.fill()
    return made


@pytest.mark.parametrize("snapshot", [True, False])
def test_an_unreadable_answer_names_the_worker_whose_state_is_lost(snapshot: bool) -> None:
    """Otherwise the stream would continue from the worker's previous state."""
    two_workers = dispatch(max_losses=0)
    two = [fakes.request(i, fakes.nothing, snapshot=snapshot) for i in range(2)]
    two_workers.begin(iter(two), None)
    two_workers.fill()
    failure = Failure(OSError("too many open files"))
    first, second = two_workers._tasks
    two_workers.take(first, "batch")
    two_workers.take(second, failure)
    assert two_workers.deliver()[1] == "batch"
    assert two_workers.deliver()[1] == (Answer(failure, worker=1) if snapshot else failure)


def test_a_start_that_exceeds_the_timeout_counts_as_a_loss_of_the_batch() -> None:
    """The user asked for a limit of the wait, whatever the worker does."""
    two_workers = begun(1, max_losses=2)
    for _ in range(3):
        assert not two_workers.is_ready()
        two_workers.look_for_overdue(began=0.0, timeout=1e-9)
    assert two_workers.is_ready()
    with pytest.raises(WorkersDied, match="1e-09 seconds"):
        two_workers.deliver()


@pytest.mark.parametrize("max_losses", [0, 1])
def test_an_idle_worker_is_replaced_unless_none_is(max_losses: int) -> None:
    two_workers = begun(1, max_losses=max_losses)
    two_workers.note(Started(1))
    two_workers.note(Lost(1, "a test ended it"))
    assert two_workers._tally.worker_restarts == max_losses
    assert two_workers.is_ready() == (max_losses == 0)
    if max_losses == 0:
        with pytest.raises(WorkersDied, match="a test ended it"):
            two_workers.deliver()
    else:
        assert len(two_workers.notices) == 1


def turn_of_lane(turn: int, cursor: str | None) -> LaneTurn:
    return LaneTurn(
        ordinal=turn,
        seed=0,
        epoch=0,
        lane=0,
        turn=turn,
        lap=0,
        num_samples=1,
        cursor=cursor,
        start=0,
        worker=0,
    )


def answer_of_turn(turn: int, where: str = "") -> Answer:
    return Answer(
        f"batch {turn}{where}", snapshot=LaneProgress(cursors={0: LaneCursor(turns=turn + 1)})
    )


def test_a_lane_continues_on_another_worker_after_its_answered_turns() -> None:
    """A process of several threads answered one turn before the preceding turn."""
    workers = dispatch(max_losses=1, limit=4)
    workers.begin(
        iter([turn_of_lane(turn, None if turn else "0:0:0:0:0") for turn in range(4)]), None
    )
    workers.note(Started(0))
    workers.fill()
    first, _, third, _ = workers._tasks
    workers.take(first, answer_of_turn(0))
    workers.take(third, answer_of_turn(2))
    cluster: Any = workers._cluster
    cluster.sent.clear()
    workers.note(Lost(0, "a test ended it"))
    again = [(request.turn, request.cursor) for _, request in cluster.sent]
    assert again == [(1, LaneCursor(turns=1).to_text()), (2, None), (3, None)]
    assert len({worker for worker, _ in cluster.sent}) == 1
    for number, task in workers._tasks.items():
        workers.take(number, answer_of_turn(task.request.turn, where=" again"))
    # The early answer to turn 2 is discarded with its worker, whose lane may have stood elsewhere.
    found = [workers.deliver()[1].payload for _ in range(4)]
    assert found == ["batch 0", *(f"batch {turn} again" for turn in (1, 2, 3))]


def test_an_answer_of_a_worker_that_was_given_up_is_taken_and_its_request_not_sent_again() -> None:
    """Threads that a timeout abandons continue, and may still answer."""
    workers = begun(8, max_losses=3, limit=4, threads=2)
    cluster: Any = workers._cluster
    for worker in (0, 1):
        workers.note(Started(worker))
    for worker in (0, 1):
        workers.note(Lost(worker, "a test gave it up"))
    waiting = [task.number for task in workers._unsent]
    assert waiting, "requests that a worker was lost with are made alone"
    workers.take(waiting[-1], "late")
    cluster.sent.clear()
    found: list[Any] = []
    while len(found) < 8:
        for worker in workers._workers.values():
            for number in list(worker.tasks):
                workers.take(number, "in time")
        assert workers.is_ready(), workers.depth()
        found.append(workers.deliver()[1])
        workers.fill()
    assert found.count("late") == 1
    sent = [request.ordinal for _, request in cluster.sent]
    assert len(sent) == len(set(sent))


@pytest.mark.parametrize("event", ["an answer", "an answer that is lost"])
def test_events_of_a_lost_worker_are_ignored(event: str) -> None:
    two_workers = begun(4, max_losses=0, limit=4)
    number = max(two_workers._by_place[1].tasks)
    two_workers.note(Lost(1, "a test ended it"))
    if event == "an answer":
        two_workers.take(number, "late")
    else:
        two_workers.note(Unreadable(number, "a test"))
    first = min(two_workers._tasks)
    two_workers.take(first, "in time")
    assert two_workers.deliver()[1] == "in time"


def test_an_exception_of_the_requests_keeps_no_dispatch_alive() -> None:
    def requests() -> Iterator[Any]:
        raise KeyError("the sampler's own")
        yield

    gc.collect()
    gc.disable()
    try:
        workers = dispatch(max_losses=0)
        workers.begin(requests(), None)
        workers.fill()
        with suppress(KeyError):
            workers.deliver()
        held = weakref.ref(workers)
        del workers
        assert held() is None
    finally:
        gc.enable()


class Held:
    """A dispatch whose only answer comes while the user's thread is suspended in the wait."""

    notices: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.events: list[Answered] = []
        self.answers: list[Any] = []

    def fill(self, *, spare: int = 0) -> None: ...

    def is_ready(self) -> bool:
        return bool(self.answers)

    def receive(self) -> Answered | None:
        return self.events.pop() if self.events else None

    def await_event(self, seconds: float) -> None:
        self.events.append(Answered(0, "batch"))

    def take(self, number: int, answer: Any) -> None:
        self.answers.append(answer)

    def look_for_overdue(self, began: float, timeout: float) -> None:
        raise AssertionError("it has come")

    def deliver(self) -> tuple[Any, Any]:
        return "request", self.answers.pop()


def test_a_batch_that_has_come_is_not_overdue() -> None:
    pipeline = PoolPipeline(lambda: None, timeout=1, persistent=False, tally=Tally())  # type: ignore[arg-type,return-value]
    pipeline._dispatch = Held()  # type: ignore[assignment]
    assert next(pipeline) == ("request", "batch")


def test_no_batch_is_awaited_that_no_worker_makes() -> None:
    """Two workers die, and the death of the one with the newer batch is noticed first."""
    two_workers = begun(2, max_losses=0)
    two_workers.note(Started(1))
    two_workers.note(Lost(1, "a test ended it"))
    assert not two_workers.is_ready()
    two_workers.note(Lost(0, "a test ended it before it had started"))
    assert two_workers.is_ready()
    with pytest.raises(WorkersDied, match="worker 0"):
        two_workers.deliver()


def test_a_request_is_charged_with_the_workers_that_were_lost_while_they_made_it() -> None:
    """A worker dies with the older of two requests, and its successor with the newer."""
    two_workers = begun(4, max_losses=1, limit=4)
    two_workers.note(Started(0))
    first = min(two_workers._tasks)
    two_workers.note(Lost(0, "a test ended it"))
    two_workers.note(Started(2))
    two_workers.take(first, "batch 0")
    assert two_workers.deliver()[1] == "batch 0"
    two_workers.note(Lost(2, "a test ended it"))
    for number in list(two_workers._tasks):
        assert not two_workers.is_ready()
        two_workers.take(number, "batch")
        assert two_workers.deliver()[1] == "batch"


def test_a_lost_worker_leaves_no_request_of_an_abandoned_pass() -> None:
    two_workers = begun(4, max_losses=1, limit=4)
    two_workers.begin(iter([fakes.request(i, fakes.nothing) for i in range(10, 14)]), None)
    two_workers.fill()
    two_workers.note(Started(0))
    cluster: Any = two_workers._cluster
    cluster.sent.clear()
    two_workers.note(Lost(0, "a test ended it"))
    assert [request.ordinal for _, request in cluster.sent] == [10, 12]


def test_requests_of_an_abandoned_pass_are_not_sent_once_workers_start() -> None:
    late_workers = dispatch(max_losses=1, connect=Late)
    for first in (0, 10):
        late_workers.begin(iter([fakes.request(first + i, fakes.nothing) for i in range(2)]), None)
        late_workers.fill()
    cluster: Any = late_workers._cluster
    assert cluster.sent == []
    for worker in (0, 1):
        late_workers.note(Started(worker))
    assert [request.ordinal for _, request in cluster.sent] == [10, 11]


class Clock:
    """Replaces the clock of the dispatch."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_worker_is_overdue_once_next_has_waited_for_it_so_long(clock: Clock) -> None:
    """Neither the user's own step counts, nor the time before the request was sent again."""
    two_workers = begun(1, max_losses=3)
    restarts = []
    for clock.now in (1000, 1009, 1011, 1020, 1022):
        two_workers.look_for_overdue(1000, timeout=10)
        restarts.append(two_workers._tally.worker_restarts)
    assert restarts == [0, 0, 1, 1, 2]


def test_the_wait_for_a_start_is_counted_again_after_a_loss(clock: Clock) -> None:
    late_workers = begun(1, max_losses=3, connect=Late)
    late_workers.look_for_overdue(0, timeout=0)
    clock.now = 100
    late_workers.note(Started(0))
    late_workers.look_for_overdue(0, timeout=0)
    clock.now = 200
    late_workers.note(Lost(0, "a test ended it"))
    late_workers.notices.clear()
    num_notices = []
    for clock.now in (201, 320, 322):
        late_workers.look_for_overdue(0, timeout=0)
        num_notices.append(len(late_workers.notices))
    assert num_notices == [0, 0, 1]


def test_a_started_worker_resets_the_count_of_failed_starts() -> None:
    two_workers = begun(2, max_losses=1)
    two_workers.note(Lost(0, "a test ended it"))
    two_workers.note(Started(2))
    two_workers.note(Lost(1, "a test ended it"))
    assert two_workers._tally.worker_restarts == 2
    assert sorted(two_workers._workers) == [2, 3]


class OfSecondWorker:
    """Requests for any worker; the first worker takes no more of them."""

    def __init__(self) -> None:
        self._ordinals = iter(range(4))

    def __iter__(self) -> OfSecondWorker:
        return self

    def __next__(self) -> Any:
        return fakes.request(next(self._ordinals), fakes.nothing)

    def is_open(self, place: int) -> bool:
        return place == 1


def test_out_of_order_a_worker_that_has_ended_is_asked_for_nothing() -> None:
    two_workers = dispatch(max_losses=0, limit=4, in_order=False)
    two_workers.begin(OfSecondWorker(), fakes.starts(2))
    two_workers.fill()
    cluster: Any = two_workers._cluster
    assert [worker for worker, _ in cluster.sent] == [1, 1, 1, 1]

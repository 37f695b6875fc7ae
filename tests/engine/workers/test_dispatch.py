"""What lost answers, and workers that are lost while they have nothing to do, leave behind."""

from __future__ import annotations

from typing import Any

import pytest

from stateful_gpu_loader.engine.pipeline import Answer, Failure, WorkersDied
from stateful_gpu_loader.engine.stats import Tally
from stateful_gpu_loader.engine.workers.cluster import Lost, Started
from stateful_gpu_loader.engine.workers.dispatch import Dispatch
from stateful_gpu_loader.records import LaneTurn
from stateful_gpu_loader.state.lane_cursor import LaneCursor, LaneProgress
from tests.engine.workers import fakes


class NoCluster:
    """Takes everything and does nothing."""

    queues = True

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any]] = []

    def start(self, worker: int, place: int) -> None: ...

    def send(self, worker: int, number: int, message: Any, *, first: int) -> None:
        self.sent.append((worker, message.request))

    def kill(self, worker: int) -> None: ...


def dispatch(*, max_losses: int, limit: int = 2) -> Dispatch:
    connect: Any = NoCluster
    return Dispatch(
        connect,
        num_workers=2,
        limit=limit,
        in_order=True,
        depth=2,
        takes_turns=True,
        max_losses=max_losses,
        tally=Tally(),
    )


@pytest.mark.parametrize("snapshot", [True, False])
def test_an_answer_that_could_not_be_read_tells_whose_state_is_lost(snapshot: bool) -> None:
    """The stream would take the worker's state before it for the one behind it."""
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


@pytest.mark.parametrize("max_losses", [0, 1])
def test_an_idle_worker_is_replaced_unless_none_is(max_losses: int) -> None:
    two_workers = dispatch(max_losses=max_losses)
    two_workers.begin(iter([fakes.request(0, fakes.nothing)]), None)
    two_workers.fill()
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


def answer_of_turn(turn: int) -> Answer:
    return Answer(f"batch {turn}", snapshot=LaneProgress(cursors={0: LaneCursor(turns=turn + 1)}))


def test_a_lane_goes_on_elsewhere_behind_the_turns_that_were_answered_in_order() -> None:
    """A process of several threads has answered a turn before the one that precedes it."""
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
        workers.take(number, answer_of_turn(task.request.turn))
    assert [workers.deliver()[1].payload for _ in range(4)] == [f"batch {i}" for i in range(4)]


def test_no_batch_is_waited_for_that_nobody_makes() -> None:
    """Two workers die, and the one with the newer batch is met first."""
    two_workers = dispatch(max_losses=0)
    two_workers.begin(iter([fakes.request(i, fakes.nothing) for i in range(2)]), None)
    two_workers.fill()
    two_workers.note(Started(1))
    two_workers.note(Lost(1, "a test ended it"))
    assert not two_workers.is_ready()
    two_workers.note(Lost(0, "a test ended it before it had started"))
    assert two_workers.is_ready()
    with pytest.raises(WorkersDied, match="worker 0 was lost"):
        two_workers.deliver()

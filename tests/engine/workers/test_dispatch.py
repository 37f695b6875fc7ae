"""What lost answers, and workers that are lost while they have nothing to do, leave behind."""

from __future__ import annotations

from typing import Any

import pytest

from stateful_gpu_loader.engine.pipeline import Answer, Failure, WorkersDied
from stateful_gpu_loader.engine.stats import Tally
from stateful_gpu_loader.engine.workers.cluster import Lost, Started
from stateful_gpu_loader.engine.workers.dispatch import Dispatch
from tests.engine.workers import fakes


class NoCluster:
    """Takes everything and does nothing."""

    queues = True

    def start(self, worker: int, place: int) -> None: ...

    def send(self, worker: int, number: int, message: Any, *, first: int) -> None: ...

    def kill(self, worker: int) -> None: ...


def dispatch(*, max_losses: int) -> Dispatch:
    connect: Any = NoCluster
    return Dispatch(
        connect,
        num_workers=2,
        limit=2,
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
    first, second = two_workers._messages
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
        with pytest.raises(WorkersDied, match="a test ended it") as died:
            two_workers.deliver()
        assert died.value.remedy is not None
    else:
        assert len(two_workers.notices()) == 1

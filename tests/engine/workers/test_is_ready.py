"""is_ready: whether next() would return without waiting."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from stateful_gpu_loader.engine.pipeline import WorkersDied
from stateful_gpu_loader.engine.workers.inline import InlinePipeline
from tests.engine.workers import fakes
from tests.engine.workers.fakes import Doing, Gate, requests


def eventually(is_so: Callable[[], bool]) -> bool:
    """Return whether it becomes true within 20 seconds."""
    deadline = time.monotonic() + 20
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_the_oldest_answer_alone_makes_it_ready(make: Any, gate: Gate, kind: str) -> None:
    pipeline, gate = fakes.threads(Doing()) if kind == "threads" else make(), gate
    assert not pipeline.is_ready()
    pipeline.start(requests(gate.action, fakes.returning(1), fakes.returning(2)))
    gate.reached()
    assert not pipeline.is_ready(), "later answers do not count"
    gate.open()
    assert eventually(pipeline.is_ready)
    next(pipeline)
    assert eventually(pipeline.is_ready)
    assert next(pipeline)[1] == 1
    assert eventually(pipeline.is_ready)
    assert next(pipeline)[1] == 2
    with pytest.raises(StopIteration):
        next(pipeline)
    pipeline.close()


def test_asking_starts_nothing_in_the_users_thread() -> None:
    maker = Doing()
    pipeline = InlinePipeline(maker)
    pipeline.start(requests(fakes.returning(1)))
    assert not pipeline.is_ready()
    assert maker.log == []


def test_dead_workers_are_reported_by_next_alone(make: Any, gate: Gate) -> None:
    pipeline, gate = make(num_workers=1, max_losses=0), gate
    pipeline.start(requests(gate.action))
    gate.reached()
    os.kill(pipeline.workers[0].pid, signal.SIGKILL)
    for _ in range(100):
        pipeline.is_ready()
    with pytest.raises(WorkersDied, match="Killed"):
        next(pipeline)
    gate.open()

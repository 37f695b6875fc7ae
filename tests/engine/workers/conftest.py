"""A test that hangs is interrupted, and fails."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.engine.workers.fakes import Gate, children, processes
from tests.patience import seconds


class Hang(BaseException):
    """Raised in the main thread after longer than any test needs."""


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(math.ceil(seconds(9)))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    """Make process pipelines; close them at the end, and check that no process is left."""
    before = children()
    made = []

    def make(maker: Any = None, **changes: Any) -> Any:
        made.append(processes(maker, **changes))
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.close()
    assert children() - before - _helpers() == set()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.close()


def _helpers() -> set[str]:
    """Return the pids of multiprocessing's own processes, which start once and may stay."""
    tracker, server = resource_tracker._resource_tracker, forkserver._forkserver
    return {str(tracker._pid), str(server._forkserver_pid)}

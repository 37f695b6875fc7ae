"""A test that hangs is interrupted, and fails."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.engine.workers.fakes import Gate, children, processes


class Hang(BaseException):
    """Raised in the main thread after longer than any test needs."""


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(90)
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
    # multiprocessing's helper processes, which spawn and forkserver start once, may stay.
    left = {pid for pid in children() - before if not _is_helper(pid)}
    assert left == set()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.close()


def _is_helper(pid: str) -> bool:
    command = Path(f"/proc/{pid}/cmdline").read_text()
    return "resource_tracker" in command or "forkserver" in command

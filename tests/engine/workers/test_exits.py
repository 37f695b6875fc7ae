"""The end of processes, with and without pidfds."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from stateful_gpu_loader.engine.workers.processes import Exit, describe_exit, have_ended, kill
from tests.engine.workers.fakes import fds

FORK = multiprocessing.get_context("fork")


@pytest.fixture(params=[True, False], ids=["pidfd", "sentinel"])
def processes(request: Any, monkeypatch: Any) -> Iterator[list[Any]]:
    if not request.param:

        def forbidden(pid: int) -> int:
            raise PermissionError(pid)

        monkeypatch.setattr(os, "pidfd_open", forbidden)
    processes = [FORK.Process(target=signal.pause) for _ in range(3)]
    for process in processes:
        process.start()
    yield processes
    kill(processes)


def test_its_descriptor_reports_an_exit(processes: list[Any]) -> None:
    before = fds()
    exits = [Exit(process) for process in processes]
    os.kill(processes[1].pid, signal.SIGTERM)
    assert select.select(exits, [], [], 60)[0] == [exits[1]]
    assert describe_exit(processes[1]) == (
        f"DataLoader worker (pid {processes[1].pid}) is killed by signal: Terminated"
    )
    for one in exits:
        one.close()
    assert fds() == before


def test_an_exit_status_that_was_collected_elsewhere(processes: list[Any]) -> None:
    processes[2].kill()
    processes[2].join()
    ended = Exit(processes[2])
    assert select.select([ended], [], [], 60)[0] == [ended]
    ended.close()


def test_the_end_of_all_is_awaited(processes: list[Any]) -> None:
    before = fds()
    assert not have_ended(processes, 0)
    os.kill(processes[0].pid, signal.SIGKILL)
    assert have_ended(processes[:1], 60)
    assert not have_ended(processes, 0)
    kill(processes)
    assert have_ended(processes, 0)
    assert [process.exitcode for process in processes] == [-signal.SIGKILL] * 3
    assert fds() == before

"""The watch over processes, with and without pidfds."""

from __future__ import annotations

import gc
import multiprocessing
import os
import select
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from stateful_gpu_loader.engine.workers.worker_monitor import WorkerMonitor, have_ended, kill
from tests.engine.workers.fakes import fds
from tests.patience import seconds

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


def test_the_death_of_one_ends_all(processes: list[Any]) -> None:
    before = fds()
    watch = WorkerMonitor(processes, 0)
    assert not watch.has_lost()
    os.kill(processes[1].pid, signal.SIGTERM)
    assert select.select([watch], [], [], 60)[0] == [watch]
    assert watch.has_lost()
    assert have_ended(processes, 0)
    assert watch.verdict() == (
        f"DataLoader worker (pid {processes[1].pid}) is killed by signal: Terminated"
    )
    watch.stop()
    assert fds() == before


def test_one_that_is_dead_before_it_is_watched(processes: list[Any]) -> None:
    os.kill(processes[2].pid, signal.SIGKILL)
    os.waitid(os.P_PID, processes[2].pid, os.WEXITED | os.WNOWAIT)
    watch = WorkerMonitor(processes, 0)
    assert watch.has_lost(60)
    assert "Killed" in watch.verdict()
    watch.stop()


def test_it_ends_all_when_somebody_waits_too_long(processes: list[Any]) -> None:
    watch = WorkerMonitor(processes, 0.1)
    with watch.waiting():
        assert watch.has_lost(60)
    assert watch.verdict() == "DataLoader timed out after 0.1 seconds"
    assert have_ended(processes, 0)
    watch.stop()


@pytest.mark.processes
def test_the_time_while_nobody_waits_is_the_users(processes: list[Any]) -> None:
    """A slow step between two calls of next() kills nobody."""
    watch = WorkerMonitor(processes, 0.1)
    with watch.waiting():
        pass
    assert not watch.has_lost(0.5)
    watch.stop()


@pytest.mark.processes
def test_stopped_it_lets_them_live_and_end(processes: list[Any]) -> None:
    before, threads = fds(), threading.active_count()
    watch = WorkerMonitor(processes, 1)
    watch.stop()
    watch.stop()
    assert fds() == before
    assert threading.active_count() == threads
    assert not have_ended(processes, 0)
    processes[0].kill()
    processes[0].join()
    assert not watch.has_lost()
    assert processes[1].is_alive()


def test_collected_in_a_cycle_it_leaves_nothing_open(processes: list[Any]) -> None:
    """Garbage is collected in any order."""
    before = fds()
    watch = WorkerMonitor(processes, 0)
    thread, cycle = watch._thread, [watch._ours, watch]
    cycle.append(cycle)  # type: ignore[arg-type]
    del watch, cycle
    gc.collect()
    thread.join(seconds(10))
    assert not thread.is_alive()
    assert fds() == before

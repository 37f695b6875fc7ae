"""Workers die or hang, and the stream stays unchanged."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import StatefulGPULoader, WorkerLost
from tests.conformance import copy_of, loaded, same
from tests.generators import generators
from tests.lost_workers import (
    KillsItself,
    deliver_quietly,
    kill,
    lives,
    uninterrupted_batches,
    with_kills,
)
from tests.makers import MAKERS, Make, N, make_map
from tests.map_datasets import Noisy
from tests.patience import seconds
from tests.stream_kinds import KINDS, LOADERS

CREWS = {"num_workers": 4, "threads_per_process": 2}
KILLED: dict[str, tuple[Make, dict[str, Any]]] = {
    **{name: (make, {}) for name, make in MAKERS.items()},
    "shards": (partial(KINDS["shards of unknown length"], batch_size=5), {}),
    "calls": (partial(KINDS["calls without length"], batch_size=1), {}),
    "calls for batches": (LOADERS["calls for batches"], {}),
    "threads of processes": (partial(LOADERS["photographs"], batch_size=1), CREWS),
    "shards, threads of processes": (LOADERS["shards of photographs"], CREWS),
}
"""Loaders of some batches, and their workers if they are not two processes."""


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*samples of the iterable dataset are read again")
@pytest.mark.parametrize(
    ("name", "persistent"),
    [
        *((name, i % 2 == 1) for i, name in enumerate(KILLED)),
        ("map", True),
    ],
)
def test_killed_workers_leave_the_stream_unchanged(name: str, persistent: bool) -> None:
    """Each worker is killed, at the first and a later batch, alone and with all others."""
    # At most two batches are answered before a kill, so each kill is met before the next one.
    make, workers = KILLED[name]
    tied = {} if workers else {"num_workers": 2, "persistent_workers": persistent}
    expected = uninterrupted_batches(make, 2, **tied)
    workers = {"num_workers": 2, **workers, "prefetch_factor": 1}
    loader = make(**workers, persistent_workers=persistent)
    with pytest.warns(RuntimeWarning, match="is killed by signal") as warned:
        found = with_kills(loader, 2, {1: (0,), 4: (1,), 7: (0, 1)})
    assert same(found, expected)
    restarts = [str(w.message) for w in warned if "the stream goes on" in str(w.message)]
    assert loader.worker_restarts == len(restarts) >= 2
    assert "pid" in restarts[0]


@pytest.mark.processes
@pytest.mark.parametrize("number", [2, 9, 10])
def test_a_kill_after_late_batches(number: int) -> None:
    """After the last batch, too."""
    expected = uninterrupted_batches(make_map, 1, num_workers=2)
    assert len(expected[0]) == 10
    loader = make_map(num_workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert same(with_kills(loader, 1, {number: (number,)}), expected)
    if number < 5:
        assert loader.worker_restarts == 1


@pytest.mark.processes
@pytest.mark.parametrize("name", ["iterable with state", "map"])
def test_workers_of_a_fork_server_are_replaced(name: str) -> None:
    arguments = {"num_workers": 2, "multiprocessing_context": "forkserver"}
    expected = uninterrupted_batches(MAKERS[name], 1, num_workers=2)
    loader = MAKERS[name](**arguments)
    with pytest.warns(RuntimeWarning, match="killed by signal"):
        assert same(with_kills(loader, 1, {2: (0,)}), expected)


@pytest.mark.processes
@pytest.mark.parametrize(("how", "index"), [("kill", 13), ("exit", 0), ("kill", 39)])
def test_a_worker_that_dies_at_a_sample_while_next_waits(
    tmp_path: Path, how: str, index: int
) -> None:
    """It is killed or exits by itself, at the first batch and at the last."""
    expected = uninterrupted_batches(lambda: StatefulGPULoader(Noisy(N), batch_size=4, seed=1), 1)
    dataset = KillsItself(N, index, lives(tmp_path / "lives", 1), how)
    loader = StatefulGPULoader(dataset, batch_size=4, seed=1, num_workers=2)
    wanted = "is killed by signal" if how == "kill" else "exit code 3"
    with pytest.warns(RuntimeWarning, match=wanted) as warned:
        assert same([list(loader)], expected)
    assert ".." not in str(warned[0].message)
    assert loader.worker_restarts == 1


def test_a_sample_that_kills_workers_is_named_and_the_state_is_intact(tmp_path: Path) -> None:
    """WorkerLost comes after max_worker_restarts; state_dict() works, a new iterator continues."""
    expected = uninterrupted_batches(lambda: StatefulGPULoader(Noisy(N), batch_size=4, seed=1), 1)[
        0
    ]
    dataset = KillsItself(N, 13, lives(tmp_path / "lives", 100))
    loader = StatefulGPULoader(dataset, batch_size=4, seed=1, num_workers=2)
    batches, delivered = iter(loader), []
    with warnings.catch_warnings(), pytest.raises(WorkerLost) as lost:
        deliver_quietly(batches, delivered)
    assert isinstance(lost.value, RuntimeError)
    assert "is killed by signal: Killed" in str(lost.value)
    assert "at the batch of dataset indices 12, 13, 14, 15" in str(lost.value)
    assert "max_worker_restarts is 3" in str(lost.value)
    assert same(delivered, expected[:3]), "the healthy batches before it were delivered"
    state = loader.state_dict()
    assert state["position"] == 12
    for life in dataset.lives.iterdir():
        life.unlink()
    assert same(list(loader), expected[3:])
    resumed = loaded(StatefulGPULoader(Noisy(N), batch_size=4, seed=1), state)
    assert same(list(resumed), expected[3:])


class KillsItselfWithState(KillsItself):
    """Its state is in its worker, so a loss costs all batches in flight."""

    def state_dict(self) -> dict[str, int]:
        return {"none": 0}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        assert state_dict == {"none": 0}


@pytest.mark.parametrize("limit", [0, 1])
@pytest.mark.parametrize("kind", [KillsItself, KillsItselfWithState])
def test_a_batch_may_lose_max_worker_restarts_workers(
    tmp_path: Path, kind: type[KillsItself], limit: int
) -> None:
    dataset = kind(N, 13, lives(tmp_path / "lives", 100))
    loader = StatefulGPULoader(dataset, num_workers=1, max_worker_restarts=limit)
    with warnings.catch_warnings(), pytest.raises(WorkerLost):
        deliver_quietly(iter(loader), [])
    assert len(list(dataset.lives.iterdir())) == 99 - limit
    assert loader.worker_restarts == limit


def test_the_users_own_step_is_not_interrupted() -> None:
    """torch's SIGCHLD handler would raise in it."""
    loader = make_map(num_workers=2)
    batches = iter(loader)
    next(batches)
    kill(batches, 0)
    for _ in range(200):
        torch.rand(64, 64) @ torch.rand(64, 64)
    with pytest.warns(RuntimeWarning, match="killed"):
        assert len(list(batches)) == 9


def test_recovery_draws_nothing_from_the_callers_generators() -> None:
    """A loader draws from the caller's generators once in its life."""
    loader = make_map(num_workers=2, seed=None)
    batches = iter(loader)
    next(batches)
    before = generators()
    kill(batches, 0, 1)
    with pytest.warns(RuntimeWarning, match="killed"):
        list(batches)
    assert generators() == before


def test_persistent_workers_killed_between_two_epochs() -> None:
    expected = uninterrupted_batches(make_map, 2)
    loader = make_map(num_workers=2, persistent_workers=True)
    first = [copy_of(batch) for batch in loader]
    assert loader._engine.workers.idle is not None
    for worker in loader._engine.workers.idle.workers:  # type: ignore[attr-defined]
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    with pytest.warns(RuntimeWarning, match="killed"):
        assert same([first, list(loader)], expected)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["map", "iterable with state"])
def test_a_stopped_worker_is_found_by_the_timeout(name: str) -> None:
    """A worker stopped by SIGSTOP is ended, and the warning says where it was."""
    expected = uninterrupted_batches(MAKERS[name], 1, num_workers=2)
    limit = seconds(0.2)
    loader = MAKERS[name](num_workers=2, timeout=limit)
    batches = iter(loader)
    delivered = [copy_of(next(batches))]
    os.kill(batches._workers[1].pid, signal.SIGSTOP)
    timed_out = re.escape(f"DataLoader timed out after {limit} seconds")
    with pytest.warns(RuntimeWarning, match=timed_out) as warned:
        delivered.extend(copy_of(batch) for batch in batches)
    assert same([delivered], expected)
    assert loader.worker_restarts == 1
    assert ", at the " in str(warned[0].message)


@pytest.mark.processes
def test_a_hanging_sample_is_named_and_ends_in_worker_lost(tmp_path: Path) -> None:
    """A sample that always hangs is not the workers' fault."""
    dataset = KillsItself(8, 5, lives(tmp_path / "lives", 100), "hang")
    loader = StatefulGPULoader(
        dataset, batch_size=2, num_workers=1, timeout=seconds(0.05), max_worker_restarts=1
    )
    with warnings.catch_warnings(), pytest.raises(WorkerLost, match="timed out") as lost:
        deliver_quietly(iter(loader), [])
    assert "dataset indices 4, 5" in str(lost.value)


def _leaks(workers: set[int], known: set[str]) -> tuple[int, int, list[str], set[int]]:
    gc.collect()
    new = set(os.listdir("/dev/shm")) - known
    memory = [name for name in new if workers & set(_numbers(name))]
    children = {process.pid or 0 for process in multiprocessing.active_children()}
    return len(os.listdir("/proc/self/fd")), threading.active_count(), memory, children


def _numbers(name: str) -> Iterator[int]:
    """Yield the creator's pid, from the name of each piece of torch's shared memory."""
    return (int(part) for part in name.split("_") if part.isdecimal())


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.processes
def test_many_epochs_with_restarts_leak_nothing() -> None:
    """100 epochs: descriptors, threads, shared memory, child processes and memory growth."""
    loader = StatefulGPULoader(Noisy(32), batch_size=4, seed=1, shuffle=True, num_workers=1)
    workers: set[int] = set()
    known = set(os.listdir("/dev/shm"))  # pids are used again

    def epochs(count: int) -> None:
        for number in range(count):
            batches = iter(loader)
            next(batches)
            workers.update(worker.pid for worker in batches._workers)
            if number % 5 == 0:
                kill(batches, 0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert len(list(batches)) == 7

    epochs(10)
    before, resident = _leaks(workers, known), _resident()
    epochs(90)
    assert _leaks(workers, known) == before
    assert loader.worker_restarts == 20
    assert _resident() - resident < 8 << 20

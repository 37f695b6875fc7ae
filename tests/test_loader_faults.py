"""Workers that die or hang: the stream goes on unchanged (G1, G2, laws 2, 5 and 7)."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from stateful_gpu_loader import StatefulGPULoader, WorkerLost
from tests.conformance import copy_of, same
from tests.datasets import Indices, Noisy
from tests.test_loader_behaviour import generators
from tests.user_objects import (
    IterableWithStatefulIterator,
    LazySampler,
    OwnIterator,
    PlainIterable,
    StatefulDataset,
    StatefulIterable,
    StatefulSampler,
)

N = 40
Make = Callable[..., StatefulGPULoader[Any]]
UNEVEN = [3, 17, 9, 0, 6]


class Large(Noisy):
    """Items of 256 KB: a batch is twice what the pipe holds, and travels through it."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "large": np.full(1 << 15, index, dtype=np.int64)}


def make_map(**arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(Noisy(N), **{"batch_size": 4, "seed": 1, "shuffle": True, **arguments})


def make_large(**arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(
        Large(2 * N), **{"batch_size": 8, "seed": 1, "collate_fn": _as_it_is, **arguments}
    )


def make_stateful(**arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(StatefulDataset(N), **{"batch_size": 4, "seed": 1, **arguments})


def make_samplers(**arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(
        StatefulDataset(N),
        **{"batch_size": 4, "seed": 1, "sampler": StatefulSampler(N), **arguments},
    )


def make_lazy(**arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(
        Noisy(N), **{"batch_size": 2, "seed": 1, "sampler": LazySampler(), **arguments}
    )


def make_rare(**arguments: Any) -> StatefulGPULoader[Any]:
    return make_stateful(**{"snapshot_every_n_steps": 3, **arguments})


def iterable(kind: type[PlainIterable]) -> Make:
    def make(**arguments: Any) -> StatefulGPULoader[Any]:
        return StatefulGPULoader(kind(UNEVEN), **{"batch_size": 2, "seed": 1, **arguments})

    return make


MAKERS: dict[str, Make] = {
    "map": make_map,
    "large batches": make_large,
    "dataset with state": make_stateful,
    "rare snapshots": make_rare,
    "sampler and dataset with state": make_samplers,
    "sampler without state": make_lazy,
    "iterable with state": iterable(StatefulIterable),
    "iterator with state": iterable(IterableWithStatefulIterator),
    "own iterator": iterable(OwnIterator),
    "plain iterable": iterable(PlainIterable),
}


def _as_it_is(samples: Any) -> Any:
    return samples


def undisturbed(make: Make, epochs: int, **arguments: Any) -> list[list[Any]]:
    loader = make(**arguments)
    return [[copy_of(batch) for batch in loader] for _ in range(epochs)]


def kill(batches: Any, *numbers: int) -> None:
    """SIGKILL, and wait until the process has ended: no timing is left to chance."""
    workers = [batches._workers[number % len(batches._workers)] for number in numbers]
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):  # the death of a companion has ended it
            os.kill(worker.pid, signal.SIGKILL)
    for worker in workers:
        worker.join()


def with_kills(
    loader: StatefulGPULoader[Any], epochs: int, kills: dict[int, tuple[int, ...]]
) -> list[list[Any]]:
    """Deliver whole epochs, and kill workers behind so-manieth batches of each."""
    found = []
    for _ in range(epochs):
        delivered: list[Any] = []
        batches = iter(loader)
        while True:
            try:
                delivered.append(copy_of(next(batches)))
            except StopIteration:
                break
            victims = kills.get(len(delivered))
            if victims and batches._workers:
                kill(batches, *victims)
        found.append(delivered)
    return found


@pytest.mark.filterwarnings("ignore:.*samples of the iterable dataset are read again")
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("persistent", [False, True])
def test_killed_workers_leave_the_stream_unchanged(name: str, persistent: bool) -> None:
    """G1: any worker, at the first and a later batch, one and all at once, in two epochs."""
    arguments = {"num_workers": 2, "persistent_workers": persistent}
    expected = undisturbed(MAKERS[name], 2, **arguments)
    loader = MAKERS[name](**arguments)
    with pytest.warns(RuntimeWarning, match="is killed by signal") as said:
        found = with_kills(loader, 2, {1: (0,), 2: (1,), 4: (0, 1)})
    assert same(found, expected)
    restarts = [str(w.message) for w in said if "replaced" in str(w.message)]
    assert loader.worker_restarts == len(restarts) >= 4
    assert "pid" in restarts[0]
    assert "epoch 0, position" in restarts[0]


@pytest.mark.parametrize("number", range(1, 11))
def test_a_kill_behind_every_batch(number: int) -> None:
    """G1: the last one included."""
    expected = undisturbed(make_map, 1, num_workers=2)
    assert len(expected[0]) == 10
    loader = make_map(num_workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert same(with_kills(loader, 1, {number: (number,)}), expected)
    if number < 5:
        assert loader.worker_restarts == 1


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("name", ["map", "iterable with state"])
def test_every_start_method(method: str, name: str) -> None:
    """G1."""
    arguments = {"num_workers": 2, "multiprocessing_context": method}
    expected = undisturbed(MAKERS[name], 1, num_workers=2)
    loader = MAKERS[name](**arguments)
    with pytest.warns(RuntimeWarning, match="killed by signal"):
        assert same(with_kills(loader, 1, {2: (0,)}), expected)


class KillsItself(Noisy):
    """Its process dies when it reads one index, as often as there are lives in a directory."""

    def __init__(self, length: int, index: int, lives: Path, how: str = "kill") -> None:
        super().__init__(length)
        self.index, self.lives, self.how = index, lives, how

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.index:
            for life in sorted(self.lives.iterdir()):
                life.unlink()
                if self.how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.how == "exit":
                    os._exit(3)
                threading.Event().wait()
        return super().__getitem__(index)


def _deliver_quietly(batches: Any, delivered: list[Any]) -> None:
    warnings.simplefilter("ignore")
    while True:
        delivered.append(copy_of(next(batches)))


def lives(path: Path, count: int) -> Path:
    path.mkdir()
    for number in range(count):
        (path / f"{number:03d}").touch()
    return path


@pytest.mark.parametrize("how", ["kill", "exit"])
@pytest.mark.parametrize("index", [0, 13, 39])
def test_a_worker_that_dies_at_a_sample_while_next_waits(
    tmp_path: Path, how: str, index: int
) -> None:
    """G1: killed, and ended by its own code; at the first batch and at the last."""
    expected = undisturbed(lambda: StatefulGPULoader(Noisy(N), batch_size=4, seed=1), 1)
    dataset = KillsItself(N, index, lives(tmp_path / "lives", 1), how)
    loader = StatefulGPULoader(dataset, batch_size=4, seed=1, num_workers=2)
    wanted = "is killed by signal" if how == "kill" else "exit code 3"
    with pytest.warns(RuntimeWarning, match=wanted):
        assert same([list(loader)], expected)
    assert loader.worker_restarts == 1


def test_a_poison_sample_is_named_and_the_state_is_intact(tmp_path: Path) -> None:
    """G1: after max_worker_restarts WorkerLost; state_dict() works and a new iterator goes on."""
    expected = undisturbed(lambda: StatefulGPULoader(Noisy(N), batch_size=4, seed=1), 1)[0]
    dataset = KillsItself(N, 13, lives(tmp_path / "lives", 100))
    loader = StatefulGPULoader(dataset, batch_size=4, seed=1, num_workers=2)
    batches, delivered = iter(loader), []
    with warnings.catch_warnings(), pytest.raises(WorkerLost) as lost:
        _deliver_quietly(batches, delivered)
    assert isinstance(lost.value, RuntimeError)
    assert "is killed by signal" in str(lost.value)
    assert "at the batch of dataset indices 12, 13, 14, 15" in str(lost.value)
    assert "max_worker_restarts is 3" in str(lost.value)
    assert same(delivered, expected[:3]), "the healthy batches before it were delivered"
    state = loader.state_dict()
    assert state["position"] == 12
    for life in dataset.lives.iterdir():
        life.unlink()
    assert same(list(loader), expected[3:])
    resumed = StatefulGPULoader(Noisy(N), batch_size=4, seed=1)
    resumed.load_state_dict(state)
    assert same(list(resumed), expected[3:])


@pytest.mark.parametrize("limit", [0, 1])
def test_max_worker_restarts_is_a_limit_in_a_row(tmp_path: Path, limit: int) -> None:
    """G1: a batch delivered starts the count anew."""
    dataset = KillsItself(N, 13, lives(tmp_path / "lives", 100))
    loader = StatefulGPULoader(dataset, num_workers=1, max_worker_restarts=limit)
    with warnings.catch_warnings(), pytest.raises(WorkerLost):
        _deliver_quietly(iter(loader), [])
    assert len(list(dataset.lives.iterdir())) <= 99 - limit


def test_the_users_own_step_is_not_interrupted() -> None:
    """G1: torch's SIGCHLD handler raises there."""
    loader = make_map(num_workers=2)
    batches = iter(loader)
    next(batches)
    kill(batches, 0)
    for _ in range(200):
        torch.rand(64, 64) @ torch.rand(64, 64)
    with pytest.warns(RuntimeWarning, match="killed"):
        assert len(list(batches)) == 9


def test_recovery_draws_nothing_from_the_callers_generators() -> None:
    """Law 7: the caller's generators are drawn from once in a loader's life."""
    loader = make_map(num_workers=2, seed=None)
    batches = iter(loader)
    next(batches)
    before = generators()
    kill(batches, 0, 1)
    with pytest.warns(RuntimeWarning, match="killed"):
        list(batches)
    assert generators() == before


def test_persistent_workers_killed_between_two_epochs() -> None:
    """G1."""
    expected = undisturbed(make_map, 2)
    loader = make_map(num_workers=2, persistent_workers=True)
    first = [copy_of(batch) for batch in loader]
    assert loader._idle_pipeline is not None
    for worker in loader._idle_pipeline.workers:  # type: ignore[attr-defined]
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    with pytest.warns(RuntimeWarning, match="killed"):
        assert same([first, list(loader)], expected)


@pytest.mark.parametrize("name", ["map", "iterable with state"])
def test_a_stopped_worker_is_found_by_the_timeout(name: str) -> None:
    """G2: SIGSTOP; it is ended, the stream goes on, and the warning tells where it was."""
    expected = undisturbed(MAKERS[name], 1, num_workers=2)
    loader = MAKERS[name](num_workers=2, timeout=2)
    batches = iter(loader)
    delivered = [copy_of(next(batches))]
    os.kill(batches._workers[1].pid, signal.SIGSTOP)
    with pytest.warns(RuntimeWarning, match="DataLoader timed out after 2 seconds") as said:
        delivered.extend(copy_of(batch) for batch in batches)
    assert same([delivered], expected)
    assert loader.worker_restarts == 1
    assert ", at the " in str(said[0].message)


def test_a_hanging_sample_is_named_and_ends_in_worker_lost(tmp_path: Path) -> None:
    """G2: one that always hangs is no fault of the workers."""
    dataset = KillsItself(8, 5, lives(tmp_path / "lives", 100), "hang")
    loader = StatefulGPULoader(
        dataset, batch_size=2, num_workers=1, timeout=0.3, max_worker_restarts=1
    )
    with warnings.catch_warnings(), pytest.raises(WorkerLost, match="timed out") as lost:
        _deliver_quietly(iter(loader), [])
    assert "dataset indices 4, 5" in str(lost.value)


class Gated(Indices):
    """One index waits until a file appears, whoever reads it."""

    def __init__(self, length: int, slow: int, gate: Path) -> None:
        super().__init__(length)
        self.slow, self.gate = slow, gate

    def __getitem__(self, index: int) -> int:
        while index == self.slow and not self.gate.exists():
            os.sched_yield()
        return index


@pytest.mark.parametrize("num_workers", [2, 3])
def test_out_of_order_a_slow_worker_holds_back_nobody(tmp_path: Path, num_workers: int) -> None:
    """A11: all other batches come first, counted; and at every place the state is exact."""
    gate = tmp_path / "gate"
    arguments: dict[str, Any] = {"num_workers": num_workers, "in_order": False}
    loader = StatefulGPULoader(Gated(30, 4, gate), batch_size=1, **arguments)
    batches = iter(loader)
    delivered: list[int] = []
    states: list[Any] = [loader.state_dict()]
    behind_the_slow_one = 2 * num_workers  # its worker's own queue
    for _ in range(30 - behind_the_slow_one):
        delivered.append(int(next(batches)))
        states.append(loader.state_dict())
    assert 4 not in delivered
    gate.touch()
    for batch in batches:
        delivered.append(int(batch))
        states.append(loader.state_dict())
    assert sorted(delivered) == list(range(30))
    assert delivered != sorted(delivered)
    for count, state in enumerate(states):
        for other in (arguments, {"num_workers": 0}, {"num_workers": 1}):
            resumed = StatefulGPULoader(Indices(30), batch_size=1, **other)
            resumed.load_state_dict(state)
            assert resumed.state_dict() == state
            rest = [int(batch) for batch in resumed]
            assert sorted(delivered[:count] + rest) == list(range(30)), count
            if other is not arguments:
                break
    wrong = StatefulGPULoader(Indices(30), batch_size=2)
    with pytest.raises(ValueError, match="global_batch_size differs"):
        wrong.load_state_dict(next(state for state in states if state["ahead"]))


@pytest.mark.parametrize("make", [make_stateful, make_samplers, make_lazy])
def test_out_of_order_with_objects_that_have_state(make: Make) -> None:
    """A11: each sample of the epoch exactly once."""
    everything = sorted(int(index) for batch in make(num_workers=0) for index in _indices_of(batch))
    loader = make(num_workers=2, in_order=False)
    delivered: list[int] = []
    for count, batch in enumerate(loader):
        delivered.extend(int(index) for index in _indices_of(batch))
        if count == 4:
            break
    resumed = make(num_workers=2, in_order=False)
    resumed.load_state_dict(loader.state_dict())
    for batch in resumed:
        delivered.extend(int(index) for index in _indices_of(batch))
    assert sorted(delivered) == everything


def _indices_of(batch: Any) -> Any:
    return batch["index"] if isinstance(batch, dict) else batch[0]


class SlowPart(IterableDataset[Any]):
    """Worker 1 waits before its first sample."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def __iter__(self) -> Iterator[int]:
        worker = torch.utils.data.get_worker_info()
        number = 0 if worker is None else worker.id
        while number == 1 and not self.gate.exists():
            os.sched_yield()
        yield from range(10 * number, 10 * number + 10)


def test_out_of_order_over_an_iterable(tmp_path: Path) -> None:
    """A11: the other worker delivers everything meanwhile; the rest comes exactly once."""
    gate = tmp_path / "gate"
    loader = StatefulGPULoader(
        SlowPart(gate), batch_size=1, num_workers=2, in_order=False, prefetch_factor=1
    )
    batches = iter(loader)
    first = [int(next(batches)) for _ in range(10)]
    assert first == list(range(10))
    state = loader.state_dict()
    gate.touch()
    assert [int(batch) for batch in batches] == list(range(10, 20))
    resumed = StatefulGPULoader(SlowPart(gate), batch_size=1, num_workers=2, in_order=False)
    resumed.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [int(batch) for batch in resumed] == list(range(10, 20))


def _left_behind(workers: set[int]) -> tuple[int, int, list[str], set[int]]:
    gc.collect()
    memory = [name for name in os.listdir("/dev/shm") if workers & set(_numbers(name))]
    children = {process.pid or 0 for process in multiprocessing.active_children()}
    return len(os.listdir("/proc/self/fd")), threading.active_count(), memory, children


def _numbers(name: str) -> Iterator[int]:
    """The pid of whoever made it, in the name of a piece of torch's shared memory."""
    return (int(part) for part in name.split("_") if part.isdecimal())


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_many_epochs_with_restarts_leave_nothing_behind() -> None:
    """Memory and processes: 200 epochs; descriptors, threads, shared memory, children, growth."""
    loader = StatefulGPULoader(Noisy(12), batch_size=4, seed=1, shuffle=True, num_workers=1)
    workers: set[int] = set()

    def epochs(count: int) -> None:
        for number in range(count):
            batches = iter(loader)
            next(batches)
            workers.update(worker.pid for worker in batches._workers)
            if number % 5 == 0:
                kill(batches, 0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert len(list(batches)) == 2

    epochs(10)
    before, resident = _left_behind(workers), _resident()
    epochs(190)
    assert _left_behind(workers) == before
    assert loader.worker_restarts == 40
    assert _resident() - resident < 16 << 20

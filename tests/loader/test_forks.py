"""A process forks while loaders are iterated: parent and child continue independently."""

from __future__ import annotations

import gc
import multiprocessing.util
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import FolderSource, LoaderError, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.engine.isolation import isolated
from stateful_gpu_loader.engine.makers.memory import BatchMemory
from stateful_gpu_loader.engine.stats import Tally
from stateful_gpu_loader.state.forks import fork_safe
from stateful_gpu_loader.state.lane_cursor import LaneCursor, LaneCursors
from tests.conformance import copy_of, same
from tests.datasets.shards import NoisyShards
from tests.datasets.storage.processes import in_a_fork, in_a_fork_while_held
from tests.images import write_photo_folder
from tests.makers import make_map
from tests.patience import seconds


def in_child(do: Callable[[], Any]) -> Any:
    """Return the result of a function in a forked child, which ends as a Python program does."""
    reader, writer = os.pipe()

    def work() -> bool:
        signal.alarm(int(seconds(6)) + 1)  # ends a child that hangs
        with os.fdopen(writer, "wb") as file:
            pickle.dump(do(), file)
        gc.collect()
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]
        return True

    status = in_a_fork(work)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        assert status == 0
        return pickle.load(file)


def images(folder: Path, **arguments: Any) -> StatefulGPULoader[Any]:
    write_photo_folder(folder, num_classes=2, per_class=4)
    return StatefulGPULoader(
        FolderSource(folder), batch_size=2, seed=1, transform=[T.CenterCrop(8)], **arguments
    )


def lanes(**arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(NoisyShards([5, 6, 7]), batch_size=2, seed=1, **arguments)


KINDS: dict[str, Callable[[Path], StatefulGPULoader[Any]]] = {
    "inline": lambda folder: make_map(),
    "threads": lambda folder: images(folder, num_workers=2),
    "threads that persist": lambda folder: images(folder, num_workers=2, persistent_workers=True),
    "processes": lambda folder: make_map(num_workers=2),
    "processes that persist": lambda folder: make_map(num_workers=2, persistent_workers=True),
    "lanes inline": lambda folder: lanes(),
    "lanes in processes": lambda folder: lanes(num_workers=2),
}


def passes(loader: StatefulGPULoader[Any]) -> list[list[Any]]:
    """Return the batches of the loader's next two passes."""
    return [[copy_of(batch) for batch in loader] for _ in range(2)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_iterator_delivers_in_the_process_that_began_it(kind: str, tmp_path: Path) -> None:
    """The child's use of it is refused. The child may iterate the loader itself."""
    expected = passes(KINDS[kind](tmp_path))
    loader = KINDS[kind](tmp_path)
    batches = iter(loader)
    delivered = [copy_of(next(batches))]

    def child() -> Any:
        nonlocal batches
        with pytest.raises(LoaderError) as refused:
            next(batches)
        loader.stats(), loader.state_dict()
        del batches
        gc.collect()
        return str(refused.value), os.getpid(), [copy_of(batch) for batch in loader]

    text, pid, found = in_child(child)
    assert f"belongs to process {os.getpid()}" in text
    assert f"process {pid} was forked" in text
    assert "loader.load_state_dict(loader.state_dict())" in text
    assert same(found, expected[1])
    assert same([*delivered, *batches], expected[0])
    assert loader.worker_restarts == 0
    assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("kind", ["threads that persist", "processes that persist"])
def test_a_child_that_drops_the_parents_iterator_takes_no_worker_of_it(
    kind: str, tmp_path: Path
) -> None:
    expected = passes(KINDS[kind](tmp_path))
    loader = KINDS[kind](tmp_path)
    batches = iter(loader)
    delivered = [copy_of(next(batches))]

    def child() -> Any:
        nonlocal batches
        del batches
        gc.collect()
        return [copy_of(batch) for batch in loader]

    assert same(in_child(child), expected[1])
    assert same([*delivered, *batches], expected[0])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_child_continues_from_the_parents_place(num_workers: int) -> None:
    expected = list(make_map())
    loader = make_map(num_workers=num_workers)
    next(iter(loader))

    def child() -> Any:
        loader.load_state_dict(loader.state_dict())
        return [copy_of(batch) for batch in loader]

    assert same(in_child(child), expected[1:])


def test_idle_workers_belong_to_the_parent() -> None:
    """Persistent workers between two passes; the child has none."""
    expected = make_map()
    list(expected)
    loader = make_map(num_workers=2, persistent_workers=True)
    list(loader)
    waiting = loader._engine.workers.idle
    assert waiting is not None
    second = list(expected)
    assert same(in_child(lambda: [copy_of(batch) for batch in loader]), second)
    batches = iter(loader)
    assert same(list(batches), second)
    assert loader._engine.workers.idle is waiting
    assert loader.worker_restarts == 0


class Gated:
    """A dataset whose sample 0 blocks once, until it is released."""

    def __init__(self) -> None:
        self.reached, self.let_go = threading.Event(), threading.Event()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == 0 and not self.reached.is_set():
            self.reached.set()
            self.let_go.wait()
        return index


def test_a_child_iterates_while_a_thread_of_the_parent_does() -> None:
    """At the fork, the thread holds the lock of the global generators."""
    dataset, delivered = Gated(), []

    def iterate() -> None:
        delivered.extend(batch.tolist() for batch in StatefulGPULoader(dataset, batch_size=2))

    thread = threading.Thread(target=iterate)
    thread.start()
    dataset.reached.wait()
    try:
        other = StatefulGPULoader(range(4), batch_size=2)
        assert in_child(lambda: [batch.tolist() for batch in other]) == [[0, 1], [2, 3]]
    finally:
        dataset.let_go.set()
        thread.join()
    assert delivered == [[0, 1], [2, 3]]


def uses_of_locks() -> dict[str, tuple[Any, Callable[[], Any]]]:
    """Return locks that live from one pass to the next, each with a function that takes it."""
    tally, memory = Tally(), BatchMemory(keep=1)
    batch = memory.empty((4,), torch.float32)
    cursors = LaneCursors(0, {0: LaneCursor()})

    def drop() -> None:
        nonlocal batch
        del batch

    return {
        "statistics": (tally._lock, tally.total),
        "memory that a batch returns to": (memory._lock, drop),
        "cursors of lanes": (cursors._latest.lock, cursors.texts),
    }


@pytest.mark.parametrize("name", uses_of_locks())
def test_no_lock_is_held_in_a_child(name: str) -> None:
    lock, use = uses_of_locks()[name]

    def work() -> bool:
        signal.alarm(int(seconds(6)) + 1)
        use()
        return True

    assert in_a_fork_while_held(lock, work) == 0


def test_a_forking_thread_keeps_its_lock() -> None:
    """A fork inside code that holds the lock, such as a dataset's, releases it in both."""
    lock = fork_safe(threading.RLock())
    with lock:
        pid = os.fork()
    if pid == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert isolated(in_child, os.getpid, draws=False) != os.getpid()


SCRIPT = """
import os, sys
from stateful_gpu_loader import StatefulGPULoader
loader = StatefulGPULoader(range(40), batch_size=4, num_workers=2, persistent_workers=True)
batches = iter(loader)
next(batches)
pid = os.fork()
if pid == 0:
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
print(len(list(batches)), loader.worker_restarts)
"""


@pytest.mark.processes
def test_an_exiting_child_ends_no_worker_of_its_parent() -> None:
    """When a process forked by os.fork exits, multiprocessing would send them SIGTERM."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=seconds(30)
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "9 0\n", "")

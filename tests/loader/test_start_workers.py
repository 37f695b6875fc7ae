"""start_workers: before the GPU is used, and without effect on the stream."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader import (
    FolderSource,
    LoaderError,
    StatefulGPULoader,
    WorkerLost,
    start_workers,
)
from tests.conformance import assert_same_rest, copy_of, same, uninterrupted
from tests.fake_gpu import FakeGpu, fake_gpu
from tests.images import write_photo_folder
from tests.map_datasets import Noisy
from tests.patience import seconds
from tests.user_objects import StatefulDataset

__all__ = ["fake_gpu"]
Loader = StatefulGPULoader[Any]


def make(dataset: Any = None, **changes: Any) -> Loader:
    arguments: dict[str, Any] = {"batch_size": 4, "seed": 1, "shuffle": True, "num_workers": 2}
    return StatefulGPULoader(dataset or Noisy(24), **{**arguments, **changes})


def stateful(**changes: Any) -> Loader:
    return make(StatefulDataset(24), **{"shuffle": False, **changes})


def pids(loader: Loader) -> list[int]:
    assert loader._engine.workers.idle is not None
    return [worker.pid for worker in loader._engine.workers.idle.workers]  # type: ignore[attr-defined]


@pytest.mark.processes
@pytest.mark.parametrize("build", [make, stateful])
@pytest.mark.parametrize("persistent", [False, True])
def test_the_first_pass_uses_the_started_workers(build: Any, persistent: bool) -> None:
    expected, states = uninterrupted(build(persistent_workers=persistent), 2)
    loader = build(persistent_workers=persistent)
    start_workers(loader)
    waiting = pids(loader)
    assert all(os.getpid() != pid for pid in waiting)
    start_workers(loader)
    assert pids(loader) == waiting, "they are started once"
    batches = iter(loader)
    found = [copy_of(next(batches))]
    assert [worker.pid for worker in batches._workers] == waiting
    found += [copy_of(batch) for batch in batches]
    assert same(found, expected[0])
    assert loader.state_dict() == states[1, 0]
    assert same([copy_of(batch) for batch in loader], expected[1])


def test_idle_workers_end_with_their_loader() -> None:
    loader = make()
    start_workers(loader)
    waiting = loader._engine.workers.idle.workers  # type: ignore[union-attr]
    del loader
    gc.collect()
    for worker in waiting:
        worker.join(timeout=seconds(3))
        assert worker.exitcode is not None


def test_starting_workers_draws_nothing_and_keeps_the_state() -> None:
    loader = make(seed=None)
    torch.manual_seed(5)
    before = loader.state_dict()
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    start_workers(loader)
    assert loader.state_dict() == before
    assert same(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]
    assert same(np.random.get_state()[1], generators[2])


@pytest.mark.processes
@pytest.mark.parametrize("build", [make, stateful])
def test_a_state_loaded_after_starting_workers_is_used(build: Any) -> None:
    expected, states = uninterrupted(build(), 1)
    loader = build()
    start_workers(loader)
    loader.load_state_dict(states[0, 3])
    assert_same_rest(loader, expected, (0, 3), 1)


def test_idle_workers_that_died_are_replaced() -> None:
    expected = [copy_of(batch) for batch in make()]
    loader = make()
    start_workers(loader)
    waiting: Any = loader._engine.workers.idle
    dispatch = waiting._dispatch
    while not dispatch._cluster._has_been_ready:
        dispatch.await_event(60)
        event = dispatch.receive()
        if event is not None:
            dispatch.note(event)
    os.kill(pids(loader)[0], signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match="Another worker is started in its place"):
        assert same([copy_of(batch) for batch in loader], expected)


def test_workers_of_several_loaders_start_before_the_device_is_touched(
    fake_gpu: FakeGpu, tmp_path: Path
) -> None:
    loaders = [make(device="cuda"), make(), make(num_workers=0, device="cuda")]
    start_workers(*loaders)
    assert len(pids(loaders[0])) == len(pids(loaders[1])) == 2
    assert not any(place.is_open for place in fake_gpu.places)
    expected = [copy_of(batch) for batch in make()]
    for loader in loaders:
        assert same([copy_of(batch) for batch in loader], expected)


def test_forking_after_cuda_is_initialized_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only start_workers refuses; a loader itself forks as torch does."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for context in ("fork", multiprocessing.get_context("fork")):
        loader = make(multiprocessing_context=context)
        with pytest.raises(LoaderError, match=r"CUDA has already been initialised .*='forkserver'"):
            start_workers(make(num_workers=0), loader)
        assert len(list(loader)) == 6
    start_workers(make(num_workers=0))
    write_photo_folder(tmp_path, num_classes=1, per_class=4)
    start_workers(StatefulGPULoader(FolderSource(tmp_path), num_workers=2))  # threads
    apart = make(multiprocessing_context="forkserver")
    start_workers(apart)
    assert len(list(apart)) == 6


class DiesAtOnce(Noisy):
    def __setstate__(self, state: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def test_workers_that_die_while_they_start_are_reported() -> None:
    """At the start or, if the start does not wait for them, by the pass that needs them."""
    loader = make(DiesAtOnce(8), multiprocessing_context="forkserver", max_worker_restarts=0)
    with pytest.raises(WorkerLost, match="Remedy"):
        _start_and_use(loader)


def _start_and_use(loader: Loader) -> None:
    start_workers(loader)
    next(iter(loader))

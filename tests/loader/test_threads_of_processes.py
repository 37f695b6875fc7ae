"""Worker processes of several threads: the stream is that of one thread, whichever worker dies."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import threading
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset

from stateful_gpu_loader import FolderSource, ParquetSource, StatefulGPULoader, WorkerLost
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.engine.workers.segments import MappedSegments, SegmentId
from stateful_gpu_loader.records import EncodedSample
from tests.conformance import copy_of, same
from tests.datasets.shards import PhotoShards
from tests.images import write_photo_folder
from tests.lost_workers import deliver_quietly, uninterrupted_batches

pytestmark = pytest.mark.processes
TWO_OF_TWO: dict[str, Any] = {"num_workers": 4, "threads_per_process": 2}
RECIPES = [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4, 0.4, 0.1)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    write_photo_folder(root, num_classes=3, per_class=16)
    return root


def make(dataset: Any, **arguments: Any) -> StatefulGPULoader[Any]:
    given = {"batch_size": 3, "shuffle": True, "seed": 4, "transform": RECIPES, **arguments}
    return StatefulGPULoader(dataset, **given)


@pytest.mark.parametrize(
    ("arguments", "num_processes"),
    [
        ({"num_workers": 4, "threads_per_process": 2}, 2),
        ({"num_workers": 6, "threads_per_process": 4}, 2),
        ({"num_workers": 3, "threads_per_process": 2}, 3),
        ({"num_workers": 2, "worker_type": "process"}, 2),
        ({"num_workers": 4}, 0),
        ({"num_workers": 8}, 2),
        ({"num_workers": 9}, 3),
        ({"num_workers": 5}, 5),
        ({"num_workers": 8, "worker_type": "thread"}, 0),
        ({"num_workers": 8, "threads_per_process": 1}, 0),
    ],
)
def test_num_workers_counts_the_threads(
    photos: Path, arguments: dict[str, Any], num_processes: int
) -> None:
    """Each process has equally many; without processes they are threads of this process."""
    loader = make(FolderSource(photos), **arguments)
    batches: Any = iter(loader)
    assert same(copy_of(next(batches)), next(iter(make(FolderSource(photos)))))
    assert len(batches._workers) == num_processes
    assert same(loader.peek(), next(batches))


class Own(FolderSource):
    """A user's source, which may hold objects that a forked child must not use."""


class Suited(FolderSource):
    suits_processes = True


def test_many_workers_of_a_users_source_are_processes_only_if_it_says_so(photos: Path) -> None:
    """The same holds for parts of it."""
    for kind, num_processes in ((Own, 0), (Suited, 2)):
        for source in (kind(photos), Subset(kind(photos), range(24))):
            batches: Any = iter(make(source, num_workers=8))
            next(batches)
            assert len(batches._workers) == num_processes
    assert not ParquetSource.suits_processes


def test_many_workers_stay_threads_where_processes_are_not_forked(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: "spawn")
    batches: Any = iter(make(FolderSource(photos), num_workers=8))
    next(batches)
    assert not batches._workers


class Meeting(FolderSource):
    """A read returns only when another thread of its process reads too."""

    both = threading.Barrier(2)

    def read(self, index: int) -> EncodedSample:
        self.both.wait(60)
        return super().read(index)


def test_the_threads_of_a_process_work_concurrently(photos: Path) -> None:
    loader = make(
        Meeting(photos), num_workers=2, threads_per_process=2, multiprocessing_context="fork"
    )
    assert same([copy_of(b) for b in loader], [copy_of(b) for b in make(FolderSource(photos))])


class KillsItself(FolderSource):
    """One read always kills its process."""

    def read(self, index: int) -> EncodedSample:
        if index == 7 and os.getpid() != _MAIN:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(index)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_batch_that_kills_its_process_is_distinguished_from_concurrent_batches(
    photos: Path, in_order: bool
) -> None:
    expected = uninterrupted_batches(partial(make, FolderSource(photos), shuffle=False), 1)[0]
    loader = make(KillsItself(photos), shuffle=False, in_order=in_order, **TWO_OF_TWO)
    delivered: list[Any] = []
    with warnings.catch_warnings(), pytest.raises(WorkerLost, match="indices 6, 7, 8") as lost:
        deliver_quietly(iter(loader), delivered)
    assert "4 were lost" in str(lost.value)
    if in_order:
        assert same(delivered, expected[:2])


class EndsItsThread(FolderSource):
    """One read raises an exception that no answer can carry."""

    def read(self, index: int) -> EncodedSample:
        if index == 7 and threading.current_thread() is not threading.main_thread():
            raise SystemExit(3)
        return super().read(index)


def test_a_thread_that_ends_is_a_lost_process(photos: Path) -> None:
    loader = make(EndsItsThread(photos), max_worker_restarts=1, **TWO_OF_TWO)
    with warnings.catch_warnings(), pytest.raises(WorkerLost, match="exit code 1"):
        deliver_quietly(iter(loader), [])


def test_the_next_pass_uses_the_threads_of_an_abandoned_pass(photos: Path) -> None:
    """Abandoned turns of lanes occupy no thread."""
    for dataset in (FolderSource(photos), PhotoShards()):
        expected = uninterrupted_batches(partial(make, dataset), 1)
        loader = make(dataset, persistent_workers=True, **TWO_OF_TWO)
        for _ in range(4):
            next(iter(loader))
            loader.load_state_dict(make(dataset).state_dict())
        assert same([[copy_of(batch) for batch in loader]], expected)


def test_a_segment_that_was_never_sent_can_be_given_up() -> None:
    """Its batch failed, and later batches are larger."""
    segments = MappedSegments()
    segments.unmap((SegmentId(0, 5),))
    assert segments.to_return(0) == ()


def test_a_worker_thread_takes_one_thread_of_torch(photos: Path) -> None:
    """Like torch's worker processes."""
    loader = make(CountsThreads(photos), transform=None, batch_size=1, **TWO_OF_TWO)
    assert {int(batch[1]) for batch in loader} == {1}


class CountsThreads(FolderSource):
    """Its targets are the number of torch threads where they are read."""

    def read(self, index: int) -> EncodedSample:
        assert os.getpid() != _MAIN
        sample = super().read(index)
        return dataclasses.replace(sample, target=torch.get_num_threads())


_MAIN = os.getpid()

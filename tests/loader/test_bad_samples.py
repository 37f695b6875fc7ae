"""Bad samples at the loader: the same stream and record, however it is made (G4, law 6)."""

from __future__ import annotations

import io
import itertools
import json
import multiprocessing
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import BadSample, FolderSource, StateMismatch
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.state.bad_samples import BadSamples
from tests.bad_sample_loaders import (
    BAD,
    ERRORS,
    Loader,
    N,
    assert_same_run,
    assert_states_follow,
    make,
    modes,
)
from tests.conformance import assert_exact_resume, copy_of, same, through_json, uninterrupted
from tests.engine.makers.damaged import Damaged, DamagedBatches, FailsByDraw
from tests.engine.makers.damaged_images import DAMAGE, Redirected, write_damaged_photos
from tests.map_datasets import Indices
from tests.user_objects import StatefulDataset


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_damaged_photos(tmp_path_factory.mktemp("photos"))


def make_photos(root: Path, **arguments: Any) -> Loader:
    recipes = [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]
    return make(FolderSource(root), **{"transform": recipes, **arguments})


def keys_of(record: BadSamples) -> set[tuple[Any, int, int]]:
    return {(bad.index, bad.position, bad.epoch) for bad in record.samples}


# The same stream and record for all workers.


@pytest.mark.processes
@modes
@pytest.mark.parametrize("kind", [Damaged, DamagedBatches])
def test_any_number_of_processes_makes_the_same(mode: str, kind: type[Damaged]) -> None:
    executions: list[dict[str, Any]] = [{"num_workers": 1}, {"num_workers": 2}]
    if kind is Damaged and mode == "drop":
        executions.append({"num_workers": 1, "multiprocessing_context": "forkserver"})
    else:
        executions.append({"num_workers": 2, "persistent_workers": True, "prefetch_factor": 5})
    assert_same_run(partial(make_of, kind, on_bad_sample=mode), executions)


def make_of(kind: type[Damaged], **arguments: Any) -> Loader:
    return make(kind(N, ERRORS), **arguments)


@pytest.mark.processes
@modes
def test_threads_and_processes_make_the_same_of_damaged_files(mode: str, photos: Path) -> None:
    executions: list[dict[str, Any]] = [
        {"num_workers": 1, "worker_type": "thread"},
        {"num_workers": 2, "worker_type": "thread"},
        {"num_workers": 2, "worker_type": "process"},
    ]
    build = partial(make_photos, photos, on_bad_sample=mode)
    assert_same_run(build, executions)
    loader = build()
    list(loader)
    assert {bad.index for bad in loader.bad_samples.samples} == set(DAMAGE)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_raise_raises_and_the_loader_goes_on(photos: Path, num_workers: int) -> None:
    """G3: a Source's is a BadSample, a plain dataset's its own; neither is recorded."""
    for build, kind, wanted in [
        (partial(make_photos, photos), BadSample, set(DAMAGE)),
        (make, ValueError, BAD),
    ]:
        loader = build(batch_size=1, on_bad_sample="raise", num_workers=num_workers)
        batches, raised, delivered = iter(loader), [], 0
        while True:
            try:
                next(batches)
            except StopIteration:
                break
            except kind as error:
                raised.append(error)
            else:
                delivered += 1
        assert len(raised) == len(wanted)
        if kind is BadSample:
            assert {error.index for error in raised} == wanted
        assert delivered == len(loader) - len(wanted)
        assert loader.bad_samples.total == 0


@modes
@pytest.mark.parametrize("kind", [Damaged, FailsByDraw])
def test_two_ranks_together_meet_what_one_does(mode: str, kind: type[Any]) -> None:
    """B3: at the same global batch size; drop_last leaves no padding to compare."""
    dataset = kind(36, ERRORS) if kind is Damaged else kind(36)
    build = partial(make, dataset, on_bad_sample=mode, drop_last=True)
    alone = build(batch_size=6)
    wanted = [batch["index"].tolist() for batch in alone]
    ranks = [build(batch_size=3, num_replicas=2, rank=rank) for rank in range(2)]
    parts = [[batch["index"].tolist() for batch in loader] for loader in ranks]
    assert [sorted(a + b) for a, b in zip(*parts, strict=True)] == [*map(sorted, wanted)]
    records = [loader.bad_samples for loader in ranks]
    assert alone.bad_samples.total == sum(record.total for record in records)
    # One that is tried as a replacement may be met on both.
    assert {index for index, _, _ in keys_of(alone.bad_samples)} == {
        index for record in records for index, _, _ in keys_of(record)
    }


# Resuming.


@modes
@pytest.mark.parametrize("kind", ["damaged", "at once", "by draw"])
def test_every_state_resumes_exactly(mode: str, kind: str) -> None:
    datasets = {
        "damaged": Damaged(N, ERRORS),
        "at once": DamagedBatches(N, ERRORS),
        "by draw": FailsByDraw(N),
    }
    build = partial(make, datasets[kind], on_bad_sample=mode)
    assert_exact_resume(build)
    assert_states_follow(build, [{}])


@pytest.mark.fuzz
@modes
def test_every_state_of_damaged_files_resumes_exactly(mode: str, photos: Path) -> None:
    build = partial(make_photos, photos, on_bad_sample=mode)
    executions: list[dict[str, Any]] = [{}, {"num_workers": 2}]
    assert_exact_resume(build, other=tuple(executions), every=2)
    assert_states_follow(build, executions)


@modes
def test_a_resume_on_other_workers_keeps_stream_and_record(mode: str) -> None:
    expected, states = uninterrupted(make(on_bad_sample=mode), 1)
    loader = make(on_bad_sample=mode, num_workers=2)
    loader.load_state_dict(states[0, 2])
    assert same([copy_of(batch) for batch in loader], expected[0][2:])
    assert loader.state_dict() == states[1, 0]


@pytest.mark.processes
@modes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_with_state(mode: str, num_workers: int) -> None:
    """Its counter counts every reading, also of a sample that is known to be bad."""

    def build(**other: Any) -> Loader:
        return make(DamagedState(N), on_bad_sample=mode, num_workers=num_workers, **other)

    if num_workers:
        assert_exact_resume(build, epochs=1, every=10)
    else:
        assert_exact_resume(build)
        assert_states_follow(build, [{}])


class DamagedState(StatefulDataset):
    def __getitem__(self, index: int) -> tuple[int, int, float]:
        sample = super().__getitem__(index)
        if index in BAD:
            raise ValueError(f"no label {index}")
        return sample


@modes
def test_a_state_survives_json_and_torch(mode: str) -> None:
    """A9."""
    loader = make(on_bad_sample=mode)
    list(itertools.islice(loader, 3))
    state = loader.state_dict()
    assert state["bad_samples"] is not None
    assert through_json(state) == state
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    restored = make(on_bad_sample=mode)
    restored.load_state_dict(torch.load(file, weights_only=True))
    assert restored.bad_samples == loader.bad_samples
    assert restored.state_dict() == state


ROW = [3, 7, 0, "ValueError: no label", True]
GARBAGE: list[Any] = [
    7,
    ["a list"],
    b"{}",
    "",
    "no JSON",
    "[" * 100_000,
    "{}",
    "[]",
    json.dumps({"total": 0, "samples": []}),
    json.dumps({"total": 1, "samples": [ROW, [4, *ROW[1:]]]}),
    json.dumps({"total": True, "samples": [ROW]}),
    json.dumps({"total": 2, "samples": [ROW, ROW]}),
    json.dumps({"total": 1, "samples": [ROW[:-1]]}),
    json.dumps({"total": 1, "samples": [[-1.5, *ROW[1:]]]}),
    json.dumps({"total": 1, "samples": [[3, -1, *ROW[2:]]]}),
    json.dumps({"total": 1, "samples": [[3, 7, 2**40, *ROW[3:]]]}),
    json.dumps({"total": 1, "samples": [[3, 7, 0, "x" * 300, True]]}),
    json.dumps({"total": 500, "samples": [[i, *ROW[1:]] for i in range(101)]}),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda garbage: repr(garbage)[:30])
def test_garbage_is_refused_and_nothing_changes(garbage: Any) -> None:
    """Law 4."""
    loader = make()
    batches = iter(loader)
    first = [next(batches), next(batches)]
    before, record = loader.state_dict(), loader.bad_samples.samples
    with pytest.raises(StateMismatch) as refused:
        loader.load_state_dict({**make().state_dict(), "bad_samples": garbage})
    assert refused.value.field == "bad_samples"
    assert loader.state_dict() == before
    assert loader.bad_samples.samples == record
    assert same([*first, *batches], list(make()))


# What is read, and what is recorded.


@modes
def test_a_known_bad_file_is_not_read_again_after_a_resume(mode: str, photos: Path) -> None:
    first = make_photos(photos, on_bad_sample=mode)
    list(first)
    source = Redirected(FolderSource(photos))
    resumed = make(source, transform=[T.Resize((8, 8))], on_bad_sample=mode)
    state = {**first.state_dict(), "fingerprint": resumed.state_dict()["fingerprint"]}
    resumed.load_state_dict(state)
    list(resumed)
    assert resumed.bad_samples.total > first.bad_samples.total, "they count all the same"
    assert set(source.reads) == set(range(len(source))) - set(DAMAGE)


def test_what_fails_by_draw_is_read_again() -> None:
    """Law 1: another epoch's draws may spare it."""
    loader = make(FailsByDraw(N))
    kept = [sorted(torch.cat([batch["index"] for batch in loader]).tolist()) for _ in range(2)]
    assert kept[0] != kept[1]
    assert loader.bad_samples.known == {}


class Telling(Indices):
    """Its last sample is bad, and it tells when that was read."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.was_read = multiprocessing.get_context("fork").Event()

    def __getitem__(self, index: int) -> int:
        if index == self.length - 1:
            self.was_read.set()
            raise ValueError("the last one")
        return index


@modes
def test_what_was_prefetched_and_not_delivered_is_not_recorded(mode: str) -> None:
    """Law 2."""
    dataset = Telling(12)
    loader = make(dataset, shuffle=False, on_bad_sample=mode, num_workers=1, prefetch_factor=8)
    batches = iter(loader)
    next(batches)
    assert dataset.was_read.wait(60)
    assert loader.bad_samples.total == 0
    assert loader.state_dict()["bad_samples"] is None
    next(batches)
    assert loader.bad_samples.total == 0
    next(batches)
    assert [bad.index for bad in loader.bad_samples.samples] == [11]


@pytest.mark.processes
@modes
def test_a_killed_worker_counts_nothing_twice(mode: str) -> None:
    """Law 5."""
    build = partial(make, batch_size=1, on_bad_sample=mode)  # more batches than are in flight
    expected, states = uninterrupted(build(), 1)
    loader = build(num_workers=2)
    batches = iter(loader)
    found = [copy_of(next(batches)) for _ in range(2)]
    worker = batches._workers[0]
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    with pytest.warns(RuntimeWarning, match="workers are replaced"):
        found += [copy_of(batch) for batch in batches]
    assert same(found, expected[0])
    assert loader.worker_restarts == 1
    assert loader.state_dict() == states[1, 0]

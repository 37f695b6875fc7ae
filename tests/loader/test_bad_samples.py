"""Bad samples of every kind of dataset, compared with an uninterrupted run."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from stateful_gpu_loader import BadSample
from stateful_gpu_loader.state.bad_samples import BadSamples
from tests.conformance import assert_exact_resume, copy_of, same, through_json, uninterrupted
from tests.damaged import (
    ALWAYS,
    BAD,
    ERRORS,
    KINDS,
    SYSTEM_ERROR,
    Damaged,
    FailsByDraw,
    Kind,
    Loader,
    N,
    Photos,
    Wrong,
    assert_found_is_of_the_order,
    assert_same_run,
    delivered_with_errors,
    make,
    make_photos,
    modes,
    policy_for,
    replacement_of,
    requests_of,
    write_photos,
)
from tests.fake_gpu import FakeGpu, fake_gpu
from tests.map_datasets import Indices
from tests.user_objects import StatefulDataset, StatefulSampler

__all__ = ["fake_gpu"]

SEED = 3
"""Seed of the loaders."""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Photos:
    return write_photos(tmp_path_factory.mktemp("photos"))


MAPS = [name for name, kind in KINDS.items() if kind.is_map]
DAMAGED = Wrong(is_damaged=True)
CONTENT = {"bytes": DAMAGED, "ValueError": Wrong(ERRORS)}

maps = pytest.mark.parametrize("name", MAPS)
contents = pytest.mark.parametrize("wrong", CONTENT.values(), ids=CONTENT)
kinds_and_contents = pytest.mark.parametrize(
    ("name", "wrong"),
    [
        pytest.param(name, wrong, id=f"{name}, {what}")
        for name in KINDS
        for what, wrong in CONTENT.items()
        if wrong.is_damaged or name != "shards"  # a shard that raises has no rest
    ],
)
pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.filterwarnings("ignore:.*samples of the iterable dataset are read again"),
]


@functools.cache
def sound_batches(kind: Kind, photos: Photos, batch_size: int = 4) -> list[Any]:
    """Return the batches of an uninterrupted run's first epoch."""
    loader = kind.make(photos, Wrong(), on_bad_sample="raise", batch_size=batch_size)
    return [copy_of(batch) for batch in loader]


def rows(batch: Any, kept: list[int]) -> Any:
    if isinstance(batch, dict):
        return {key: rows(part, kept) for key, part in batch.items()}
    if isinstance(batch, list):
        return [rows(part, kept) for part in batch]
    return batch[kept]


def recorded_by(loader: Loader) -> set[tuple[Any, int, int]]:
    return {(bad.index, bad.position, bad.epoch) for bad in loader.bad_samples.samples}


# Errors that the content decides.


@kinds_and_contents
@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.processes)])
def test_raise_raises_each_bad_sample_and_the_loader_continues(
    name: str, wrong: Wrong, num_workers: int, photos: Photos
) -> None:
    """A Source's error is a BadSample; other errors keep their type. Nothing else changes."""
    kind = KINDS[name]
    given = {"batch_size": 1, "num_workers": num_workers}
    if not kind.is_map and num_workers:
        given["num_workers"] = 1
    loader = kind.make(photos, wrong, on_bad_sample="raise", **given)
    found, errors = delivered_with_errors(loader)
    assert len(errors) == len(BAD)
    if kind.is_source:
        assert all(isinstance(error, BadSample) for error in errors)
    elif not wrong.is_damaged:
        assert {type(error) for error in errors} == {ValueError}
    if kind.is_source and kind.is_map:
        named: list[Any] = errors  # with index, position and epoch
        assert {error.index for error in named} == BAD
        assert_found_is_of_the_order(tuple(named), N, SEED)
        assert all(error.reason and error.name for error in named)
    wanted = sound_batches(kind, photos, batch_size=1)
    assert same(found, [batch for batch in wanted if kind.indices(batch)[0] not in BAD])
    assert loader.bad_samples.total == 0


@maps
@contents
def test_a_replacement_is_another_positions_sample_with_its_own_key(
    name: str, wrong: Wrong, photos: Photos
) -> None:
    """The batch is as if the bad index held the other sample's content."""
    kind = KINDS[name]
    loader = kind.make(photos, wrong, on_bad_sample="replace")
    found = [copy_of(batch) for batch in loader]
    policy = policy_for(range(N), "replace")
    copies = {}
    for request in requests_of(N, 4, epoch=0, seed=SEED):
        for number, index in enumerate(request.index_list()):
            if index in BAD:
                copies[index] = replacement_of(policy, request, number, BAD)[1]
    fixed = kind.make(photos, Wrong(copies=copies), on_bad_sample="raise")
    assert same(found, [copy_of(batch) for batch in fixed])
    assert [len(kind.indices(batch)) for batch in found] == [4, 4, 4, 4, 4, 2]
    record = loader.bad_samples
    assert {bad.index for bad in record.samples} == BAD
    assert record.total >= len(BAD)
    assert all(bad.always for bad in record.samples)
    assert_found_is_of_the_order(tuple(record.samples), N, SEED)


@kinds_and_contents
def test_dropped_samples_leave_the_others_as_they_are(
    name: str, wrong: Wrong, photos: Photos
) -> None:
    """The batch is smaller; positions and length stay. An iterable's next sample moves up."""
    kind = KINDS[name]
    loader = kind.make(photos, wrong, on_bad_sample="drop")
    sound = sound_batches(kind, photos)
    if name == "iterable":
        found = [kind.indices(batch) for batch in loader]
        assert found == [[0, 2, 3, 5], [8, 9, 10, 11], [12, 14, 15, 16], [17, 18, 19, 21]]
        assert recorded_by(loader) == {(f"sample {index}", index, 0) for index in BAD}
        assert loader.bad_samples.known == {}
        return
    for number, (batch, whole) in enumerate(zip(loader, sound, strict=True), 1):
        kept = [i for i, index in enumerate(kind.indices(whole)) if index not in BAD]
        wanted = rows(whole, kept)
        if kind.shares_draws:
            batch = {key: batch[key] for key in ("index", "shared")}
            wanted = {key: wanted[key] for key in ("index", "shared")}
        assert same(copy_of(batch), wanted), number
        if kind.is_map:
            assert loader.state_dict()["position"] == min(4 * number, N)
    assert loader.bad_samples.total == len(BAD)
    assert len(loader.bad_samples) == len(BAD)
    if kind.is_map:
        assert {index for index, _, _ in recorded_by(loader)} == BAD
        assert_found_is_of_the_order(tuple(loader.bad_samples.samples), N, SEED)
        assert len(loader) == len(sound)
        reasons = {bad.index: bad.reason for bad in loader.bad_samples.samples}
        assert all(reason.startswith("BadSample: ") for reason in reasons.values()) == (
            kind.is_source
        )
        if kind.is_source and wrong.is_damaged:
            assert "photo_001.jpg: " in reasons[1]
            assert "text, not an image" in reasons[4]
            assert "cannot be decoded" in reasons[6]
            assert "empty: 0 bytes" in reasons[7]


@maps
@modes
def test_a_known_bad_sample_is_not_read_again(name: str, mode: str, photos: Photos) -> None:
    """Neither in later epochs nor after a resume; it is recorded all the same."""
    kind = KINDS[name]
    loader = kind.make(photos, DAMAGED, on_bad_sample=mode)
    reads = loader.dataset.reads
    first = [copy_of(batch) for batch in loader]
    alone = 1 if name in ("native batches", "device") else 0  # first met in a whole batch
    assert {reads[index] for index in BAD} <= {1, 1 + alone}
    reads.clear()
    state, total = loader.state_dict(), loader.bad_samples.total
    second = [copy_of(batch) for batch in loader]
    assert loader.bad_samples.total >= total + len(BAD)
    resumed = kind.make(photos, DAMAGED, on_bad_sample=mode)
    resumed.load_state_dict(through_json(state))
    assert same([copy_of(batch) for batch in resumed], second)
    assert resumed.bad_samples == loader.bad_samples
    assert set(reads) == set(resumed.dataset.reads) == set(range(N)) - BAD
    assert len(first) == len(second)


@maps
@modes
def test_if_all_samples_are_bad_the_error_counts_the_tries(
    name: str, mode: str, photos: Photos
) -> None:
    kind = KINDS[name]
    wrong = Wrong(dict.fromkeys(range(N), partial(ValueError, "no label")))
    loader = kind.make(photos, wrong, on_bad_sample=mode)
    with pytest.raises(BadSample, match="and 8 other samples of the order, tried in its place"):
        next(iter(loader))
    assert loader.bad_samples.total == 0


# Errors that the system decides.


@pytest.mark.parametrize(
    ("name", "mode", "error"),
    [
        *itertools.product(MAPS, ("replace", "drop"), [SYSTEM_ERROR]),
        ("calls", "drop", SYSTEM_ERROR),
        ("plain", "replace", SystemError),  # of numpy.load beside other threads
    ],
)
def test_a_temporary_system_error_changes_no_batch(
    name: str, mode: str, error: Callable[[], Exception], photos: Photos
) -> None:
    """The read is retried with the same draws. Only "raise" raises it; nothing is recorded."""
    kind = KINDS[name]
    wrong = Wrong({6: error}, times=2)
    loader = kind.make(photos, wrong, on_bad_sample=mode)
    assert same([copy_of(batch) for batch in loader], sound_batches(kind, photos))
    assert loader.bad_samples.total == 0
    raising = kind.make(photos, wrong, on_bad_sample="raise")
    _, errors = delivered_with_errors(raising)
    assert [type(raised) for raised in errors] == [type(error())]
    if name == "calls":
        assert loader.dataset.function.reads[6] == 3
    else:
        assert loader.dataset.reads[6] == 3
        assert raising.dataset.reads[6] == 1


@pytest.mark.parametrize(
    ("name", "mode", "error"),
    [
        *itertools.product(MAPS, ("raise", "replace", "drop"), [SYSTEM_ERROR]),
        *itertools.product(("iterable", "calls"), ("raise", "drop"), [SYSTEM_ERROR]),
        *itertools.product([*MAPS, "iterable", "calls"], ["drop"], [partial(TypeError, "a bug")]),
    ],
)
def test_errors_that_data_does_not_cause_are_raised(
    name: str, mode: str, error: Callable[[], Exception], photos: Photos
) -> None:
    """The error is unchanged, the other batches are unchanged, and nothing is recorded."""
    kind = KINDS[name]
    loader = kind.make(photos, Wrong({6: error}, ALWAYS), on_bad_sample=mode)
    found, (raised,) = delivered_with_errors(loader)
    assert type(raised) is type(error())
    if kind.is_map:
        is_tried_again = mode != "raise" and isinstance(raised, OSError)
        times = 4 if name == "device" else 3  # once by a worker, then by the device stage
        assert loader.dataset.reads[6] == (times if is_tried_again else 1)
    if name == "iterable":
        assert [kind.indices(batch)[0] for batch in found] == [0, 7, 11, 15, 19]
    else:
        wanted = sound_batches(kind, photos)
        assert same(found, [batch for batch in wanted if 6 not in kind.indices(batch)])
    assert loader.bad_samples.total == 0


# Resume, and other workers.

SLOW = {"recipes": "drop", "device": "replace", "shards": "drop"}


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("plain", "replace"),
        ("plain", "drop"),
        ("native batches", "replace"),
        ("calls", "drop"),
        *(pytest.param(name, mode, marks=pytest.mark.fuzz) for name, mode in SLOW.items()),
    ],
)
def test_every_state_resumes_exactly(name: str, mode: str, photos: Photos) -> None:
    """The record follows, too."""
    build = partial(KINDS[name].make, photos, DAMAGED, on_bad_sample=mode)
    other = ({"num_workers": 2},) if name in SLOW else ()
    assert_exact_resume(build, other=other, states_follow=True)


@modes
def test_samples_that_fail_by_their_draws_resume_exactly(mode: str) -> None:
    """It is read again in each epoch, where other draws may succeed."""
    build = partial(make, FailsByDraw(N), on_bad_sample=mode)
    loader = build()
    kept = [sorted(torch.cat([batch["index"] for batch in loader]).tolist()) for _ in range(2)]
    assert kept[0] != kept[1]
    assert loader.bad_samples.known == {}
    assert_exact_resume(build, states_follow=True)


PROCESSES: list[dict[str, Any]] = [
    {"num_workers": 1, "multiprocessing_context": "forkserver"},
    {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 5},
]
THREADS: list[dict[str, Any]] = [
    {"num_workers": 1, "worker_type": "thread", "prefetch_factor": 4},
    {"num_workers": 2, "worker_type": "thread"},
    {"num_workers": 2, "worker_type": "process", "prefetch_factor": 1},
    {"num_workers": 4, "threads_per_process": 2},
]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "mode", "executions"),
    [
        ("native batches", "drop", PROCESSES[1:]),
        ("plain", "replace", PROCESSES),
        ("recipes", "replace", THREADS),
        ("callable on images", "replace", PROCESSES[1:]),
        ("device", "drop", THREADS),
        ("calls", "drop", PROCESSES[1:]),
    ],
)
def test_any_workers_make_the_same_batches_and_record(
    name: str, mode: str, executions: list[dict[str, Any]], photos: Photos
) -> None:
    build = partial(KINDS[name].make, photos, DAMAGED, on_bad_sample=mode)
    assert_same_run(build, executions)


@modes
@pytest.mark.parametrize("kind", [Damaged, FailsByDraw])
def test_two_ranks_record_the_bad_samples_of_one(mode: str, kind: type[Any]) -> None:
    """At the same global batch size. With drop_last there is no padding to compare."""
    dataset = kind(36, ERRORS) if kind is Damaged else kind(36)
    build = partial(make, dataset, on_bad_sample=mode, drop_last=True)
    alone = build(batch_size=6)
    wanted = [batch["index"].tolist() for batch in alone]
    ranks = [build(batch_size=3, num_replicas=2, rank=rank) for rank in range(2)]
    parts = [[batch["index"].tolist() for batch in loader] for loader in ranks]
    assert [sorted(a + b) for a, b in zip(*parts, strict=True)] == [*map(sorted, wanted)]
    assert alone.bad_samples.total == sum(loader.bad_samples.total for loader in ranks)
    # A sample that is tried as a replacement may be met on both ranks.
    recorded = {index for loader in ranks for index, _, _ in recorded_by(loader)}
    assert {index for index, _, _ in recorded_by(alone)} == recorded


@modes
def test_out_of_order_batches_keep_the_record(mode: str) -> None:
    """The record names the same samples, in delivery order."""
    ordered, free = (
        make(on_bad_sample=mode, **of) for of in ({}, {"num_workers": 2, "in_order": False})
    )
    wanted = sorted(tuple(batch["index"].tolist()) for batch in ordered)
    assert sorted(tuple(batch["index"].tolist()) for batch in free) == wanted
    assert free.bad_samples.total == ordered.bad_samples.total
    assert {bad.index for bad in free.bad_samples.samples} == BAD


@pytest.mark.processes
@modes
def test_a_killed_worker_counts_no_bad_sample_twice(mode: str) -> None:
    """A bad sample is counted when its batch is delivered."""
    build = partial(make, batch_size=1, on_bad_sample=mode)  # more batches than are in flight
    expected, states = uninterrupted(build(), 1)
    loader = build(num_workers=2)
    batches = iter(loader)
    found = [copy_of(next(batches)) for _ in range(2)]
    worker = batches._workers[0]
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    with pytest.warns(RuntimeWarning, match="the stream goes on"):
        found += [copy_of(batch) for batch in batches]
    assert same(found, expected[0])
    assert loader.worker_restarts == 1
    assert loader.state_dict() == states[1, 0]


class ReportsReads(Indices):
    """Its last sample is bad, and signals when it was read."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.was_read = multiprocessing.get_context("fork").Event()

    def __getitem__(self, index: int) -> int:
        if index == self.length - 1:
            self.was_read.set()
            raise ValueError("the last one")
        return index


@modes
def test_undelivered_bad_samples_are_not_recorded(mode: str) -> None:
    """The state speaks of delivered batches."""
    dataset = ReportsReads(12)
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


# Other orders, and datasets with state.


@pytest.mark.processes
def test_without_batches_drop_also_replaces_a_bad_sample() -> None:
    """A loop does not expect an empty batch."""
    build = partial(make, batch_size=None, on_bad_sample="drop")
    samples = list(build())
    indices = [sample["index"] for sample in samples]
    assert len(indices) == N
    assert not BAD.intersection(indices)
    assert same(samples, list(build(on_bad_sample="replace")))
    assert_exact_resume(build)
    assert_same_run(build, [{"num_workers": 2}])


@pytest.mark.fuzz
@pytest.mark.parametrize(("kind", "mode"), [(list, "replace"), (StatefulSampler, "drop")])
def test_a_users_sampler_gets_another_sample_of_its_batch(mode: str, kind: type[Any]) -> None:
    """No sample comes from outside the sampler's order."""

    def build(**other: Any) -> Loader:
        sampler = kind(range(3, 15)) if kind is list else kind(15)
        return make(shuffle=None, sampler=sampler, on_bad_sample=mode, **other)

    wanted = list(build().sampler)
    for number, batch in enumerate(build()):
        asked = wanted[4 * number : 4 * number + 4]
        good = [index for index in asked if index not in BAD]
        indices = batch["index"].tolist()
        assert set(indices) == set(good)
        assert len(indices) == (len(asked) if mode == "replace" else len(good))
    assert_exact_resume(build, states_follow=True)


class DamagedState(StatefulDataset):
    def __getitem__(self, index: int) -> tuple[int, int, float]:
        sample = super().__getitem__(index)
        if index in BAD:
            raise ValueError(f"no label {index}")
        return sample


@pytest.mark.processes
@pytest.mark.parametrize(("mode", "num_workers"), [("drop", 0), ("replace", 2)])
def test_a_dataset_with_state(mode: str, num_workers: int) -> None:
    """Its counter counts every read, also of known bad samples."""

    def build(**other: Any) -> Loader:
        return make(DamagedState(N), on_bad_sample=mode, num_workers=num_workers, **other)

    assert_exact_resume(build, states_follow=not num_workers)


# The record in the state.


def test_each_loader_has_its_own_record() -> None:
    used, fresh = make(), make()
    list(used)
    assert fresh.bad_samples == BadSamples()
    used.load_state_dict(fresh.state_dict())
    assert used.bad_samples == BadSamples(), "the state's record, and no sum of both"


# On the device.


def test_out_of_memory_is_not_a_bad_sample(photos: Photos, fake_gpu: FakeGpu) -> None:
    build = partial(make_photos, photos[1], device="cuda")
    loader, expected = build(), build()
    fake_gpu.decoder.failures = [torch.OutOfMemoryError("CUDA out of memory.")] * 2
    batches = iter(loader)
    with pytest.raises(torch.OutOfMemoryError, match=r"nothing is lost"):
        next(batches)
    assert same([copy_of(batch) for batch in batches], [copy_of(batch) for batch in expected])
    assert loader.bad_samples == expected.bad_samples

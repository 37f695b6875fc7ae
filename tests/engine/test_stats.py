"""Counts and times of stats(), for every kind of worker."""

from __future__ import annotations

import copy
import pickle
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import IterableDataset

from stateful_gpu_loader import CallableSource, StatefulGPULoader
from stateful_gpu_loader.engine.stats import PRESENT, LoaderStats, StageTimes, Work, stage
from tests.interrupts import handle_at, places_of

WORK = ("read", "decode", "augment", "collate", "transfer")


class Numbers:
    """Items 0 to n - 1; items in ``bad`` fail."""

    def __init__(self, n: int, bad: tuple[int, ...] = ()) -> None:
        self.n = n
        self.bad = bad

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            raise ValueError("damaged")
        return index


class Counted(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


def double(sample: int) -> int:
    return 2 * sample


def spent(loader: StatefulGPULoader[Any]) -> LoaderStats:
    """Return the statistics of one pass."""
    before = loader.stats()
    for _ in loader:
        pass
    return loader.stats() - before


def counts(stats: LoaderStats) -> tuple[int, int | None, int, int]:
    return stats.batches, stats.samples, stats.bad_samples, stats.epochs


def test_a_new_loader_has_done_nothing() -> None:
    stats = StatefulGPULoader(Numbers(3)).stats()
    assert set(asdict(stats).values()) - {stats.elapsed} == {0}
    assert stats.elapsed > 0


def test_counts_cover_delivered_batches() -> None:
    loader = StatefulGPULoader(Numbers(10), batch_size=4)
    batches = iter(loader)
    next(batches)
    assert counts(loader.stats()) == (1, 4, 0, 0)
    assert [len(batch) for batch in batches] == [4, 2]
    assert counts(loader.stats()) == (3, 10, 0, 1)
    assert counts(spent(loader)) == (3, 10, 0, 1)


def two_batches(info: Any) -> torch.Tensor:
    if info.iteration == 2:
        raise StopIteration
    return torch.zeros(5)


@pytest.mark.parametrize(
    ("dataset", "arguments", "wanted"),
    [
        (Numbers(10, bad=(1,)), {"on_bad_sample": "replace"}, (3, 10, 1, 1)),
        (Numbers(10, bad=(1,)), {"on_bad_sample": "drop"}, (3, 9, 1, 1)),
        (Counted(), {}, (3, 10, 0, 1)),
        (CallableSource(two_batches, batch=True), {"batch_size": None}, (2, None, 0, 1)),
    ],
)
def test_bad_samples_count_whenever_they_are_met_and_samples_where_they_are_known(
    dataset: Any, arguments: dict[str, Any], wanted: tuple[int, int | None, int, int]
) -> None:
    loader = StatefulGPULoader(dataset, **{"batch_size": 4, **arguments})
    before = PRESENT.work
    assert counts(spent(loader)) == wanted
    assert counts(spent(loader)) == wanted
    assert PRESENT.work is before, "work after a request is not the loader's"


def test_inline_work_is_part_of_the_wait() -> None:
    stats = spent(StatefulGPULoader(Numbers(50), batch_size=4, transform=double))
    assert min(stats.read, stats.augment, stats.collate) > 0
    assert stats.decode == stats.transfer == stats.idle == 0
    assert sum(getattr(stats, name) for name in WORK) < stats.wait < stats.elapsed
    assert (stats.under_way, stats.ready) == (0, 0)


def test_processes_send_their_times_with_their_answers() -> None:
    loader = StatefulGPULoader(Numbers(40), batch_size=4, num_workers=1, transform=double)
    batches = iter(loader)
    next(batches)
    stats = loader.stats()
    assert stats.under_way + stats.ready == 2
    list(batches)
    stats = loader.stats()
    assert min(stats.read, stats.augment, stats.collate, stats.transfer, stats.idle) > 0
    assert counts(stats) == (10, 40, 0, 1)
    assert (stats.under_way, stats.ready) == (0, 0)


def test_a_copy_for_peek_does_not_count() -> None:
    loader = StatefulGPULoader(Numbers(10), batch_size=4)
    before = loader.stats()
    loader.peek()
    after = loader.stats() - before
    assert after.batches == after.read == after.wait == 0


def test_a_pickled_loader_counts_from_zero_and_a_copy_shares_the_counts() -> None:
    loader = StatefulGPULoader(Numbers(10), batch_size=4)
    batches = iter(loader)
    next(batches)
    fresh = pickle.loads(pickle.dumps(loader))
    assert fresh.stats().batches == 0
    assert counts(spent(fresh)) == (3, 10, 0, 1)
    assert copy.copy(loader).stats().batches == 1


def test_a_loader_inside_a_dataset_notes_its_own_time() -> None:
    inner = StatefulGPULoader(Numbers(4), batch_size=2, seed=1)

    class Outer:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            return len(list(inner))

    stats = spent(StatefulGPULoader(Outer(), batch_size=3))
    assert inner.stats().batches == 12
    assert stats.read > inner.stats().wait


def test_a_stage_inside_another_one_interrupts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it ends, perhaps with an exception."""
    clock = iter([10.0, 11.0, 13.0, 17.0])
    monkeypatch.setattr("stateful_gpu_loader.engine.stats.perf_counter", clock.__next__)
    work = Work()
    with stage("read", work):
        with suppress(ValueError), stage("decode", work):
            assert work.stage == "decode"
            raise ValueError("damaged")
        assert work.stage == "read"
    assert work.stage is None
    assert (work.seconds["read"], work.seconds["decode"]) == (1.0 + 4.0, 2.0)


def test_seconds_of_a_thread_outlive_it() -> None:
    times, before = StageTimes(), PRESENT.work
    try:
        with times.working(), stage("read"):
            pass
    finally:
        PRESENT.work = before
    assert times.total()["read"] > 0
    assert times.take() == {}


def test_a_signal_handler_may_ask_while_its_thread_asks() -> None:
    times, found = StageTimes(), list[dict[str, float]]()
    for number in places_of(times.total).values():
        with handle_at(number, lambda _: found.append(times.total())):
            found.append(times.total())
    assert len(found) > 2
    assert all(each == found[0] for each in found)


# Ranges in profilers.


def ranges(profiler: profile) -> dict[str, int]:
    """Return how often each range of this package appears."""
    found = profiler.key_averages()
    return {one.key: one.count for one in found if one.key.startswith("stateful_gpu_loader.")}


def test_a_profiler_shows_the_stages_of_the_batches_made_meanwhile() -> None:
    batches = iter(StatefulGPULoader(range(40), batch_size=4, transform=float))
    next(batches)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        next(batches)
        next(batches)
    next(batches)
    assert ranges(profiler) == {
        "stateful_gpu_loader.wait": 2,
        "stateful_gpu_loader.read": 2,
        "stateful_gpu_loader.augment": 8,
        "stateful_gpu_loader.collate": 2,
    }


def test_a_profiler_may_start_and_stop_inside_a_stage() -> None:
    work = Work()
    with stage("read", work):
        profiler = profile(activities=[ProfilerActivity.CPU])
        profiler.start()
        inner = stage("decode", work)
        inner.__enter__()
        profiler.stop()
        inner.__exit__(None, None, None)
    # Some versions of torch omit a range that ends after the profiler does.
    assert ranges(profiler) in ({}, {"stateful_gpu_loader.decode": 1})
    assert work.stage is None

"""Failures around snapshots, restarts and resumes."""

from __future__ import annotations

import copy
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler

from stateful_gpu_loader import CallableSource, StatefulGPULoader, StateMismatch, WorkerLost
from tests.callables import NoisyPlaces
from tests.conformance import loaded, refusal, same
from tests.loader.passes import interrupted
from tests.lost_workers import KillsItself, kill, lives
from tests.map_datasets import Failing, Indices
from tests.user_objects import (
    CountingSampler,
    PlainIterable,
    StatefulDataset,
    StatefulIterable,
    StatefulSampler,
)

N = 20


def samplers() -> dict[str, Any]:
    return {
        "with state": StatefulSampler(N),
        "counting": CountingSampler(N),
        "generator": RandomSampler(range(N), generator=torch.Generator().manual_seed(7)),
    }


def indices(batches: Any) -> list[int]:
    return [int(index) for batch in batches for index in torch.as_tensor(batch).flatten()]


@pytest.mark.filterwarnings("ignore:.*the stream goes on:RuntimeWarning")
def test_a_failed_batch_and_then_a_lost_worker_count_once() -> None:
    """The batch whose exception was raised is not made again."""
    loader = StatefulGPULoader(Failing(N, {5}), batch_size=2, num_workers=1)
    batches = iter(loader)
    assert indices([next(batches), next(batches)]) == [0, 1, 2, 3]
    with pytest.raises(KeyError):
        next(batches)
    kill(batches, 0)
    assert next(batches).tolist() == [6, 7]
    assert next(batches).tolist() == [8, 9]
    state = loader.state_dict()
    assert (state["position"], state["user"]) == (10, None)
    resumed = loaded(StatefulGPULoader(Indices(N), batch_size=2), state)
    assert indices(resumed) == list(range(10, 20))


@pytest.mark.parametrize("sampler", [None, range(N)])
def test_a_failed_batch_is_not_retried_after_an_interrupt(sampler: Any) -> None:
    class Interrupted(Failing):
        is_interrupted = False

        def __getitem__(self, index: int) -> int:
            if index == 6 and not self.is_interrupted:
                self.is_interrupted = True
                raise KeyboardInterrupt
            return super().__getitem__(index)

    batches = iter(StatefulGPULoader(Interrupted(N, {5}), batch_size=2, sampler=sampler))
    assert indices([next(batches), next(batches)]) == [0, 1, 2, 3]
    for error in (KeyError, KeyboardInterrupt):
        with pytest.raises(error):
            next(batches)
    assert indices(batches) == list(range(6, N))


def test_an_iterator_whose_workers_could_not_start_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fork, failures = os.fork, [OSError(11, "try again")]

    def failing() -> int:
        if failures:
            raise failures.pop()
        return fork()

    monkeypatch.setattr(os, "fork", failing)
    batches = iter(StatefulGPULoader(Indices(6), batch_size=2, num_workers=1))
    with pytest.raises(OSError, match="try again"):
        next(batches)
    assert indices(batches) == list(range(6))


class FailsToLoadOnce(StatefulDataset):
    """Loading its state fails the first time."""

    failures = 0

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("the network is down")
        super().load_state_dict(state_dict)


@pytest.mark.parametrize("interval", [1, 5])
def test_a_failed_resume_moves_no_state(interval: int) -> None:
    """An exception before the first request, or in a replayed one, moves nothing."""

    def build() -> StatefulGPULoader[Any]:
        return StatefulGPULoader(
            FailsToLoadOnce(N), batch_size=2, seed=1, snapshot_every_n_steps=interval
        )

    loader = build()
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state, expected = loader.state_dict(), list(batches)
    resumed = loaded(build(), state)
    resumed.dataset.failures = 1
    again = iter(resumed)
    with pytest.raises(OSError, match="network"):
        next(again)
    assert resumed.state_dict() == state
    assert same(list(again), expected)


class FailsOnce(StatefulDataset):
    """Reading fails while a certain file exists; the failure removes the file."""

    file: Path | None = None

    def __getitem__(self, index: int) -> tuple[int, int, float]:
        _fail_once(self.file)
        return super().__getitem__(index)


class IterableFailsOnce(StatefulIterable):
    """Reading fails while a certain file exists; the failure removes the file."""

    file: Path | None = None

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            _fail_once(self.file)
            yield item


def _fail_once(file: Path | None) -> None:
    if file is not None and file.exists():
        file.unlink()
        raise OSError("the network is down")


@pytest.mark.parametrize("dataset", [FailsOnce(N), IterableFailsOnce([N])])
def test_a_batch_that_fails_when_repeated_starts_no_epoch(dataset: Any, tmp_path: Path) -> None:
    """A resume remakes the batches after a snapshot, which were delivered before."""

    def build() -> StatefulGPULoader[Any]:
        return StatefulGPULoader(
            copy.deepcopy(dataset), batch_size=2, seed=1, snapshot_every_n_steps=5, num_workers=1
        )

    loader = build()
    state, batches = interrupted(loader, 3)
    resumed = loaded(build(), state)
    resumed.dataset.file = tmp_path / "unreachable"
    resumed.dataset.file.touch()
    with pytest.raises(OSError, match="network"):
        next(iter(resumed))
    assert resumed.state_dict() == state
    assert same(list(resumed), list(batches))


@pytest.mark.processes
@pytest.mark.parametrize("name", samplers())
def test_workers_lost_before_the_first_batch_leave_the_sampler_where_it_was(
    name: str, tmp_path: Any
) -> None:
    """The state is intact, and a new iterator continues from it."""

    def build(count: int) -> StatefulGPULoader[Any]:
        dataset = KillsItself(N, 4, lives(tmp_path / str(count), count))
        return StatefulGPULoader(
            dataset,
            batch_size=N,
            sampler=samplers()[name],
            num_workers=1,
            max_worker_restarts=0,
            seed=1,
        )

    expected = [batch["index"].tolist() for batch in build(0)]
    loader = build(1)
    with pytest.raises(WorkerLost):
        next(iter(loader))
    assert [batch["index"].tolist() for batch in loader] == expected


def test_persistent_workers_that_were_lost_get_their_states_again() -> None:
    """One pass follows another on other workers."""

    def build() -> StatefulGPULoader[Any]:
        return StatefulGPULoader(
            StatefulDataset(6),
            batch_size=2,
            num_workers=1,
            persistent_workers=True,
            max_worker_restarts=0,
            seed=1,
        )

    reference = build()
    expected = [list(reference), list(reference)]
    loader = build()
    assert same(list(loader), expected[0])
    (worker,) = loader._engine.workers.idle.workers  # type: ignore[union-attr]
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    with pytest.raises(WorkerLost):
        list(loader)
    assert same(list(loader), expected[1])


def test_an_old_iterator_that_loses_its_workers_leaves_a_loaded_state_alone() -> None:
    loader = StatefulGPULoader(Indices(40), batch_size=2, num_workers=1, max_worker_restarts=0)
    old = iter(loader)
    next(old)
    loader.load_state_dict({**loader.state_dict(), "position": 20})
    kill(old, 0)
    with pytest.raises(WorkerLost):
        list(old)
    assert loader.state_dict()["position"] == 20
    assert next(iter(loader)).tolist() == [20, 21]


@pytest.mark.parametrize(
    ("name", "num_workers"),
    [(None, 0), (None, 2), ("with state", 2), ("counting", 0), ("generator", 2)],
)
def test_an_iterator_that_only_raised_continues_from_a_loaded_state(
    name: str | None, num_workers: int
) -> None:
    """So does an iterator that did nothing, and one that raises again or delivers."""
    first = 0 if name is None else next(iter(samplers()[name]))

    def started() -> tuple[StatefulGPULoader[Any], Any]:
        sampler = None if name is None else samplers()[name]
        loader: StatefulGPULoader[Any] = StatefulGPULoader(
            Failing(N, {first}), batch_size=2, sampler=sampler, num_workers=num_workers
        )
        batches = iter(loader)
        with pytest.raises(KeyError, match="no sample"):
            next(batches)
        return loader, batches

    ahead, batches_ahead = started()
    expected = [next(batches_ahead) for _ in range(3)]
    loader, batches = started()
    loader.load_state_dict(ahead.state_dict(batches_ago=1))
    assert same(next(batches), expected[2])
    assert loader.state_dict() == ahead.state_dict()


@pytest.mark.parametrize("length", [1, 4, 5])
def test_an_iterator_that_only_raised_continues_after_its_function_ended(length: int) -> None:
    """A short batch shows that it is the last one, before another is requested."""

    def refuse_the_first(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["place"] == 0:
            raise ValueError("no sample 0")
        return sample

    def make() -> StatefulGPULoader[Any]:
        source = CallableSource(NoisyPlaces(length))
        return StatefulGPULoader(source, batch_size=4, seed=1, transform=refuse_the_first)

    loader = make()
    before = loader.state_dict()
    batches = iter(loader)
    with pytest.raises(ValueError, match="no sample 0"):
        next(batches)
    loader.load_state_dict(before)
    with pytest.raises(ValueError, match="no sample 0"):
        next(batches)
    fresh = iter(make())
    with pytest.raises(ValueError, match="no sample 0"):
        next(fresh)
    assert same(list(batches), list(fresh))


def test_an_iterator_from_before_a_load_does_not_enter_its_bad_samples() -> None:
    loader = StatefulGPULoader(Failing(N, {5}), batch_size=2, on_bad_sample="drop")
    old, state = iter(loader), loader.state_dict()
    next(old)
    loader.load_state_dict(state)
    assert indices(old) == [i for i in range(2, N) if i != 5]
    assert len(loader.bad_samples) == 0
    assert loader.state_dict() == state


@pytest.mark.parametrize(
    "arguments",
    [{}, {"num_workers": 2}, {"num_workers": 2, "in_order": False}],
    ids=str,
)
def test_batches_ahead_survive_a_second_save(arguments: dict[str, Any]) -> None:
    """In order or not, every sample comes exactly once after two resumes."""
    plain = StatefulGPULoader(Indices(30), batch_size=2)
    ahead = [4, 8, 10, 22]
    state = {**plain.state_dict(), "position": 2, "ahead": json.dumps(ahead)}
    delivered = [0, 1] + [i for begin in ahead for i in (begin, begin + 1)]
    loader = loaded(StatefulGPULoader(Indices(30), batch_size=2, **arguments), state)
    batches = iter(loader)
    for _ in range(3):
        delivered += indices([next(batches)])
        again = loaded(StatefulGPULoader(Indices(30), batch_size=2), loader.state_dict())
        assert sorted(delivered + indices(again)) == list(range(30))


def test_torchs_own_batch_sampler_is_compared_by_its_batches() -> None:
    """By the batch size, where batches are counted, and by drop_last."""

    def build(batch_size: int, *, drop_last: bool = False) -> StatefulGPULoader[Any]:
        batches = BatchSampler(StatefulSampler(N), batch_size, drop_last)
        return StatefulGPULoader(
            Indices(N), batch_sampler=batches, num_workers=1, snapshot_every_n_steps=4
        )

    loader = build(4)
    state, _ = interrupted(loader)
    assert refusal(build(2), state, "global_batch_size").saved == 4
    refusal(build(4, drop_last=True), state, "drop_last")


def test_a_plain_iterable_is_read_again_in_the_same_batches_only() -> None:
    """Another batch size would read other samples, and is refused."""
    loader = StatefulGPULoader(PlainIterable([40]), batch_size=4, seed=1)
    next(iter(loader))
    other = StatefulGPULoader(PlainIterable([40]), batch_size=2)
    refusal(other, loader.state_dict(), "global_batch_size")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_sampler_that_was_refused_is_refused_again(num_workers: int) -> None:
    loader = StatefulGPULoader(Indices(N), batch_size=2, sampler=list(range(N)))
    next(iter(loader))
    other = StatefulGPULoader(
        Indices(N), batch_size=2, sampler=list(range(N))[::-1], num_workers=num_workers
    )
    other.load_state_dict(loader.state_dict())
    batches = iter(other)
    for _ in range(2):
        with pytest.raises(StateMismatch, match="not reproducible"):
            next(batches)


def test_a_state_that_could_not_be_taken_leaves_the_older_one() -> None:
    """The batch raises, and a state saved after that is complete."""

    class Forgetful(StatefulDataset):
        asked = 0

        def state_dict(self) -> dict[str, Any]:
            self.asked += 1
            if self.asked == 3:
                raise OSError("no state now")
            return super().state_dict()

    def build() -> StatefulGPULoader[Any]:
        return StatefulGPULoader(Forgetful(N), batch_size=2, num_workers=1, seed=1)

    loader = build()
    batches = iter(loader)
    next(batches)
    next(batches)
    with pytest.raises(OSError, match="no state now"):
        next(batches)
    state, expected = loader.state_dict(), list(batches)
    resumed = StatefulGPULoader(StatefulDataset(N), batch_size=2, num_workers=1, seed=1)
    resumed.load_state_dict(state)
    assert same(list(resumed), expected)


def test_a_refused_sampler_state_changes_nothing() -> None:
    loader = StatefulGPULoader(Indices(N), sampler=samplers()["generator"], seed=1)
    list(loader)
    state = loader.state_dict()
    other = StatefulGPULoader(Indices(N), sampler=RandomSampler(range(N)), seed=1)
    assert "generators" in refusal(other, state).field
    for damage in ({"permutation": "x"}, {"sampler": {**state["user"]["sampler"], "passed": 7}}):
        refusal(loader, {**state, "user": {**state["user"], **damage}})


@pytest.mark.processes
@pytest.mark.parametrize("failing", [set(), {19}])
def test_the_end_of_an_epoch_counts_its_tail(failing: set[int]) -> None:
    """Batches after the last snapshot count, and failed ones; the sampler is checked by all."""

    class Both(StatefulDataset):
        def __getitem__(self, index: int) -> tuple[int, int, float]:
            if index in failing:
                raise LookupError(index)
            return super().__getitem__(index)

    def build() -> StatefulGPULoader[Any]:
        return StatefulGPULoader(
            Both(N),
            batch_size=2,
            sampler=CountingSampler(N),
            num_workers=1,
            snapshot_every_n_steps=3,
            seed=1,
        )

    loader = build()
    _deliver_all(iter(loader))
    resumed = loaded(build(), loader.state_dict())
    assert same(_deliver_all(iter(resumed)), _deliver_all(iter(loader)))


def _deliver_all(batches: Any) -> list[Any]:
    delivered = []
    while True:
        try:
            delivered.append(next(batches))
        except LookupError:
            continue
        except StopIteration:
            return delivered


def test_len_draws_no_seed() -> None:
    """Trainers ask for the length long before the first batch, and draws in between must count."""
    orders = []
    for asks in (False, True):
        torch.manual_seed(5)
        loader = StatefulGPULoader(range(20), shuffle=True)
        if asks:
            assert len(loader) == 20
        torch.rand(1)
        orders.append([int(batch) for batch in loader])
    assert orders[0] == orders[1]

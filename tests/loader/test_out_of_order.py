"""Batches that overtake each other: each comes once, and every state is exact."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler, IterableDataset, Sampler

from stateful_gpu_loader import StatefulGPULoader, StateMismatch
from tests.conformance import loaded, refusal, refusal_at_next
from tests.loader.passes import interrupted
from tests.makers import Make, make_lazy, make_samplers, make_stateful
from tests.map_datasets import Indices


def closed_gate() -> Event:
    """Return a closed gate for datasets that forked workers inherit."""
    return multiprocessing.get_context("fork").Event()


class Gated(Indices):
    """One index waits until a gate is opened."""

    def __init__(self, length: int, slow: int, gate: Event) -> None:
        super().__init__(length)
        self.slow, self.gate = slow, gate

    def __getitem__(self, index: int) -> int:
        if index == self.slow:
            self.gate.wait()
        return index


@pytest.mark.processes
def test_out_of_order_a_slow_worker_delays_no_other() -> None:
    """All other batches are counted and come first; every state in between is exact."""
    gate, num_workers = closed_gate(), 3
    arguments: dict[str, Any] = {"num_workers": num_workers, "in_order": False}
    loader = StatefulGPULoader(Gated(30, 4, gate), batch_size=1, **arguments)
    batches = iter(loader)
    delivered: list[int] = []
    states: list[Any] = [loader.state_dict()]
    num_after_the_slow_batch = 2 * num_workers  # its worker's own queue
    for _ in range(30 - num_after_the_slow_batch):
        delivered.append(int(next(batches)))
        states.append(loader.state_dict())
    assert 4 not in delivered
    gate.set()
    for batch in batches:
        delivered.append(int(batch))
        states.append(loader.state_dict())
    assert sorted(delivered) == list(range(30))
    assert delivered != sorted(delivered)
    for count, state in enumerate(states):
        for other in ({}, arguments) if count % 4 == 0 else ({},):
            resumed = loaded(StatefulGPULoader(Indices(30), batch_size=1, **other), state)
            assert resumed.state_dict() == state
            rest = [int(batch) for batch in resumed]
            assert sorted(delivered[:count] + rest) == list(range(30)), count
    wrong = StatefulGPULoader(Indices(30), batch_size=2)
    refusal(wrong, next(state for state in states if state["ahead"]), "global_batch_size")


@pytest.mark.processes
@pytest.mark.parametrize("make", [make_stateful, make_samplers, make_lazy])
def test_out_of_order_with_objects_that_have_state(make: Make) -> None:
    """Each sample of the epoch comes exactly once."""
    everything = sorted(int(index) for batch in make(num_workers=0) for index in _indices_of(batch))
    loader = make(num_workers=2, in_order=False)
    delivered: list[int] = []
    for count, batch in enumerate(loader):
        delivered.extend(int(index) for index in _indices_of(batch))
        if count == 4:
            break
    resumed = loaded(make(num_workers=2, in_order=False), loader.state_dict())
    for batch in resumed:
        delivered.extend(int(index) for index in _indices_of(batch))
    assert sorted(delivered) == everything


class Backwards(Sampler[int]):
    """Each pass over the same object reverses the order of the pass before."""

    def __init__(self, length: int) -> None:
        self.indices = list(range(length))

    def __iter__(self) -> Iterator[int]:
        self.indices.reverse()
        return iter(self.indices)


def overtaken(slow: int, **arguments: Any) -> dict[str, Any]:
    """Return the state after two batches, while the batch that holds ``slow`` is not delivered."""
    gate = closed_gate()
    loader = StatefulGPULoader(
        Gated(12, slow, gate), num_workers=2, prefetch_factor=2, in_order=False, **arguments
    )
    state, batches = interrupted(loader, 2)
    gate.set()
    list(batches)
    return state


@pytest.mark.parametrize("num_workers", [0, 2])
def test_overtaking_batches_are_verified_before_the_first_delivery(num_workers: int) -> None:
    """No index precedes the oldest missing batch, so no other check can notice."""
    sampler = Backwards(12)
    state = overtaken(11, batch_size=2, sampler=sampler)
    assert state["position"] == 0
    arguments: dict[str, Any] = {"num_workers": num_workers, "in_order": False, "batch_size": 2}
    fresh = loaded(StatefulGPULoader(Indices(12), sampler=Backwards(12), **arguments), state)
    assert sorted(int(index) for batch in fresh for index in batch) == [0, 1, 2, 3, 6, 7, 10, 11]
    used = loaded(StatefulGPULoader(Indices(12), sampler=sampler, **arguments), state)
    batches = iter(used)
    for _ in range(2):  # A refused attempt leaves the sampler as it was.
        with pytest.raises(StateMismatch) as refused:
            next(batches)
        assert refused.value.field == "ahead"
        assert "position 2" in refused.value.saved
    assert sampler.indices == list(range(12))[::-1]


def test_overtaking_batches_need_the_same_boundaries() -> None:
    """A batch sampler's batches may have other lengths than before."""
    state = overtaken(0, batch_sampler=[[0, 1], [2, 3], [4, 5], [6, 7]])
    for other in ([[0, 1, 2], [3], [4, 5]], [[0, 1]]):
        loader = StatefulGPULoader(Indices(12), batch_sampler=other)
        assert "position 2" in refusal_at_next(loader, state, "ahead").saved


@pytest.mark.parametrize("is_theirs", [False, True])
def test_overtaking_batches_of_another_rank_are_refused(is_theirs: bool) -> None:
    def of_rank(rank: int) -> dict[str, Any]:
        if is_theirs:
            return {"sampler": DistributedSampler(Indices(12), num_replicas=2, rank=rank, seed=3)}
        return {"num_replicas": 2, "rank": rank}

    slow = next(iter(of_rank(0).get("sampler", [0])))
    state = overtaken(slow, batch_size=1, **of_rank(0))
    assert state["ahead"] is not None
    _rest(state, **of_rank(0))
    with pytest.raises(StateMismatch) as refused:
        _rest(state, **of_rank(1))
    assert refused.value.field == "ahead"


def _rest(state: dict[str, Any], **given: Any) -> None:
    loader = loaded(StatefulGPULoader(Indices(12), batch_size=1, **given), state)
    list(loader)


def _indices_of(batch: Any) -> Any:
    return batch["index"] if isinstance(batch, dict) else batch[0]


class SlowPart(IterableDataset[Any]):
    """Worker 1 waits before its first sample."""

    def __init__(self, gate: Event) -> None:
        self.gate = gate

    def __iter__(self) -> Iterator[int]:
        worker = torch.utils.data.get_worker_info()
        number = 0 if worker is None else worker.id
        if number == 1:
            self.gate.wait()
        yield from range(10 * number, 10 * number + 10)


def test_out_of_order_draws_do_not_depend_on_the_arrival() -> None:
    """A batch of an iterable is keyed by its worker and its number in that worker."""

    def draw(batch: torch.Tensor) -> tuple[int, float]:
        return int(batch), float(torch.rand(()))

    def build(gate: Event) -> StatefulGPULoader[Any]:
        return StatefulGPULoader(
            SlowPart(gate),
            batch_size=1,
            num_workers=2,
            in_order=False,
            prefetch_factor=1,
            batch_transform=draw,
            seed=7,
        )

    gate = closed_gate()
    loader = build(gate)
    batches = iter(loader)
    slow_last = [next(batches) for _ in range(4)]
    state = loader.state_dict()
    gate.set()
    slow_last += batches
    slow_first = [*build(gate)]
    assert sorted(slow_last) == sorted(slow_first)
    resumed = loaded(build(gate), state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert sorted([*slow_last[:4], *resumed]) == sorted(slow_first)

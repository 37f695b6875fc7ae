"""States that torchdata's own loader wrote say what it had delivered, and what is left."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from stateful_gpu_loader.state.torchdata import (
    TorchdataState,
    is_torchdata_state,
    shuffled_indices,
)
from tests.map_datasets import Indices
from tests.torchdata_objects import (
    LENGTH,
    Countdown,
    Counting,
    IteratorSampler,
    IteratorStream,
    SelfStream,
    StatefulBatchSampler,
    StatefulSampler,
    StatefulStream,
    Stream,
)

EXECUTIONS: list[dict[str, Any]] = [
    {"num_workers": 0},
    *({"num_workers": 2, "snapshot_every_n_steps": n} for n in (1, 3, 100)),
]
Batches = list[list[int]]


def executions() -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "execution", EXECUTIONS, ids=lambda e: "-".join(map(str, e.values()))
    )


def recorded(loader: Any) -> tuple[list[TorchdataState], Batches]:
    """One pass: its batches, and the states before the first, after each and after its end."""
    loader.state_dict()  # which makes the iterator, where there is none yet
    iterator = iter(loader)
    states, batches = [copy.deepcopy(loader.state_dict())], []
    for batch in iterator:
        batches.append(torch.as_tensor(batch).reshape(-1).tolist())
        states.append(copy.deepcopy(loader.state_dict()))
    states.append(copy.deepcopy(loader.state_dict()))
    assert all(map(is_torchdata_state, states))
    return [TorchdataState.from_dict(state) for state in states], batches


def batched(order: list[int], batch_size: int | None, drop_last: bool = False) -> Batches:
    """What torchdata makes of indices that are left."""
    step = batch_size or 1
    batches = [order[i : i + step] for i in range(0, len(order), step)]
    return [batch for batch in batches if not drop_last or len(batch) == step]


def assert_counts(states: list[TorchdataState], batches: Batches, execution: Any) -> None:
    every = execution.get("snapshot_every_n_steps", 1)
    for delivered, state in enumerate([*states[:-1], states[-2]]):
        assert state.num_workers == execution["num_workers"]
        assert state.batches == min(delivered, len(batches))
        assert state.steps == min(delivered, len(batches)) % every
    assert [state.finished for state in states] == [False] * (len(batches) + 1) + [True]


# The orders that torchdata draws itself.


@pytest.mark.processes
@executions()
@pytest.mark.parametrize("order", ["sequential", "shuffled", "generator"])
@pytest.mark.parametrize(("batch_size", "drop_last"), [(3, False), (3, True), (None, False)])
def test_what_is_left_follows_from_the_state_alone(
    order: str, batch_size: int | None, drop_last: bool, execution: dict[str, Any]
) -> None:
    # Drawn from before, so that its state is not that of its seed.
    generator = torch.Generator().manual_seed(3)
    torch.randn(700, generator=generator)
    loader = StatefulDataLoader(
        Indices(LENGTH),
        batch_size=batch_size,
        drop_last=drop_last,
        shuffle=order != "sequential",
        generator=generator if order == "generator" else None,
        **execution,
    )
    for _ in range(1 + (execution["num_workers"] == 0)):  # the second epoch of one loader, too
        states, batches = recorded(loader)
        assert_counts(states, batches, execution)
        for delivered, state in enumerate(states[:-1]):
            assert not state.iterable
            assert state.workers == ()
            assert (state.samples is None) == (batch_size is None)
            start = state.requests if state.samples is None else state.samples
            if order == "sequential":
                assert state.permutation is None
                assert state.permutation_yielded is None
                whole = list(range(LENGTH))
            else:
                assert state.permutation is not None
                assert state.permutation_yielded == start
                whole = shuffled_indices(state.permutation, LENGTH).tolist()
            left = batched(whole[start:], batch_size, drop_last)[state.steps :]
            assert left == batches[delivered:]


def test_samples_of_a_finished_pass_hold_those_that_drop_last_left_out() -> None:
    loader = StatefulDataLoader(Indices(LENGTH), batch_size=3, drop_last=True)
    states, _ = recorded(loader)
    assert [state.samples for state in states] == [0, 3, 6, 9, 11]


@pytest.mark.processes
@executions()
def test_a_loader_that_was_resumed_writes_states_of_the_same_pass(
    execution: dict[str, Any],
) -> None:
    def make() -> Any:
        return StatefulDataLoader(Indices(LENGTH), batch_size=2, shuffle=True, **execution)

    first = make()
    batches = iter(first)
    taken = [next(batches) for _ in range(2)]
    second = make()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    states, rest = recorded(second)
    assert [state.batches for state in states] == [2, 3, 4, 5, 6, 6]
    for delivered, state in enumerate(states[:-1]):
        assert state.permutation is not None
        assert state.samples is not None
        whole = shuffled_indices(state.permutation, LENGTH).tolist()
        assert whole[:4] == torch.cat(taken).tolist()
        assert batched(whole[state.samples :], 2)[state.steps :] == rest[delivered:]
    assert rest == [batch.tolist() for batch in batches]


def test_a_failed_fetch_is_counted_as_request_and_not_as_batch() -> None:
    class Broken(Indices):
        def __getitem__(self, index: int) -> int:
            return super().__getitem__(index) if index != 2 else 1 // 0

    loader = StatefulDataLoader(Broken(LENGTH), batch_size=2)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(batches)
    state = TorchdataState.from_dict(loader.state_dict())
    assert (state.batches, state.requests, state.samples) == (1, 2, 4)


def test_an_order_not_kept_shows_in_fewer_requests_than_batches() -> None:
    # The first batch comes after the second for sure: it waits until that one is here.
    arrived = torch.multiprocessing.get_context("fork").Event()

    class Late(Indices):
        def __getitem__(self, index: int) -> int:
            assert index != 0 or arrived.wait(60)
            return super().__getitem__(index)

    loader = StatefulDataLoader(
        Late(8), batch_size=2, num_workers=2, in_order=False, multiprocessing_context="fork"
    )
    batches = iter(loader)
    delivered = next(batches).tolist()
    state = TorchdataState.from_dict(copy.deepcopy(loader.state_dict()))
    arrived.set()
    assert delivered == [2, 3]
    assert (state.batches, state.steps, state.requests) == (1, 1, 0)
    while delivered != [0, 1]:
        delivered = next(batches).tolist()
    state = TorchdataState.from_dict(copy.deepcopy(loader.state_dict()))
    assert state.batches > state.requests == 1
    assert sorted(number for batch in batches for number in batch.tolist())[-1] <= 7


# Samplers that are the user's.


@pytest.mark.processes
@executions()
@pytest.mark.parametrize("batch_size", [2, None])
def test_state_on_a_users_sampler(batch_size: int | None, execution: dict[str, Any]) -> None:
    loader = StatefulDataLoader(
        Indices(LENGTH), sampler=StatefulSampler(), batch_size=batch_size, **execution
    )
    states, batches = recorded(loader)
    assert_counts(states, batches, execution)
    for delivered, state in enumerate(states[:-1]):
        sampler = StatefulSampler()
        sampler.load_state_dict(state.index_sampler if batch_size is None else state.sampler)
        assert batched(list(sampler), batch_size)[state.steps :] == batches[delivered:]
        assert (state.sampler is None) == (batch_size is None)
        assert (state.index_sampler is None) == (batch_size is not None)
        assert state.sampler_iterator is None


@pytest.mark.processes
@executions()
@pytest.mark.parametrize("batch_size", [2, None])
def test_state_on_the_iterator_of_a_users_sampler(
    batch_size: int | None, execution: dict[str, Any]
) -> None:
    loader = StatefulDataLoader(
        Indices(LENGTH), sampler=IteratorSampler(), batch_size=batch_size, **execution
    )
    states, batches = recorded(loader)
    assert_counts(states, batches, execution)
    for delivered, state in enumerate(states[:-1]):
        iterator = Countdown(None)
        saved = state.index_iterator if batch_size is None else state.sampler_iterator
        iterator.load_state_dict(saved)
        assert batched(list(iterator), batch_size)[state.steps :] == batches[delivered:]
        # Named like torchdata's own, and yet none of its.
        assert state.permutation is None
        assert state.sampler is state.index_sampler is None


@executions()
def test_state_on_a_users_batch_sampler(execution: dict[str, Any]) -> None:
    loader = StatefulDataLoader(Indices(LENGTH), batch_sampler=StatefulBatchSampler(), **execution)
    states, batches = recorded(loader)
    assert_counts(states, batches, execution)
    for delivered, state in enumerate(states[:-1]):
        assert state.index_sampler == {"samples_yielded": "mine"}
        iterator = Countdown(2)
        iterator.load_state_dict(state.index_iterator)
        assert list(iterator)[state.steps :] == batches[delivered:]
        assert state.requests == state.batches - state.steps
        assert state.samples is state.sampler is state.sampler_iterator is None


@executions()
def test_a_batch_sampler_without_state_is_counted_in_requests(execution: dict[str, Any]) -> None:
    fixed = [[0, 1], [5], [7, 8, 9], [2]]
    states, batches = recorded(
        StatefulDataLoader(Indices(LENGTH), batch_sampler=fixed, **execution)
    )
    assert batches == fixed
    for delivered, state in enumerate(states[:-1]):
        assert fixed[state.requests + state.steps :] == batches[delivered:]
        assert state.samples is state.index_iterator is None


@pytest.mark.processes
@executions()
@pytest.mark.parametrize("kind", [DistributedSampler, StatefulDistributedSampler])
@pytest.mark.parametrize("batch_size", [2, None])
def test_a_ranks_place_in_a_distributed_sampler(
    kind: Any, batch_size: int | None, execution: dict[str, Any]
) -> None:
    def make() -> Any:
        return kind(Indices(LENGTH), num_replicas=2, rank=1, seed=5)

    share = list(make())
    states, batches = recorded(
        StatefulDataLoader(Indices(LENGTH), sampler=make(), batch_size=batch_size, **execution)
    )
    assert_counts(states, batches, execution)
    for delivered, state in enumerate(states[:-1]):
        start = state.requests if state.samples is None else state.samples
        assert batched(share[start:], batch_size)[state.steps :] == batches[delivered:]
        saved = {"yielded": start} if kind is StatefulDistributedSampler else None
        assert (state.index_sampler if batch_size is None else state.sampler) == saved


def test_yielded_of_torchdatas_distributed_sampler_is_stale_before_a_first_batch() -> None:
    """Why ``samples`` is to be trusted there: its generator counts once it has begun."""
    sampler = StatefulDistributedSampler(Indices(LENGTH), num_replicas=2, rank=1)
    loader = StatefulDataLoader(Indices(LENGTH), sampler=sampler, batch_size=2)
    recorded(loader)
    iter(loader)
    state = TorchdataState.from_dict(loader.state_dict())
    assert (state.samples, state.sampler) == (0, {"yielded": 6})


# Datasets that have a state.


@executions()
def test_state_on_a_map_style_dataset(execution: dict[str, Any]) -> None:
    loader = StatefulDataLoader(Counting(LENGTH), batch_size=2, **execution)
    states, batches = recorded(loader)
    assert_counts(states, batches, execution)
    num_places = max(execution["num_workers"], 1)
    for state in states:
        assert not state.iterable
        assert len(state.workers) == num_places
        done = batches[: state.batches - state.steps]
        assert state.next_worker == len(done) % num_places
        for i, worker in enumerate(state.workers):
            served = [number for batch in done[i::num_places] for number in batch]
            assert worker.dataset == {"served": served, "name": {"of": {}}}
            assert worker.iterator is None
            assert not worker.ended


@pytest.mark.processes
@executions()
@pytest.mark.parametrize("kind", [StatefulStream, IteratorStream, SelfStream])
@pytest.mark.parametrize("length", [7, 11])  # of two workers, the second or both end unevenly
@pytest.mark.parametrize("batch_size", [2, None])
def test_what_an_iterable_has_left_follows_from_its_workers_states(
    kind: Callable[[int], Stream], length: int, batch_size: int | None, execution: dict[str, Any]
) -> None:
    states, batches = recorded(StatefulDataLoader(kind(length), batch_size=batch_size, **execution))
    assert_counts(states, batches, execution)
    num_places = max(execution["num_workers"], 1)
    for delivered, state in enumerate(states[:-1]):
        assert state.iterable
        assert len(state.workers) == num_places
        shares = []
        for i, worker in enumerate(state.workers):
            place, absent = worker.dataset, worker.iterator
            if kind is not StatefulStream:
                place, absent = absent, place
            assert absent is None
            left = list(range(i, length, num_places))[place["place"] :]
            assert not (worker.ended and left)
            shares.append(batched(left, batch_size))
        assert dealt(shares, state.next_worker)[state.steps :] == batches[delivered:]


def dealt(shares: list[Batches], turn: int) -> Batches:
    """What the workers have left, one batch of each in turn."""
    batches = []
    while any(shares):
        if shares[turn]:
            batches.append(shares[turn].pop(0))
        turn = (turn + 1) % len(shares)
    return batches


@pytest.mark.processes
@executions()
def test_an_iterable_without_state_is_told_by_its_batches(execution: dict[str, Any]) -> None:
    states, batches = recorded(StatefulDataLoader(Stream(7), batch_size=2, **execution))
    assert_counts(states, batches, execution)
    assert all(state.iterable and state.workers == () for state in states)

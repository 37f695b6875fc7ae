"""Samplers by position in the loader: exact, elastic, and refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from stateful_gpu_loader import StatefulGPULoader, StateMismatch
from stateful_gpu_loader.samplers import (
    Blocks,
    ShuffledSampler,
    SubsetSampler,
    WeightedSampler,
)
from tests.conformance import assert_exact_resume, flat, same, through_json
from tests.damaged import Damaged
from tests.map_datasets import Indices, Noisy
from tests.samplers.makers import LENGTHS, SAMPLERS, TARGETS, WEIGHTS, Make, N

kinds = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
GLOBAL_BATCH = 6


def as_it_is(samples: list[Any]) -> list[Any]:
    return samples


def loader_of(make: Make, **arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(
        Noisy(N),
        sampler=make(),
        **{"batch_size": 4, "seed": 5, "collate_fn": as_it_is, **arguments},
    )


def merged(make: Make, num_replicas: int, state: dict[str, Any] | None = None) -> Iterator[Any]:
    """The samples of an epoch in their global order, from one loader for each rank."""
    ranks = []
    for rank in range(num_replicas):
        loader = loader_of(
            make, num_replicas=num_replicas, rank=rank, batch_size=GLOBAL_BATCH // num_replicas
        )
        if state is not None:
            loader.load_state_dict(through_json(state))
        ranks.append([*flat(list(loader))])
    for together in zip(*ranks, strict=True):
        yield from together


@pytest.mark.processes
@kinds
def test_it_resumes_exactly_at_every_batch(make: Make) -> None:
    executions = ({"num_workers": 2, "worker_type": "process"},)
    assert_exact_resume(partial(loader_of, make), other=executions)


@kinds
def test_the_loader_delivers_the_samplers_order_with_a_key_for_each_position(make: Make) -> None:
    """Two samples of one index are two draws: repeats are augmented differently."""
    loader = loader_of(make)
    batches = list(loader)
    samples = [*flat(batches)]
    sampler = make(seed=5)
    assert [sample["index"] for sample in samples] == list(sampler)
    assert len(loader) == len(batches) == -(-sampler.order.num_positions // 4)
    assert len({sample["random"] for sample in samples}) == len(samples)


@pytest.mark.fuzz
@kinds
def test_another_batch_size_goes_on_with_the_same_samples(make: Make) -> None:
    loader = loader_of(make)
    batches = iter(loader)
    states = []
    whole: list[Any] = []
    for batch in batches:
        whole += batch
        states.append((len(whole), loader.state_dict()))
    for taken, state in states[::3]:
        for batch_size in (1, 3, 100):
            resumed = loader_of(make, batch_size=batch_size)
            resumed.load_state_dict(through_json(state))
            assert same([*flat(list(resumed))], whole[taken:])


@pytest.mark.fuzz
@kinds
def test_ranks_together_deliver_the_same_global_batches(make: Make) -> None:
    """From the start and from a state of another number of ranks."""
    num_positions = make().order.num_positions
    alone = loader_of(make, batch_size=GLOBAL_BATCH)
    whole = [*flat(list(alone))]
    taker = loader_of(make, batch_size=GLOBAL_BATCH)
    batches = iter(taker)
    for _ in range(2):
        next(batches)
    state = taker.state_dict()
    for num_replicas in (1, 2, 3):
        assert same([*merged(make, num_replicas)][:num_positions], whole)
        rest = [*merged(make, num_replicas, state)][: num_positions - 2 * GLOBAL_BATCH]
        assert same(rest, whole[2 * GLOBAL_BATCH :])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("even blocks", {"locality": Blocks(8, window=2)}),
        ("even blocks", {"locality": Blocks(7, window=3)}),
        ("uneven blocks", {"locality": Blocks(LENGTHS[::-1], window=3)}),
        ("weighted", {"weights": WEIGHTS + 1e-9}),
        ("weighted, without replacement", {"weights": WEIGHTS[::-1]}),
        ("balanced", {"targets": TARGETS[::-1]}),
        ("subset", {"indices": range(2, N - 1, 2)}),
        ("subset in order", {"indices": [39, 5, 0, 5, 17, 8, 1, 2, 30, 11, 4, 4, 7, 29, 3]}),
        ("repeated", {"adjacent": False}),
    ],
    ids=lambda value: value if isinstance(value, str) else " and ".join(value),
)
def test_a_state_of_another_order_is_refused(name: str, change: dict[str, Any]) -> None:
    """Identity is compared, position is adopted."""
    state = loader_of(SAMPLERS[name]).state_dict()
    other = loader_of(partial(SAMPLERS[name], **change))
    before = other.state_dict()
    with pytest.raises(StateMismatch, match="order differs"):
        other.load_state_dict(state)
    assert other.state_dict() == before
    other.load_state_dict(state, accept={"order", "shuffle"})


@pytest.mark.parametrize("name", ["weighted", "with replacement", "part", "balanced", "repeated"])
def test_a_state_of_another_number_of_samples_is_refused(name: str) -> None:
    """Identity is compared, position is adopted."""
    state = loader_of(SAMPLERS[name]).state_dict()
    with pytest.raises(StateMismatch, match="length differs"):
        loader_of(partial(SAMPLERS[name], num_samples=29)).load_state_dict(state)


def test_states_of_different_samplers_are_not_mistaken_for_each_other() -> None:
    """None of them, nor the loader's own order."""
    loaders = {name: loader_of(make) for name, make in SAMPLERS.items()}
    loaders["own"] = StatefulGPULoader(Noisy(N), batch_size=4, shuffle=True, seed=5)
    loaders["in order"] = StatefulGPULoader(Noisy(N), batch_size=4, seed=5)
    for name, loader in loaders.items():
        for other, foreign in loaders.items():
            if other != name:
                with pytest.raises(StateMismatch, match=r"(order|length) differs"):
                    loader.load_state_dict(foreign.state_dict())


@pytest.mark.parametrize(
    "sampler",
    [
        ShuffledSampler(Indices(10**12), locality=Blocks(10**4, window=20)),
        ShuffledSampler(Indices(10**12), replacement=True, num_samples=10**11),
        WeightedSampler(WEIGHTS, 10**11),
        SubsetSampler(range(0, 10**12, 5)),
    ],
    ids=["even blocks", "with replacement", "weighted", "subset"],
)
def test_a_loader_goes_on_far_inside_an_endless_epoch(sampler: Any) -> None:
    """Constant time."""
    loader = StatefulGPULoader(Indices(10**12), batch_size=8, sampler=sampler, seed=1)
    position = 10**10
    loader.load_state_dict({**loader.state_dict(), "position": position})
    expected = sampler.order.of_epoch(1, 0)(np.arange(position, position + 8))
    assert next(iter(loader)).tolist() == expected.tolist()
    assert loader.state_dict()["position"] == position + 8


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_bad_samples_place_is_taken_by_another_of_the_subset(num_workers: int) -> None:
    """No sample outside the order ever appears."""
    bad = {3: partial(ValueError, "no label 3")}
    loader = StatefulGPULoader(
        Damaged(12, bad),
        batch_size=3,
        sampler=SubsetSampler([3, 5, 8]),
        seed=1,
        on_bad_sample="replace",
        num_workers=num_workers,
        collate_fn=as_it_is,
    )
    for _ in range(3):
        drawn = [sample["index"] for sample in flat(list(loader))]
        assert len(drawn) == 3
        assert set(drawn) == {5, 8}
    assert loader.bad_samples.total == 3

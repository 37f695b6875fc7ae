"""Samplers by position in the loader: exact, elastic, and refused by name."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.samplers import (
    Blocks,
    ShuffledSampler,
    SubsetSampler,
    WeightedSampler,
)
from tests.conformance import flat, refusal
from tests.damaged import Damaged
from tests.map_datasets import Indices, Noisy
from tests.samplers.makers import LENGTHS, SAMPLERS, TARGETS, WEIGHTS, Make, N

kinds = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)


def as_it_is(samples: list[Any]) -> list[Any]:
    return samples


def loader_of(make: Make, **arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(
        Noisy(N),
        sampler=make(),
        **{"batch_size": 4, "seed": 5, "collate_fn": as_it_is, **arguments},
    )


@kinds
def test_the_loader_delivers_the_samplers_order_with_a_key_for_each_position(make: Make) -> None:
    """Two samples of one index have separate draws, so repeats are augmented differently."""
    loader = loader_of(make)
    batches = list(loader)
    samples = [*flat(batches)]
    sampler = make(seed=5)
    assert [sample["index"] for sample in samples] == list(sampler)
    assert len(loader) == len(batches) == -(-sampler.order.num_positions // 4)
    assert len({sample["random"] for sample in samples}) == len(samples)


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
    state = loader_of(SAMPLERS[name]).state_dict()
    other = loader_of(partial(SAMPLERS[name], **change))
    refusal(other, state, "order")
    other.load_state_dict(state, accept={"order", "shuffle"})


@pytest.mark.parametrize("name", ["weighted", "with replacement", "part", "balanced", "repeated"])
def test_a_state_of_another_number_of_samples_is_refused(name: str) -> None:
    state = loader_of(SAMPLERS[name]).state_dict()
    refusal(loader_of(partial(SAMPLERS[name], num_samples=29)), state, "length")


def test_states_of_different_samplers_are_not_mistaken_for_each_other() -> None:
    """Nor for the loader's own order."""
    loaders = {name: loader_of(make) for name, make in SAMPLERS.items()}
    loaders["own"] = StatefulGPULoader(Noisy(N), batch_size=4, shuffle=True, seed=5)
    loaders["in order"] = StatefulGPULoader(Noisy(N), batch_size=4, seed=5)
    for name, loader in loaders.items():
        for other, foreign in loaders.items():
            if other != name:
                assert refusal(loader, foreign.state_dict()).field in ("order", "length")


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
def test_a_loader_resumes_far_inside_an_endless_epoch(sampler: Any) -> None:
    """In constant time."""
    loader = StatefulGPULoader(Indices(10**12), batch_size=8, sampler=sampler, seed=1)
    position = 10**10
    loader.load_state_dict({**loader.state_dict(), "position": position})
    expected = sampler.order.of_epoch(1, 0)(np.arange(position, position + 8))
    assert next(iter(loader)).tolist() == expected.tolist()
    assert loader.state_dict()["position"] == position + 8


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_bad_sample_is_replaced_by_another_of_the_subset(num_workers: int) -> None:
    """No sample comes from outside the order."""
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

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
)
from tests.conformance import flat, refusal
from tests.damaged import Damaged
from tests.datasets.shards import identity
from tests.map_datasets import Indices, Noisy
from tests.samplers.makers import SAMPLERS, WEIGHTS, Make, N

kinds = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)


def loader_of(make: Make, **arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(
        Noisy(N),
        sampler=make(),
        **{"batch_size": 4, "seed": 5, "collate_fn": identity, **arguments},
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


def test_a_state_of_another_order_is_refused() -> None:
    """By its name, which ``tests/samplers/test_sampler_states.py`` checks for every argument."""
    weighted = SAMPLERS["weighted"]
    state = loader_of(weighted).state_dict()
    other = loader_of(partial(weighted, weights=WEIGHTS + 1e-9))
    refusal(other, state, "order")
    other.load_state_dict(state, accept={"order", "shuffle"})
    refusal(loader_of(partial(weighted, num_samples=29)), state, "length")


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_samplers_state_is_not_mistaken_for_the_loaders_own_order(shuffle: bool) -> None:
    own = StatefulGPULoader(Noisy(N), batch_size=4, shuffle=shuffle, seed=5)
    for make in SAMPLERS.values():
        given = loader_of(make)
        for loader, foreign in ((own, given), (given, own)):
            assert refusal(loader, foreign.state_dict()).field in ("order", "length")


def test_a_loader_resumes_far_inside_an_endless_epoch() -> None:
    """In constant time."""
    sampler = ShuffledSampler(Indices(10**12), locality=Blocks(10**4, window=20))
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
        collate_fn=identity,
    )
    for _ in range(3):
        drawn = [sample["index"] for sample in flat(list(loader))]
        assert len(drawn) == 3
        assert set(drawn) == {5, 8}
    assert loader.bad_samples.total == 3

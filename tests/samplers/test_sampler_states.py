"""Every sampler by position, iterated by itself: its state, its pickle, its cost."""

from __future__ import annotations

import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader import DistributedShuffledSampler, StateMismatch
from stateful_gpu_loader.samplers import (
    BalancedSampler,
    Blocks,
    OrderSampler,
    PositionOrder,
    RepeatedSampler,
    ShuffledSampler,
    SubsetSampler,
    WeightedSampler,
    order_of,
)
from tests.map_datasets import Indices
from tests.samplers.makers import LENGTHS, SAMPLERS, TARGETS, WEIGHTS, Make, N

kinds = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)


@pytest.mark.fuzz
@kinds
def test_it_resumes_at_every_index_and_goes_on_with_later_epochs(make: Make) -> None:
    reference = make(seed=3)
    epochs = [list(reference) for _ in range(3)]
    assert len({tuple(order) for order in epochs}) == (3 if reference.order.is_shuffled else 1)
    for taken in range(len(epochs[1])):
        sampler = make(seed=3)
        list(sampler)
        running = iter(sampler)
        for _ in range(taken):
            next(running)
        resumed = make()
        resumed.load_state_dict(sampler.state_dict())
        assert resumed.state_dict() == sampler.state_dict()
        assert list(resumed) == epochs[1][taken:]
        assert list(resumed) == epochs[2]


@kinds
def test_it_is_a_sampler_of_torchs_with_a_length_and_plain_indices(make: Make) -> None:
    sampler = make(seed=3)
    drawn = list(sampler)
    assert isinstance(sampler, Sampler)
    assert len(sampler) == len(drawn)  # type: ignore[arg-type]
    assert {type(index) for index in drawn} == {int}
    assert isinstance(sampler.order, PositionOrder)
    assert order_of(sampler) is sampler.order


@kinds
def test_set_epoch_and_the_seed_choose_the_order(make: Make) -> None:
    sampler = make(seed=3)
    orders = [list(sampler) for _ in range(3)]
    again = make(seed=3)
    again.set_epoch(2)
    assert list(again) == orders[2]
    assert (list(make(seed=4)) != orders[0]) == sampler.order.is_shuffled


@kinds
def test_without_a_seed_it_is_0_also_in_the_state(make: Make) -> None:
    sampler = make()
    running = iter(sampler)
    taken = [next(running), next(running)]
    resumed = make()
    resumed.load_state_dict(sampler.state_dict())
    assert taken + list(resumed) == list(make(seed=0))


@kinds
def test_its_order_survives_pickling(make: Make) -> None:
    """Workers find replacements for bad samples in it."""
    order = make().order
    positions = np.arange(order.num_positions)
    drawn = order.of_epoch(3, 1)(positions)
    again = pickle.loads(pickle.dumps(order))
    assert (again.of_epoch(3, 1)(positions) == drawn).all()
    assert (again.algorithm, again.is_shuffled) == (order.algorithm, order.is_shuffled)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_state_of_another_sampler_is_refused(name: str) -> None:
    """Identity is compared, position is adopted."""
    states = {other: SAMPLERS[other](seed=3).state_dict() for other in SAMPLERS}
    sampler = SAMPLERS[name](seed=3)
    before = sampler.state_dict()
    assert before == states.pop(name)
    for state in states.values():
        with pytest.raises(StateMismatch, match="order differs"):
            sampler.load_state_dict(state)
    for field, value in (("length", 7), ("position", -1), ("position", 1000), ("seed", 4)):
        with pytest.raises(StateMismatch, match=f"{field} differs"):
            sampler.load_state_dict({**before, field: value})
    assert sampler.state_dict() == before


def identify(value: Any) -> str:
    """Names for the cases below."""
    return value if isinstance(value, str) else " and ".join(value)


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("even blocks", {"locality": Blocks(8, window=2)}),
    ("even blocks", {"locality": Blocks(7, window=3)}),
    ("uneven blocks", {"locality": Blocks(LENGTHS[::-1], window=3)}),
    ("with replacement", {"num_samples": 41}),
    ("part", {"num_samples": 31}),
    ("weighted", {"weights": WEIGHTS + 1e-9}),
    ("weighted", {"num_samples": 51}),
    ("weighted", {"replacement": False, "num_samples": 30}),
    ("weighted, without replacement", {"weights": WEIGHTS * (1 + 1e-15)}),
    ("balanced", {"targets": TARGETS[::-1]}),
    ("balanced", {"num_samples": N + 1}),
    ("subset", {"indices": range(2, N, 2)}),
    ("subset", {"shuffle": False}),
    ("subset in order", {"indices": [39, 5, 0, 5, 17, 8, 1, 2, 30, 11, 4, 4, 7, 29, 3]}),
    ("repeated", {"num_repeats": 4}),
    ("repeated", {"shuffle": False}),
    ("repeated", {"adjacent": False}),
]


@pytest.mark.parametrize(("name", "change"), CHANGES, ids=identify)
def test_a_state_of_other_arguments_is_refused(name: str, change: dict[str, Any]) -> None:
    """Identity is compared, position is adopted."""
    state = SAMPLERS[name](seed=3).state_dict()
    with pytest.raises(StateMismatch, match=r"(order|length) differs"):
        SAMPLERS[name](seed=3, **change).load_state_dict(state)


FAR = 10**9
HUGE: dict[str, OrderSampler] = {
    "even blocks": ShuffledSampler(Indices(4 * FAR), locality=Blocks(1000, window=50)),
    "with replacement": ShuffledSampler(Indices(7 * FAR), True, 4 * FAR),
    "several rounds": ShuffledSampler(Indices(FAR // 3), num_samples=4 * FAR),
    "weighted": WeightedSampler(WEIGHTS, 4 * FAR),
    "balanced": BalancedSampler(TARGETS, 4 * FAR),
    "subset": SubsetSampler(range(0, 12 * FAR, 3)),
    "repeated": RepeatedSampler(Indices(2 * FAR), 3),
    "repeated anywhere": RepeatedSampler(Indices(2 * FAR), 3, adjacent=False),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_far_position_costs_nothing(name: str) -> None:
    """Constant time; nothing of the epoch's size is built."""
    sampler = HUGE[name]
    positions = np.array([0, FAR, 4 * FAR - 1])
    tracemalloc.start()
    try:
        order = sampler.order.of_epoch(1, 0)
        drawn = order(positions)
        sampler.load_state_dict({**sampler.state_dict(), "seed": 1, "position": FAR})
        assert next(iter(sampler)) == drawn[1]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert order.n >= 4 * FAR
    assert [int(order(positions[i : i + 1])[0]) for i in range(3)] == drawn.tolist()
    assert peak < 8 * 2**20


def make_shuffled() -> ShuffledSampler:
    return ShuffledSampler(Indices(50), seed=3)


def make_distributed() -> DistributedShuffledSampler:
    return DistributedShuffledSampler(Indices(50), 3, 1, seed=3)


@pytest.mark.parametrize("make", [make_shuffled, make_distributed])
def test_a_sampler_resumes_at_every_index_and_goes_on_with_later_epochs(make: Any) -> None:
    reference = make()
    epochs = [list(reference) for _ in range(3)]
    assert len({tuple(order) for order in epochs}) == 3
    for taken in range(len(epochs[1])):
        sampler = make()
        list(sampler)
        running = iter(sampler)
        for _ in range(taken):
            next(running)
        resumed = make()
        resumed.load_state_dict(sampler.state_dict())
        assert resumed.state_dict() == sampler.state_dict()
        assert list(resumed) == epochs[1][taken:]
        assert list(resumed) == epochs[2]


def test_ranks_together_yield_every_index_and_the_padding() -> None:
    whole = list(ShuffledSampler(Indices(50), seed=3))
    parts = [list(DistributedShuffledSampler(Indices(50), 3, r, seed=3)) for r in range(3)]
    merged = [index for together in zip(*parts, strict=True) for index in together]
    assert merged == whole + whole[:1]
    dropped = [
        list(DistributedShuffledSampler(Indices(50), 3, r, seed=3, drop_last=True))
        for r in range(3)
    ]
    assert [i for together in zip(*dropped, strict=True) for i in together] == whole[:48]


def test_set_epoch_chooses_the_order() -> None:
    sampler = make_shuffled()
    orders = [list(sampler) for _ in range(4)]
    again = make_shuffled()
    again.set_epoch(3)
    assert list(again) == orders[3]


def test_set_ranks_gives_another_rank_its_share() -> None:
    sampler = DistributedShuffledSampler(Indices(10), 1, 0, shuffle=False)
    sampler.set_ranks(4, 3)
    assert len(sampler) == 3
    assert list(sampler) == [3, 7, 1]


@pytest.mark.parametrize("make", [make_shuffled, make_distributed])
def test_a_foreign_state_is_refused_and_changes_nothing(make: Any) -> None:
    sampler = make()
    before = sampler.state_dict()
    for field, value in (("seed", 4), ("epoch", None), ("position", "0")):
        with pytest.raises(StateMismatch, match=f"{field} differs"):
            sampler.load_state_dict({**before, field: value})
        assert sampler.state_dict() == before


def test_the_sampler_serves_torchdatas_loader_with_its_state() -> None:
    """They are stateful samplers for any loader that honours such."""

    def make() -> StatefulDataLoader:
        return StatefulDataLoader(Indices(50), batch_size=4, sampler=make_shuffled())

    reference = [batch.tolist() for batch in make()]
    loader = make()
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in resumed] == reference[5:]

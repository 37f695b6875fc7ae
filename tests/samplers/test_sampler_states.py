"""Every sampler by position, iterated by itself: its state, its pickle, its cost."""

from __future__ import annotations

import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader import DistributedShuffledSampler, StateMismatch
from stateful_gpu_loader.datasets import MixedDataset
from stateful_gpu_loader.samplers import (
    BalancedSampler,
    Blocks,
    LastBatchPolicy,
    OrderSampler,
    PositionOrder,
    RepeatedSampler,
    ShuffledSampler,
    SubsetSampler,
    WeightedSampler,
    order_of,
)
from stateful_gpu_loader.samplers.orders import digest_of
from tests.map_datasets import Indices
from tests.samplers.makers import EVERY, LENGTHS, TARGETS, WEIGHTS, Make, N

kinds = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)


@pytest.mark.fuzz
@kinds
def test_it_resumes_at_every_index_and_continues_with_later_epochs(make: Make) -> None:
    reference = make(seed=3)
    epochs = [list(reference) for _ in range(3)]
    for taken in range(len(epochs[1])):
        sampler = make(seed=3)
        list(sampler)
        running = iter(sampler)
        for _ in range(taken):
            next(running)
        resumed = make(seed=3)
        resumed.load_state_dict(sampler.state_dict())
        assert resumed.state_dict() == sampler.state_dict()
        assert list(resumed) == epochs[1][taken:]
        if taken % 8 == 0:
            assert list(resumed) == epochs[2]


@kinds
def test_it_is_a_sampler_of_torchs_with_a_length_and_plain_indices(make: Make) -> None:
    sampler = make(seed=3)
    length, drawn = len(sampler), list(sampler)  # type: ignore[arg-type]
    assert isinstance(sampler, Sampler)
    assert length == len(drawn)
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
    if sampler.order.is_shuffled:
        assert len({tuple(order) for order in orders}) == 3
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
def test_any_positions_are_looked_up_as_in_the_whole_epoch(make: Make) -> None:
    """Ranks take every n-th position, and replacements take any; also from a pickled order."""
    order = make().order
    epoch = order.of_epoch(3, 1)
    whole = epoch(np.arange(epoch.n))
    positions = np.random.default_rng(1).integers(epoch.n, size=(4, 9))
    alone = np.array([epoch.n - 1])
    again = pickle.loads(pickle.dumps(order))
    assert (again.algorithm, again.is_shuffled) == (order.algorithm, order.is_shuffled)
    for found in (epoch, again.of_epoch(3, 1)):
        assert found(positions).dtype == np.int64
        assert np.array_equal(found(positions), whole[positions])
        assert np.array_equal(found(alone), whole[alone])
        assert found(np.arange(0)).shape == (0,)


@pytest.mark.parametrize("name", EVERY)
def test_a_state_of_another_sampler_is_refused(name: str) -> None:
    """Identity is compared, position is adopted."""
    states = {other: EVERY[other](seed=3).state_dict() for other in EVERY}
    sampler = EVERY[name](seed=3)
    before = sampler.state_dict()
    assert before == states.pop(name)
    for state in states.values():
        with pytest.raises(StateMismatch) as refused:
            sampler.load_state_dict(state)
        assert refused.value.field in ("order", "length")
    wrong = {"length": [7], "position": [-1, 1000, "0"], "seed": [4], "epoch": [None]}
    for field, values in wrong.items():
        for value in values:
            with pytest.raises(StateMismatch) as refused:
                sampler.load_state_dict({**before, field: value})
            assert (refused.value.field, refused.value.saved) == (field, value)
    assert sampler.state_dict() == before


CHANGES: list[tuple[str, list[dict[str, Any]]]] = [
    (
        "even blocks",
        [
            {"locality": Blocks(8, window=2)},
            {"locality": Blocks(7, window=3)},
            {"locality": Blocks([7] * 5 + [5], window=2)},
        ],
    ),
    ("uneven blocks", [{"locality": Blocks(LENGTHS[::-1], window=3)}]),
    ("with replacement", [{"num_samples": 41}, {"replacement": False}]),
    ("part", [{"num_samples": 31}, {"num_samples": N}, {"replacement": True}]),
    (
        "weighted",
        [
            {"weights": WEIGHTS + 1e-9},
            {"num_samples": 51},
            {"replacement": False, "num_samples": 30},
        ],
    ),
    ("weighted, without replacement", [{"weights": WEIGHTS * (1 + 1e-15)}]),
    ("balanced", [{"targets": TARGETS[::-1]}, {"targets": TARGETS % 3}, {"num_samples": N + 1}]),
    ("subset", [{"indices": range(2, N, 2)}, {"indices": [*range(3, N, 2)]}, {"shuffle": False}]),
    (
        "subset in order",
        [{"indices": [39, 5, 0, 5, 17, 8, 1, 2, 30, 11, 4, 4, 7, 29, 3]}, {"shuffle": True}],
    ),
    ("repeated", [{"num_repeats": 4}, {"shuffle": False}, {"adjacent": False}]),
    (
        "mixture",
        [
            {"weights": [0.6, 0.4]},
            {"block_length": 9},
            {"num_samples": 32},
            {"datasets": [range(21), range(7)]},
            {"datasets": [MixedDataset([range(20)], num_samples=20), range(7)]},
            {"shuffle": False},
        ],
    ),
    (
        "shard in order, fill",
        [
            {"shard_id": 2},
            {"num_shards": 4},
            {"batch_size": 4},
            {"stick_to_shard": True},
            {"pad_last_batch": True},
            {"last_batch_policy": LastBatchPolicy.PARTIAL},
            {"random_shuffle": True},
            {"shuffle_after_epoch": True},
        ],
    ),
]


@pytest.mark.parametrize(("name", "changes"), CHANGES, ids=[name for name, _ in CHANGES])
def test_a_state_of_other_arguments_is_refused(name: str, changes: list[dict[str, Any]]) -> None:
    """Identity is compared, position is adopted; no two arguments have one name."""
    state = EVERY[name](seed=3).state_dict()
    orders = {(state["order"], state["length"])}
    for change in changes:
        other = EVERY[name](seed=3, **change)
        before = other.state_dict()
        orders.add((before["order"], before["length"]))
        with pytest.raises(StateMismatch) as refused:
            other.load_state_dict(state)
        assert refused.value.field in ("order", "length")
        assert other.state_dict() == before
        assert len(before["order"]) < 300
    assert len(orders) == 1 + len(changes)


def test_a_digest_names_the_numbers_and_their_order() -> None:
    """Identity is compared, position is adopted."""
    arrays = [
        np.array([1, 2, 3]),
        np.array([1, 3, 2]),
        np.array([1, 2, 3, 0]),
        np.array([1.0, 2.0, 3.0]),
        np.array([], dtype=np.int64),
    ]
    assert len({digest_of(array) for array in arrays}) == len(arrays)
    big_endian = np.array([1, 2, 3], dtype=">i8")
    strided = np.array([1, 9, 2, 9, 3, 9])[::2]
    assert digest_of(big_endian) == digest_of(strided) == digest_of(arrays[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda **given: ShuffledSampler(range(20), **given),
        lambda **given: WeightedSampler(WEIGHTS, 30, **given),
        lambda **given: SubsetSampler(range(20), **given),
    ],
    ids=["shuffled", "weighted", "subset"],
)
def test_a_generator_gives_the_seed_and_does_not_move(make: Make) -> None:
    generators = [torch.Generator().manual_seed(seed) for seed in (3, 3, 4)]
    before = generators[0].get_state()
    drawn = [list(make(generator=generator)) for generator in generators]
    assert drawn[0] == drawn[1] != drawn[2]
    assert (generators[0].get_state() == before).all()
    with pytest.raises(ValueError, match=r"seed = 1 .*generator"):
        make(generator=generators[0], seed=1)


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


def test_set_ranks_gives_another_rank_its_share() -> None:
    sampler = DistributedShuffledSampler(Indices(10), 1, 0, shuffle=False)
    sampler.set_ranks(4, 3)
    assert len(sampler) == 3
    assert list(sampler) == [3, 7, 1]


def test_the_sampler_serves_torchdatas_loader_with_its_state() -> None:
    """They are stateful samplers for any loader that honours these."""

    def make() -> StatefulDataLoader:
        sampler = ShuffledSampler(Indices(50), seed=3)
        return StatefulDataLoader(Indices(50), batch_size=4, sampler=sampler)

    reference = [batch.tolist() for batch in make()]
    loader = make()
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in resumed] == reference[5:]

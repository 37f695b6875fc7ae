"""ShardSampler by itself: its state, its arguments and its positions (C10, B2)."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from stateful_gpu_loader import StateMismatch
from stateful_gpu_loader.samplers.sharded import ShardSampler
from stateful_gpu_loader.samplers.sharding import LastBatchPolicy
from tests.map_datasets import Indices
from tests.samplers.statistics import assert_uniform

GOLDEN = [[5, 3, 4, 6, 9, 7], [8, 2, 1]]
GOLDEN_AFTER = [2, 9, 0, 8, 5, 7]
SHUFFLES: list[dict[str, Any]] = [
    {},
    {"stick_to_shard": True},
    {"random_shuffle": True},
    {"random_shuffle": True, "stick_to_shard": True},
    {"shuffle_after_epoch": True},
]
MODES = [
    {"pad_last_batch": pad, "last_batch_policy": policy, **shuffle}
    for pad, policy, shuffle in itertools.product((False, True), LastBatchPolicy, SHUFFLES)
]


def make(**arguments: Any) -> ShardSampler:
    defaults = {"data_source": Indices(23), "batch_size": 3, "shard_id": 1, "num_shards": 3}
    return ShardSampler(**{**defaults, "seed": 6, **arguments})


@pytest.mark.dali
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_sampler_resumes_at_every_index_and_goes_on_with_later_epochs(
    mode: dict[str, Any],
) -> None:
    reference = make(**mode)
    epochs = [list(reference) for _ in range(4)]
    for taken in range(len(epochs[1])):
        sampler = make(**mode)
        list(sampler)
        running = iter(sampler)
        for _ in range(taken):
            next(running)
        resumed = make(**mode)
        resumed.load_state_dict(sampler.state_dict())
        assert resumed.state_dict() == sampler.state_dict()
        assert [list(resumed) for _ in range(3)] == [epochs[1][taken:], *epochs[2:]]


@pytest.mark.parametrize(
    "changed",
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
    ids=str,
)
def test_a_state_of_another_shard_is_refused_by_name(changed: dict[str, Any]) -> None:
    """C10: where DALI restores in silence (FACTS.md)."""
    state = make().state_dict()
    other = make(**changed)
    before = other.state_dict()
    name, value = next(iter(changed.items()))
    shown = value.value if isinstance(value, LastBatchPolicy) else value
    with pytest.raises(StateMismatch, match=f"order differs.*expected was .*{name}={shown}[,)]"):
        other.load_state_dict(state)
    assert other.state_dict() == before


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_any_positions_are_looked_up_as_in_the_whole_epoch(mode: dict[str, Any]) -> None:
    order = make(**mode).order.of_epoch(6, 5)
    whole = order(np.arange(order.n))
    positions = np.random.default_rng(1).integers(order.n, size=(3, 5))
    assert order(positions).dtype == np.int64
    assert np.array_equal(order(positions), whole[positions])
    assert order(np.arange(0)).shape == (0,)


@pytest.mark.parametrize("policy", list(LastBatchPolicy))
def test_padded_epochs_give_each_shard_and_nothing_else(policy: LastBatchPolicy) -> None:
    """All shards of an epoch are a pass over the dataset, whatever rotates or is shuffled."""
    for shuffle in SHUFFLES:
        samplers = [
            make(shard_id=i, pad_last_batch=True, last_batch_policy=policy, **shuffle)
            for i in range(3)
        ]
        for _ in range(4):
            counts = Counter(index for sampler in samplers for index in sampler)
            if policy is LastBatchPolicy.PARTIAL:
                assert counts == Counter(range(23))
            elif policy is LastBatchPolicy.FILL:
                assert set(counts) == set(range(23))
            elif not shuffle.get("random_shuffle"):
                assert max(counts.values()) == 1


def test_permutations_of_shards_and_turns_differ() -> None:
    """Shards of one size, and a shard's epochs."""
    orders = [
        [i % 20 for i in sampler]
        for shard_id in range(3)
        for sampler in [
            ShardSampler(
                range(60),
                20,
                shard_id=shard_id,
                num_shards=3,
                random_shuffle=True,
                seed=1,
                stick_to_shard=True,
            )
        ]
        * 3
    ]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len({tuple(order) for order in orders}) == 9


def test_the_order_within_a_shard_is_uniform() -> None:
    """All 24 orders of a shard of 4 come equally often, over turns and seeds."""
    seen: Counter[tuple[int, ...]] = Counter()
    for seed in range(200):
        sampler = ShardSampler(range(8), 4, num_shards=2, random_shuffle=True, seed=seed)
        seen.update(tuple(index % 4 for index in sampler) for _ in range(4))
    assert len(seen) == 24
    assert_uniform(list(seen.values()))


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_late_epoch_of_a_large_dataset_is_found_without_passing_through(
    mode: dict[str, Any],
) -> None:
    """B10: constant time, also where the stream's places are beyond int64."""
    n, epoch = (1 << 45) + 1, 2**32 - 2
    sampler = make(data_source=Indices(n), num_shards=7, batch_size=256, **mode)
    order = sampler.order.of_epoch(6, epoch)
    shard = 1 if mode.get("stick_to_shard") else (1 + epoch) % 7
    for positions in (np.arange(64), np.arange(order.n - 64, order.n)):
        indices = order(positions)
        assert ((indices >= 0) & (indices < n)).all()
        if mode["pad_last_batch"] and not mode.get("shuffle_after_epoch"):
            assert n * shard // 7 <= indices.min() <= indices.max() < n * (shard + 1) // 7


def test_epochs_that_fill_up_from_the_next_shard_follow_one_another_without_a_gap() -> None:
    """What one epoch read ahead the next does not read again, as with DALI."""
    sampler = make(data_source=Indices(10**12 + 39), num_shards=5, batch_size=64)
    for epoch in (0, 1, 10**6, 2**31):
        last = sampler.order.of_epoch(0, epoch)
        first = sampler.order.of_epoch(0, epoch + 1)
        end = last(np.array([last.n - 1])).item()
        assert first(np.array([0])).item() == (end + 1) % (10**12 + 39)
        assert last.n % 64 == 0


def test_the_order_is_kept() -> None:
    """B8: a state that was saved today is resumed by later releases."""
    sampler = make(data_source=Indices(10), random_shuffle=True)
    assert [list(sampler) for _ in range(2)] == GOLDEN
    after = make(data_source=Indices(10), shuffle_after_epoch=True)
    assert list(after) == GOLDEN_AFTER
    assert after.order.algorithm == (
        "shards-1(batch_size=3, shard_id=1, num_shards=3, stick_to_shard=False, "
        "pad_last_batch=False, last_batch_policy=fill, random_shuffle=False, "
        "shuffle_after_epoch=True)"
    )


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"batch_size": 0}, ValueError, "batch_size = 0 is below 1"),
        ({"num_shards": 0}, ValueError, "num_shards = 0 is below 1"),
        ({"shard_id": -1}, ValueError, "shard_id = -1 is below 0"),
        ({"shard_id": 3}, ValueError, "shard_id = 3 is not below num_shards = 3"),
        ({"batch_size": 2.0}, TypeError, "float"),
        ({"last_batch_policy": "fill"}, TypeError, "'fill' is a str.*LastBatchPolicy.FILL"),
        ({"data_source": []}, ValueError, "0 samples cannot be divided"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(
    changed: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make(**changed)


def test_whether_chance_is_in_the_order_is_told() -> None:
    assert [make(**shuffle).order.is_shuffled for shuffle in SHUFFLES] == [
        False, False, True, True, True
    ]  # fmt: skip

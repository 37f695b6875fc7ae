"""One sampler of every kind that is addressed by position."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from stateful_gpu_loader.datasets import MixedDataset
from stateful_gpu_loader.samplers import (
    BalancedSampler,
    Blocks,
    DistributedShuffledSampler,
    LastBatchPolicy,
    MixtureSampler,
    OrderSampler,
    RepeatedSampler,
    ShardSampler,
    ShuffledSampler,
    SubsetSampler,
    WeightedSampler,
)
from tests.map_datasets import Indices

N = 40
WEIGHTS = np.random.default_rng(0).pareto(1.5, size=N) * (np.arange(N) % 5 > 0)
TARGETS = np.repeat([7, 3, 9], [25, 12, 3])
LENGTHS = [7, 0, 1, 12, 3, 0, 8, 9]
Make = Callable[..., OrderSampler]
Arguments = dict[str, Any]


def make_even_blocks(**arguments: Any) -> OrderSampler:
    return ShuffledSampler(Indices(N), **{"locality": Blocks(7, window=2), **arguments})


def make_uneven_blocks(**arguments: Any) -> OrderSampler:
    return ShuffledSampler(Indices(N), **{"locality": Blocks(LENGTHS, window=3), **arguments})


def make_with_replacement(**arguments: Any) -> OrderSampler:
    return ShuffledSampler(Indices(N), **{"replacement": True, **arguments})


def make_part(**arguments: Any) -> OrderSampler:
    return ShuffledSampler(Indices(N), **{"num_samples": 30, **arguments})


def make_several_rounds(**arguments: Any) -> OrderSampler:
    return ShuffledSampler(Indices(13), **{"num_samples": 45, **arguments})


def make_weighted(**arguments: Any) -> OrderSampler:
    return WeightedSampler(**{"weights": WEIGHTS, "num_samples": 50, **arguments})


def make_weighted_once(**arguments: Any) -> OrderSampler:
    return make_weighted(**{"replacement": False, "num_samples": 25, **arguments})


def make_balanced(**arguments: Any) -> OrderSampler:
    return BalancedSampler(**{"targets": TARGETS, **arguments})


def make_subset(**arguments: Any) -> OrderSampler:
    return SubsetSampler(**{"indices": range(3, N, 2), **arguments})


def make_subset_in_order(**arguments: Any) -> OrderSampler:
    return make_subset(
        **{
            "shuffle": False,
            "indices": [5, 39, 0, 5, 17, 8, 1, 2, 30, 11, 4, 4, 7, 29, 3],
            **arguments,
        }
    )


def make_repeated(**arguments: Any) -> OrderSampler:
    return RepeatedSampler(Indices(13), **arguments)


def make_repeated_anywhere(**arguments: Any) -> OrderSampler:
    return make_repeated(**{"adjacent": False, "num_samples": 41, **arguments})


SAMPLERS: dict[str, Make] = {
    "even blocks": make_even_blocks,
    "uneven blocks": make_uneven_blocks,
    "with replacement": make_with_replacement,
    "part": make_part,
    "several rounds": make_several_rounds,
    "weighted": make_weighted,
    "weighted, without replacement": make_weighted_once,
    "balanced": make_balanced,
    "subset": make_subset,
    "subset in order": make_subset_in_order,
    "repeated": make_repeated,
    "repeated anywhere": make_repeated_anywhere,
}
"""Samplers over datasets of N samples."""


def make_mixture(*, shuffle: bool = True, seed: int | None = None, **arguments: Any) -> Any:
    parts: Arguments = {
        "datasets": [range(20), range(7)],
        "weights": [0.7, 0.3],
        "num_samples": 31,
        "block_length": 8,
    }
    return MixtureSampler(MixedDataset(**{**parts, **arguments}), shuffle=shuffle, seed=seed)


def make_nested_mixture(*, seed: int | None = None) -> Any:
    inner = MixedDataset([range(4), range(3)], [1, 2], num_samples=9)
    return make_mixture(datasets=[range(20), inner], seed=seed)


def make_shard(**arguments: Any) -> Any:
    given = {"data_source": Indices(23), "batch_size": 3, "shard_id": 1, "num_shards": 3}
    return ShardSampler(**{**given, **arguments})


SHUFFLES: dict[str, Arguments] = {
    "in order": {},
    "that stays": {"stick_to_shard": True},
    "shuffled": {"random_shuffle": True},
    "shuffled, that stays": {"random_shuffle": True, "stick_to_shard": True},
    "shuffled after each epoch": {"shuffle_after_epoch": True},
}
POLICIES = (LastBatchPolicy.FILL, LastBatchPolicy.DROP, LastBatchPolicy.PARTIAL)
SHARDS: dict[str, Make] = {
    f"shard {name}{', padded' * pad}, {policy.value}": partial(
        make_shard, pad_last_batch=pad, last_batch_policy=policy, **shuffle
    )
    for name, shuffle in SHUFFLES.items()
    for pad, policy in product((False, True), POLICIES)
}
_LAST_BATCHES = ("fill", "padded, fill", "drop", "padded, partial", "partial")

EVERY: dict[str, Make] = {
    **SAMPLERS,
    "shuffled": lambda **arguments: ShuffledSampler(Indices(50), **arguments),
    "distributed": lambda seed=None, **_: DistributedShuffledSampler(Indices(52), 3, 1, seed=seed),
    "mixture": make_mixture,
    "mixture in order": partial(make_mixture, shuffle=False),
    "mixture of a mixture": make_nested_mixture,
    **{
        f"shard {name}, {last}": SHARDS[f"shard {name}, {last}"]
        for name, last in zip(SHUFFLES, _LAST_BATCHES, strict=True)
    },
}
"""All samplers; of the shards, each shuffle and each kind of last batch once."""

"""Seeds, epochs and samplers: what decides the order, and that all ways to ask for it agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler, get_worker_info

from stateful_gpu_loader import (
    DistributedShuffledSampler,
    ShuffledSampler,
    StatefulGPULoader,
)
from tests.conformance import loaded, same
from tests.generators import generators
from tests.map_datasets import Indices, Noisy


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_draws_from_the_callers_generators_once(num_workers: int) -> None:
    """Like torch's DataLoader in its first pass, and never again."""
    torch.manual_seed(11)
    torch.empty((), dtype=torch.int64).random_()
    once = generators()
    torch.manual_seed(11)
    loader = StatefulGPULoader(Noisy(12), batch_size=4, shuffle=True, num_workers=num_workers)
    asked = loader.state_dict()["seed"]
    for _ in range(3):
        list(loader)
    assert generators()[2] == once[2]
    assert loader.state_dict()["seed"] == asked


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_resumed_or_seeded_loader_draws_nothing_from_the_caller(asked_before: bool) -> None:
    """Otherwise a resumed run's dropout would differ from the uninterrupted run's.

    Asking for a state before the load settles a seed, which the load replaces.
    """
    state = StatefulGPULoader(Noisy(12), batch_size=4, shuffle=True).state_dict()
    before = generators()
    resumed = StatefulGPULoader(Noisy(12), batch_size=4, shuffle=True)
    if asked_before:
        resumed.state_dict()
    resumed.load_state_dict(state)
    list(resumed)
    list(StatefulGPULoader(Noisy(12), batch_size=4, shuffle=True, seed=3))
    assert generators() == before


def test_seed_none_is_settled_from_the_generator_given() -> None:
    def seed_drawn_from(seed: int) -> int:
        generator = torch.Generator().manual_seed(seed)
        loader = StatefulGPULoader(Indices(9), shuffle=True, generator=generator)
        value: int = loader.state_dict()["seed"]
        return value

    assert seed_drawn_from(1) == seed_drawn_from(1)
    assert seed_drawn_from(1) != seed_drawn_from(2)


def test_seed_none_is_zero_with_several_ranks() -> None:
    for rank in range(2):
        loader = StatefulGPULoader(Indices(9), shuffle=True, num_replicas=2, rank=rank)
        assert loader.state_dict()["seed"] == 0


def test_default_samplers_are_what_trainers_ask_for() -> None:
    """Trainers check with isinstance."""
    assert isinstance(StatefulGPULoader(Indices(9), shuffle=True).sampler, RandomSampler)
    ranked = StatefulGPULoader(Indices(9), shuffle=True, num_replicas=2, rank=1).sampler
    assert isinstance(ranked, DistributedSampler)
    assert (ranked.num_replicas, ranked.rank) == (2, 1)


def test_sampler_and_batch_sampler_yield_plain_indices_of_the_order() -> None:
    """Calls that torch's loaders accept work and mean the same."""
    loader = StatefulGPULoader(Indices(9), batch_size=4, shuffle=True, seed=2)
    order = [index for batch in loader for index in batch.tolist()]
    assert list(loader.sampler) == order
    loader = StatefulGPULoader(Indices(9), batch_size=4, shuffle=True, seed=2)
    assert [index for batch in loader.batch_sampler for index in batch] == order


def test_our_samplers_may_be_given_and_keep_the_state_a_position() -> None:
    """A given sampler's seed is the loader's."""
    own = StatefulGPULoader(Indices(10), batch_size=4, shuffle=True, seed=4)
    wanted = list(own)
    for seed in (4, None):
        sampler = ShuffledSampler(Indices(10), seed=4)
        given = StatefulGPULoader(Indices(10), batch_size=4, sampler=sampler, seed=seed)
        assert same(list(given), wanted)
        assert given.state_dict() == own.state_dict()
        assert given.state_dict()["user"] is None


def test_a_given_distributed_sampler_of_ours_is_not_sharded_again() -> None:
    samplers = [DistributedShuffledSampler(Indices(10), 2, rank, seed=4) for rank in range(2)]
    seen = [
        index
        for sampler in samplers
        for batch in StatefulGPULoader(Indices(10), batch_size=2, sampler=sampler, seed=4)
        for index in batch.tolist()
    ]
    assert sorted(seen) == list(range(10))


def test_a_position_loaded_into_the_sampler_is_not_dropped_in_silence() -> None:
    sampler = loaded(ShuffledSampler(Indices(10), seed=4), {"seed": 4, "epoch": 1, "position": 5})
    with pytest.raises(ValueError, match="load the loader's state into the loader"):
        next(iter(StatefulGPULoader(Indices(10), sampler=sampler)))


def test_a_subclass_of_our_sampler_may_change_the_order() -> None:
    class Reversed(ShuffledSampler):
        def __iter__(self) -> Any:
            return iter([7, 5, 3])

    loader = StatefulGPULoader(Indices(8), sampler=Reversed(Indices(8)))
    assert [batch.item() for batch in loader] == [7, 5, 3]


def test_an_empty_batch_sampler_yields_nothing() -> None:
    """An empty batch sampler is falsy, but not None."""
    assert list(StatefulGPULoader(Indices(4), batch_sampler=[])) == []


def test_the_loaders_sampler_yields_the_order_of_the_current_pass() -> None:
    loader = StatefulGPULoader(Indices(9), batch_size=9, shuffle=True)
    for _ in range(3):
        batches = iter(loader)
        delivered = next(batches).tolist()
        assert list(loader.sampler) == delivered
        list(batches)


def test_a_rebuilt_loader_takes_the_state_of_the_original() -> None:
    """Trainers rebuild a loader from its public attributes, such as its sampler."""
    loader = StatefulGPULoader(Indices(9), batch_size=4, shuffle=True, seed=3)
    rebuilt = StatefulGPULoader(
        loader.dataset, batch_size=loader.batch_size, sampler=loader.sampler, seed=loader.seed
    )
    batches = iter(loader)
    next(batches)
    rebuilt.load_state_dict(loader.state_dict())
    assert same(list(rebuilt), list(batches))


def test_integers_of_numpy_are_integers() -> None:
    loader = StatefulGPULoader(
        Indices(9), shuffle=True, seed=np.int64(3), num_replicas=np.int64(1), rank=np.int64(0)
    )
    loader.set_epoch(np.int64(2))
    assert json.loads(json.dumps(loader.state_dict()))["epoch"] == 2
    loader.sampler.set_epoch(np.int64(4))
    assert json.loads(json.dumps(loader.state_dict()))["epoch"] == 4


def test_set_epoch_of_the_loader_and_of_its_sampler_mean_the_same() -> None:
    def order(set_epoch: Callable[[StatefulGPULoader[Any]], None]) -> list[int]:
        loader = StatefulGPULoader(Indices(20), batch_size=20, shuffle=True, seed=1)
        set_epoch(loader)
        assert loader.state_dict()["epoch"] == 6
        batch: list[int] = next(iter(loader)).tolist()
        return batch

    of_sampler = order(lambda loader: loader.sampler.set_epoch(6))
    assert order(lambda loader: loader.set_epoch(6)) == of_sampler
    ranked = StatefulGPULoader(Indices(8), num_replicas=1, rank=0, seed=1)
    ranked.sampler.set_epoch(3)
    assert ranked.state_dict()["epoch"] == 3


def test_workers_get_new_seeds_in_every_pass() -> None:
    """Otherwise values that worker_init_fn derives from its seed would repeat in every epoch."""

    class Seeded(Indices):
        def __getitem__(self, index: int) -> int:
            worker = get_worker_info()
            assert worker is not None
            return worker.seed % 2**62

    def seeds(loader: StatefulGPULoader[Any]) -> list[Any]:
        return [[batch.tolist() for batch in loader] for _ in range(2)]

    one, other = (seeds(StatefulGPULoader(Seeded(4), num_workers=2, seed=seed)) for seed in (1, 1))
    assert one == other
    assert one[0] != one[1]


def test_a_seed_of_none_takes_that_of_the_state() -> None:
    state = StatefulGPULoader(Indices(20), shuffle=True, seed=1).state_dict()
    loader = loaded(StatefulGPULoader(Indices(20), shuffle=True), state)
    assert loader.state_dict() == state


def test_a_dataset_that_grows_keeps_the_order_of_a_pass_that_has_begun() -> None:
    dataset = Indices(100)
    loader = StatefulGPULoader(dataset, batch_size=1, shuffle=True, seed=1)
    batches = iter(loader)
    seen = [next(batches).item() for _ in range(3)]
    dataset.length = 150
    seen += [batch.item() for batch in batches]
    assert sorted(seen) == list(range(100))
    loader.load_state_dict(loader.state_dict())
    assert len(list(loader)) == 150


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_loader_divides_the_order_of_a_given_sampler_among_its_ranks(rank: int) -> None:
    ranks = {"num_replicas": 3, "rank": rank, "batch_size": 4, "seed": 5}
    own = StatefulGPULoader(Indices(50), shuffle=True, **ranks)
    given = StatefulGPULoader(Indices(50), sampler=ShuffledSampler(Indices(50)), **ranks)
    assert given.state_dict() == own.state_dict()
    assert len(given) == len(own)
    assert same(list(given), list(own))

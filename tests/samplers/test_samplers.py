"""Samplers that are addressed by position, iterated by themselves."""

from __future__ import annotations

from typing import Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader import DistributedShuffledSampler, ShuffledSampler, StateMismatch
from tests.map_datasets import Indices


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

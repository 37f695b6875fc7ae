"""What a loader refuses, and that nothing is changed by it (B7, law 4, bad input)."""

from __future__ import annotations

from typing import Any

import pytest

from stateful_gpu_loader import (
    DistributedShuffledSampler,
    ShuffledSampler,
    StatefulGPULoader,
    StateMismatch,
)
from tests.map_datasets import Indices


def make_shuffled() -> ShuffledSampler:
    return ShuffledSampler(Indices(8), seed=4)


def make_distributed() -> DistributedShuffledSampler:
    return DistributedShuffledSampler(Indices(8), 2, 1, seed=4)


@pytest.mark.parametrize(
    ("make_sampler", "arguments", "text"),
    [
        (make_shuffled, {"seed": 5}, "seed=5 contradicts the sampler, which has 4"),
        (make_distributed, {"num_replicas": 3, "rank": 1}, "num_replicas=3 contradicts"),
    ],
)
def test_arguments_that_contradict_a_given_sampler_are_refused(
    make_sampler: Any, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        StatefulGPULoader(Indices(8), sampler=make_sampler(), **arguments)


@pytest.mark.parametrize("epoch", [-1, 2**32 - 1, 1.0, True, None])
def test_a_wrong_epoch_is_refused(epoch: Any) -> None:
    loader = StatefulGPULoader(Indices(3), shuffle=True)
    for set_epoch in (loader.set_epoch, loader.sampler.set_epoch):
        with pytest.raises(ValueError, match="epoch = "):
            set_epoch(epoch)
    assert loader.state_dict()["epoch"] == 0


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"seed": 1.5}, TypeError, "seed=1.5 must be an int"),
        ({"seed": True}, TypeError, "must be an int"),
        ({"seed": 2**64}, ValueError, "must fit in 64 bits"),
        ({"rank": 0}, ValueError, "rank = 0 needs num_replicas"),
        ({"num_replicas": 2}, ValueError, "rank = None must be an int"),
        ({"num_replicas": 2, "rank": 2}, ValueError, "rank = 2 must be an int"),
        ({"num_replicas": 0, "rank": 0}, ValueError, "num_replicas = 0 must be"),
        ({"num_replicas": "all"}, ValueError, "num_replicas = 'all' must be"),
        ({"num_replicas": "auto", "rank": 1}, ValueError, "leave out rank = 1"),
        ({"worker_type": "fibre"}, ValueError, "worker_type='fibre' must be one of"),
        ({"on_epoch_boundary": "skip"}, ValueError, "on_epoch_boundary='skip' must be one of"),
        ({"shuffle": "yes"}, TypeError, "shuffle = 'yes'"),
        ({"transform": 7}, TypeError, "7 of type int, which is not callable"),
        ({"transform": [min, None]}, TypeError, "None of type NoneType"),
        ({"num_workers": 1, "worker_type": "thread"}, ValueError, "Indices is no Source"),
        ({"num_workers": -1}, ValueError, "num_workers"),
        ({"timeout": -1}, ValueError, "timeout"),
        ({"prefetch_factor": 2}, ValueError, "prefetch_factor"),
        ({"persistent_workers": True}, ValueError, "persistent_workers"),
        ({"multiprocessing_context": "fork"}, ValueError, "multiprocessing_context"),
        ({"batch_size": None, "drop_last": True}, ValueError, "batch_size=None"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"batch_size": 2.5}, ValueError, "batch_size"),
        ({"num_workers": 1, "prefetch_factor": 0}, ValueError, "prefetch_factor = 0 must be"),
        ({"decoder": "photoshop"}, ValueError, "decoder='photoshop' must be one of"),
        ({"sampler": [0], "shuffle": True}, ValueError, "mutually exclusive"),
        ({"sampler": [0], "num_replicas": 2, "rank": 0}, ValueError, "num_replicas = 2 divides"),
    ],
)
def test_a_wrong_argument_is_refused_at_once(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    """Bad input: as torch does, or better."""
    with pytest.raises(error, match=text):
        StatefulGPULoader(Indices(8), **arguments)


def test_a_state_of_another_loader_changes_nothing() -> None:
    """B7: validation is complete before anything is changed."""
    good = StatefulGPULoader(Indices(20), batch_size=4, shuffle=True, seed=1)
    state = {**good.state_dict(), "position": 8}
    others: dict[str, StatefulGPULoader[Any]] = {
        "length": StatefulGPULoader(Indices(21), batch_size=4, shuffle=True, seed=1),
        "order": StatefulGPULoader(Indices(20), batch_size=4, seed=1),
        "drop_last": StatefulGPULoader(
            Indices(20), batch_size=4, shuffle=True, seed=1, drop_last=True
        ),
        "transform": StatefulGPULoader(
            Indices(20), batch_size=4, shuffle=True, seed=1, transform=float
        ),
        "seed": StatefulGPULoader(Indices(20), batch_size=4, shuffle=True, seed=2),
    }
    for field, loader in others.items():
        batches = iter(loader)
        next(batches)
        before = loader.state_dict()
        with pytest.raises(StateMismatch, match="Remedy") as caught:
            loader.load_state_dict(state)
        assert caught.value.field == field
        assert loader.state_dict() == before
        next(batches)
        if field != "length":
            loader.load_state_dict(
                state, accept={"order", "shuffle", "drop_last", "transform", "seed"}
            )
            assert loader.state_dict()["position"] == 8


def test_a_position_outside_the_epoch_is_refused() -> None:
    loader = StatefulGPULoader(Indices(20))
    with pytest.raises(StateMismatch, match="position differs: the state has 21"):
        loader.load_state_dict({**loader.state_dict(), "position": 21})


@pytest.mark.parametrize("field", ["index_digest", "ahead", "bad_samples", "user"])
def test_what_this_loader_cannot_honour_is_refused_not_dropped(field: str) -> None:
    loader = StatefulGPULoader(Indices(20))
    with pytest.raises(StateMismatch, match=f"{field} differs"):
        loader.load_state_dict({**loader.state_dict(), field: "something"})


@pytest.mark.parametrize("accept", ["transform", {"everything"}, {"length"}])
def test_accept_names_known_fields_only(accept: Any) -> None:
    loader = StatefulGPULoader(Indices(20))
    with pytest.raises(ValueError, match="must be a collection of names among"):
        loader.load_state_dict(loader.state_dict(), accept=accept)


def test_an_accepted_seed_keeps_the_loaders_own() -> None:
    state = StatefulGPULoader(Indices(20), shuffle=True, seed=1).state_dict()
    loader = StatefulGPULoader(Indices(20), shuffle=True, seed=2)
    loader.load_state_dict(state, accept={"seed"})
    assert loader.state_dict()["seed"] == 2


@pytest.mark.parametrize("saved_by", ["order", "sampler"])
def test_states_of_the_two_kinds_of_loader_are_not_mistaken(saved_by: str) -> None:
    """B7: one counts positions, the other has torchdata's iterator."""
    own = StatefulGPULoader(Indices(4))
    inherited = StatefulGPULoader(Indices(4), sampler=[3, 1, 0, 2])
    saving, loading = (own, inherited) if saved_by == "order" else (inherited, own)
    batches = iter(saving)
    next(batches)
    with pytest.raises(StateMismatch, match="order differs"):
        loading.load_state_dict(saving.state_dict())


def test_a_samplers_own_seed_is_compared_as_the_loaders() -> None:
    """B7: another explicit seed is refused, wherever it was given."""
    state = StatefulGPULoader(Indices(8), sampler=ShuffledSampler(Indices(8), seed=4)).state_dict()
    other = StatefulGPULoader(Indices(8), sampler=ShuffledSampler(Indices(8), seed=5))
    before = other.state_dict()
    with pytest.raises(StateMismatch, match="seed differs: the state has 4, expected was 5"):
        other.load_state_dict(state)
    assert other.state_dict() == before
    undecided = StatefulGPULoader(Indices(8), sampler=ShuffledSampler(Indices(8)))
    undecided.load_state_dict(state)
    assert undecided.state_dict() == state

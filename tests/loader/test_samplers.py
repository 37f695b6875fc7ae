"""Users' samplers, with and without state."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
)
from torchdata.stateful_dataloader.sampler import RandomSampler as TorchdataRandomSampler
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from stateful_gpu_loader import StatefulGPULoader
from tests.conformance import (
    assert_same_rest,
    loaded,
    refusal,
    refusal_at_next,
    same,
    uninterrupted,
)
from tests.loader.passes import interrupted
from tests.map_datasets import Indices, Noisy
from tests.user_objects import (
    ShufflingInPlace,
    ShufflingOutOfSight,
    StatefulSampler,
)

N = 23


def make(**given: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(Noisy(N), **{"batch_size": 4, "seed": 1, **given})


def test_torchdatas_own_random_sampler_is_one_with_state() -> None:
    """Its iterator's state holds a tensor."""

    def build() -> StatefulGPULoader[Any]:
        return make(sampler=TorchdataRandomSampler(range(N), generator=torch.Generator()))

    expected, states = uninterrupted(build(), 2)
    for place, state in states.items():
        assert_same_rest(loaded(build(), state), expected, place, 2)


@pytest.mark.parametrize("calls_set_epoch", [False, True])
@pytest.mark.parametrize("kind", [DistributedSampler, StatefulDistributedSampler])
def test_a_distributed_sampler_keeps_its_epoch(kind: Any, calls_set_epoch: bool) -> None:
    """With and without calls of set_epoch, before and after the resume."""
    state: dict[str, Any] = {}

    def run(loader: StatefulGPULoader[Any], first: int) -> list[list[Any]]:
        epochs = []
        for epoch in range(first, 4):
            if calls_set_epoch:
                loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            epochs.append([batch["index"].tolist() for batch in loader])
        return epochs

    def build() -> StatefulGPULoader[Any]:
        return make(sampler=kind(Indices(N), 2, 0))

    reference = run(build(), 0)
    assert (reference[0] == reference[1]) is not calls_set_epoch
    loader = build()
    for epoch in range(3):
        if calls_set_epoch:
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        batches = iter(loader)
        if epoch == 2:
            next(batches)
            state = loader.state_dict()
        else:
            list(batches)
    resumed = loaded(build(), state)
    assert run(resumed, 2) == [reference[2][1:], reference[3]]


def test_a_resumed_pass_keeps_the_samplers_epoch_and_warns_of_another() -> None:
    """Trainers call sampler.set_epoch(0) after a restart: the restored epoch wins."""
    loader = make(sampler=DistributedSampler(Indices(N), 2, 0))
    loader.sampler.set_epoch(5)  # type: ignore[attr-defined]
    batches = iter(loader)
    next(batches)
    state, rest = loader.state_dict(), list(batches)
    resumed = loaded(make(sampler=DistributedSampler(Indices(N), 2, 0)), state)
    resumed.sampler.set_epoch(1)  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="set to epoch 1 after load_state_dict"):
        assert same(list(resumed), rest)


@pytest.mark.parametrize("on_epoch_boundary", ["empty", "next_epoch"])
def test_an_epoch_set_before_an_empty_rest_applies_to_the_pass_after_it(
    on_epoch_boundary: str,
) -> None:
    """Trainers that resume at an epoch's last batch set the next epoch, and iterate."""

    def build() -> StatefulGPULoader[Any]:
        return make(
            sampler=DistributedSampler(Indices(N), 2, 0), on_epoch_boundary=on_epoch_boundary
        )

    loader = build()
    loader.sampler.set_epoch(5)  # type: ignore[attr-defined]
    state, batches = interrupted(loader, len(loader))
    list(batches)
    loader.sampler.set_epoch(6)  # type: ignore[attr-defined]
    expected = list(loader)
    resumed = loaded(build(), state)
    resumed.sampler.set_epoch(6)  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="set to epoch 6 after load_state_dict"):
        first = list(resumed)
    assert same(first, expected if on_epoch_boundary == "next_epoch" else [])
    if on_epoch_boundary == "empty":
        assert same(list(resumed), expected)


def test_the_epoch_of_a_failed_pass_is_set_again_after_a_load() -> None:
    """The sampler has the next epoch already when the state of the last batch is loaded."""

    def epochs_of(loader: StatefulGPULoader[Any], numbers: range) -> list[Any]:
        found = []
        for number in numbers:
            loader.sampler.set_epoch(number)  # type: ignore[attr-defined]
            found.append(list(loader))
        return found

    arguments = {"sampler": DistributedSampler(Indices(N), 2, 0), "on_epoch_boundary": "next_epoch"}
    expected = epochs_of(make(**arguments), range(4))
    loader = make(**{**arguments, "sampler": DistributedSampler(Indices(N), 2, 0)})
    epochs_of(loader, range(1))
    loader.sampler.set_epoch(1)  # type: ignore[attr-defined]
    state, batches = interrupted(loader, len(loader))
    list(batches)
    loader.sampler.set_epoch(2)  # type: ignore[attr-defined]
    next(iter(loader))
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="set to epoch 2 after load_state_dict"):
        assert same(epochs_of(loader, range(2, 4)), expected[2:])


@pytest.mark.parametrize(
    "changes", [{"dataset": Indices(N + 1)}, {"num_replicas": 3}, {"seed": 1}, {"shuffle": False}]
)
def test_another_distributed_sampler_is_refused_with_its_arguments(changes: dict[str, Any]) -> None:
    """Also if the lengths of both datasets are padded to the same number."""

    def build(**arguments: Any) -> StatefulGPULoader[Any]:
        given = {"dataset": Indices(N), "num_replicas": 2, "rank": 0, **arguments}
        return make(sampler=DistributedSampler(**given))

    loader = build()
    batches = iter(loader)
    next(batches)
    refused = refusal_at_next(build(**changes), loader.state_dict(), "sampler")
    assert "'num_replicas': " in f"{refused.saved} {refused.present}"
    other = loaded(make(sampler=DistributedSampler(Indices(N), 2, 1)), loader.state_dict())
    assert len(list(other)) == len(loader) - 1


def test_the_loaders_epoch_reaches_the_sampler_inside_a_batch_sampler() -> None:
    inner = DistributedSampler(Indices(N), 2, 0)
    loader = make(batch_sampler=BatchSampler(inner, 4, drop_last=False), batch_size=1)
    loader.set_epoch(3)
    assert inner.epoch == 3


def test_a_sampler_that_cannot_be_iterated_again_is_refused() -> None:
    """Otherwise the order would silently be wrong, within an epoch or from epoch to epoch."""
    loader = make(sampler=ShufflingOutOfSight(N))
    states = []
    for epoch in range(3):
        for number, _ in enumerate(loader):
            if number == 1:
                states.append((epoch, loader.state_dict()))
        states.append((epoch + 1, loader.state_dict()))
    for epoch, state in states:
        resumed = make(sampler=ShufflingOutOfSight(N))
        if epoch == 0 or (epoch == 1 and state["position"] == 0):
            resumed.load_state_dict(state)
            next(iter(resumed))  # a fresh sampler shuffles the same order
            continue
        refusal_at_next(resumed, state, "sampler")


def test_a_large_list_that_a_sampler_shuffles_in_place_is_warned_of_when_it_is_saved() -> None:
    """A12: once, and only where a new loader could not resume."""
    length = 5000

    def make_loader() -> StatefulGPULoader[Any]:
        return StatefulGPULoader(
            range(length), batch_size=1000, sampler=ShufflingInPlace(length), seed=1
        )

    loader = make_loader()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in loader:
            loader.state_dict()
        batches = iter(loader)
        next(batches)
    with pytest.warns(UserWarning, match="ShufflingInPlace changes indices in place"):
        state = loader.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loader.state_dict() == state
    refusal_at_next(make_loader(), state, "sampler")


def test_a_dataset_that_a_sampler_holds_is_not_kept_or_changed() -> None:
    """A12: a list of samples belongs to the dataset."""
    rows = list(range(N))
    loader = StatefulGPULoader(rows, batch_size=4, sampler=RandomSampler(rows), seed=1)
    next(iter(loader))
    state = loader.state_dict()
    rows[0] = -1
    loader.load_state_dict(state, accept={"dataset"})
    next(iter(loader))
    assert rows[0] == -1
    assert "container" not in str(loader.state_dict())


@pytest.mark.parametrize(
    "form",
    [
        {"kind": "list", "container": "{"},
        {"kind": "list", "container": '{"$tuple": []}'},
        {"kind": "list", "container": str([0] * 5000)},
        {"kind": "list", "container": 5},
        {"kind": "dict", "container": "{}"},
        {"kind": "list"},
        {},
    ],
)
def test_a_damaged_container_of_a_state_is_refused(form: dict[str, Any]) -> None:
    """G6, B7: and nothing changes."""
    loader = make(sampler=ShufflingInPlace(N))
    list(loader)
    next(iter(loader))
    state = loader.state_dict()
    assert state["user"]["sampler"]["attributes"]["indices"]["kind"] == "list"
    state["user"]["sampler"]["attributes"]["indices"] = form
    resumed = make(sampler=ShufflingInPlace(N))
    refusal(resumed, state, "sampler's attributes")
    assert resumed.sampler.indices == list(range(N))  # type: ignore[attr-defined]


def test_another_sampler_is_refused() -> None:
    loader = make(sampler=StatefulSampler(N))
    next(iter(loader))
    state = loader.state_dict()
    for other in (make(sampler=RandomSampler(range(N))), make()):
        assert refusal(other, state, "order").saved == "sampler StatefulSampler"
    refusal(loader, make().state_dict(), "order")
    other = make(sampler=[0, 1, 2, 3, 4])
    next(iter(other))
    refusal_at_next(make(sampler=[0, 1, 2, 7, 4]), other.state_dict(), "sampler")


def test_one_sample_comes_twice_and_is_drawn_twice() -> None:
    (batch,) = StatefulGPULoader(Noisy(4), batch_size=2, sampler=[1, 1], seed=1)
    assert batch["index"].tolist() == [1, 1]
    assert not torch.equal(batch["torch"][0], batch["torch"][1])


def test_a_samplers_own_objects_reach_the_dataset() -> None:
    """Keys that are not integers, as in a dict-style dataset."""
    data = {"cat": 1, "dog": 2, ("a", 1): 3}
    loader = StatefulGPULoader(data, batch_size=2, sampler=["dog", ("a", 1), "cat"])  # type: ignore[arg-type]
    batches = iter(loader)
    assert next(batches).tolist() == [2, 3]
    resumed = StatefulGPULoader(data, batch_size=2, sampler=["dog", ("a", 1), "cat"])  # type: ignore[arg-type]
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed)).tolist() == [1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_exception_of_a_sampler_is_raised_at_its_turn(num_workers: int) -> None:
    """Batches before it are delivered, and the sampler is called again."""

    class FailsOnce:
        def __init__(self) -> None:
            self.i = 0

        def __iter__(self) -> FailsOnce:
            return self

        def __next__(self) -> int:
            self.i += 1
            if self.i == 6:
                raise LookupError("no index 6")
            if self.i > 9:
                raise StopIteration
            return self.i

    loader = StatefulGPULoader(
        Indices(20), batch_size=2, sampler=FailsOnce(), num_workers=num_workers
    )
    batches = iter(loader)
    assert [next(batches).tolist(), next(batches).tolist()] == [[1, 2], [3, 4]]
    with pytest.raises(LookupError, match="no index 6"):
        next(batches)
    assert [batch.tolist() for batch in batches] == [[5, 7], [8, 9]]


def test_a_sequential_sampler_of_torch_has_the_loaders_own_order() -> None:
    loader = make(sampler=SequentialSampler(Indices(N)))
    assert loader.state_dict()["user"] is None

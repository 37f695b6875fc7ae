"""Samplers of the user's: with state, and without."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader.sampler import RandomSampler as TorchdataRandomSampler
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from stateful_gpu_loader import StatefulGPULoader, StateMismatch
from tests.conformance import assert_exact_resume, assert_same_rest, same, uninterrupted
from tests.generators import generators
from tests.map_datasets import Indices, Noisy
from tests.user_objects import (
    CountingSampler,
    LazySampler,
    OwnGeneratorSampler,
    SamplerWithStatefulIterator,
    ShufflingGroups,
    ShufflingInPlace,
    ShufflingOutOfSight,
    StatefulBatchSampler,
    StatefulSampler,
)

N = 23
WEIGHTS = [1.0, 2.0, 3.0] * 7
Make = Callable[[], dict[str, Any]]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def shared_generator() -> dict[str, Any]:
    """The loader's generator, and the sampler's."""
    both = generator()
    return {"sampler": RandomSampler(range(N), generator=both), "generator": both, "seed": None}


WITHOUT_STATE: dict[str, Make] = {
    "random": lambda: {"sampler": RandomSampler(range(N))},
    "random, generator": lambda: {"sampler": RandomSampler(range(N), generator=generator())},
    "random, shared generator": shared_generator,
    "random, replacement": lambda: {"sampler": RandomSampler(range(N), True, 40)},
    "random, replacement, generator": lambda: {
        "sampler": RandomSampler(range(N), True, 40, generator())
    },
    "subset": lambda: {"sampler": SubsetRandomSampler(list(range(5, 20)))},
    "weighted": lambda: {"sampler": WeightedRandomSampler(WEIGHTS, 30)},
    "weighted, generator": lambda: {
        "sampler": WeightedRandomSampler(WEIGHTS, 30, generator=generator())
    },
    "distributed": lambda: {"sampler": DistributedSampler(Indices(N), 2, 1)},
    "batches of torch": lambda: {
        "batch_sampler": BatchSampler(RandomSampler(range(N), generator=generator()), 4, True),
        "batch_size": 1,
    },
    "unbatched": lambda: {
        "batch_size": None,
        "sampler": RandomSampler(range(N), generator=generator()),
    },
    "generator function": lambda: {"sampler": LazySampler()},
    "generator function, drop_last": lambda: {"sampler": LazySampler(), "drop_last": True},
    "counter": lambda: {"sampler": CountingSampler(N)},
    "own torch generator": lambda: {"sampler": OwnGeneratorSampler(N, generator())},
    "own random.Random": lambda: {"sampler": OwnGeneratorSampler(N, random.Random(3))},
    "own NumPy generator": lambda: {"sampler": OwnGeneratorSampler(N, np.random.default_rng(3))},
    "own NumPy Mersenne": lambda: {"sampler": OwnGeneratorSampler(N, np.random.RandomState(3))},
    "shuffles a list in place": lambda: {"sampler": ShufflingInPlace(N)},
    **{
        f"shuffles in place: {kind}": partial(
            lambda kind: {"sampler": ShufflingGroups(N, kind)}, kind
        )
        for kind in ("dict", "list", "deque", "array", "tensor")
    },
    "a list": lambda: {"sampler": [3, 1, 4, 1, 5, 9, 2, 6]},
    "a list of batches": lambda: {"batch_sampler": [[3, 1], [4], [1, 5, 9]], "batch_size": 1},
}
WITH_STATE: dict[str, Make] = {
    "on the sampler": lambda: {"sampler": StatefulSampler(N)},
    "on its iterator": lambda: {"sampler": SamplerWithStatefulIterator(N)},
    "on a batch sampler": lambda: {"batch_sampler": StatefulBatchSampler(N), "batch_size": 1},
    "inside torch's batch sampler": lambda: {
        "batch_sampler": BatchSampler(StatefulSampler(N), 4, False),
        "batch_size": 1,
    },
    "unbatched": lambda: {"sampler": StatefulSampler(N), "batch_size": None},
    "distributed of torchdata": lambda: {"sampler": StatefulDistributedSampler(Indices(N), 2, 1)},
}


def make(case: Make, **arguments: Any) -> StatefulGPULoader[Any]:
    given = {"batch_size": 4, "seed": 1, **case(), **arguments}
    if "batch_sampler" in given:
        del given["batch_size"]
    return StatefulGPULoader(Noisy(N), **given)


@pytest.mark.processes
@pytest.mark.parametrize("name", WITHOUT_STATE)
def test_a_sampler_without_state_resumes_exactly(name: str) -> None:
    """The rest of the epoch and all later ones, on any number of workers."""
    case = WITHOUT_STATE[name]
    assert_exact_resume(partial(make, case), epochs=3, other=({"num_workers": 2},))


@pytest.mark.processes
@pytest.mark.parametrize("name", WITH_STATE)
@pytest.mark.parametrize("saved", [0, 2])
def test_a_sampler_with_state_resumes_exactly(name: str, saved: int) -> None:
    """It lives in the main process, so the number of workers is free."""
    case = WITH_STATE[name]
    other = ({"num_workers": 2 - saved},)
    assert_exact_resume(partial(make, case, num_workers=saved), other=other)


@pytest.mark.processes
@pytest.mark.parametrize("interval", [0, 3])
@pytest.mark.parametrize("name", ["on the sampler", "on its iterator"])
def test_its_snapshots_may_be_rare(name: str, interval: int) -> None:
    """Indices behind the last snapshot are drawn again."""
    arguments = {"num_workers": 1, "snapshot_every_n_steps": interval}
    assert_exact_resume(partial(make, WITH_STATE[name], **arguments), other=({"num_workers": 0},))


def test_torchdatas_own_random_sampler_is_one_with_state() -> None:
    """Its iterator's state is a tensor, which the user's object put there."""
    case: Make = lambda: {"sampler": TorchdataRandomSampler(range(N), generator=generator())}  # noqa: E731
    expected, states = uninterrupted(make(case), 2)
    for place, state in states.items():
        resumed = make(case)
        resumed.load_state_dict(state)
        assert_same_rest(resumed, expected, place, 2)


@pytest.mark.parametrize("calls_set_epoch", [False, True])
@pytest.mark.parametrize("kind", [DistributedSampler, StatefulDistributedSampler])
def test_a_distributed_sampler_keeps_its_epoch(kind: Any, calls_set_epoch: bool) -> None:
    """Whether the user calls set_epoch or forgot it, before and after the resume."""
    state: dict[str, Any] = {}

    def run(loader: StatefulGPULoader[Any], first: int) -> list[list[Any]]:
        epochs = []
        for epoch in range(first, 4):
            if calls_set_epoch:
                loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            epochs.append([batch["index"].tolist() for batch in loader])
        return epochs

    def build() -> StatefulGPULoader[Any]:
        return make(lambda: {"sampler": kind(Indices(N), 2, 0)})

    undisturbed = run(build(), 0)
    assert (undisturbed[0] == undisturbed[1]) is not calls_set_epoch
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
    resumed = build()
    resumed.load_state_dict(state)
    assert run(resumed, 2) == [undisturbed[2][1:], undisturbed[3]]


def test_a_resumed_pass_keeps_the_samplers_epoch_and_warns_of_another() -> None:
    """Trainers call sampler.set_epoch(0) after a restart: the restored epoch wins."""
    loader = make(lambda: {"sampler": DistributedSampler(Indices(N), 2, 0)})
    loader.sampler.set_epoch(5)  # type: ignore[attr-defined]
    batches = iter(loader)
    next(batches)
    state, rest = loader.state_dict(), list(batches)
    resumed = make(lambda: {"sampler": DistributedSampler(Indices(N), 2, 0)})
    resumed.load_state_dict(state)
    resumed.sampler.set_epoch(1)  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="set to epoch 1 after load_state_dict"):
        assert same(list(resumed), rest)


@pytest.mark.parametrize("on_epoch_boundary", ["empty", "next_epoch"])
def test_the_epoch_told_ahead_of_an_empty_rest_counts_for_the_pass_behind_it(
    on_epoch_boundary: str,
) -> None:
    """Trainers that resume at an epoch's last batch tell the next epoch, and iterate."""

    def build() -> StatefulGPULoader[Any]:
        return make(
            lambda: {
                "sampler": DistributedSampler(Indices(N), 2, 0),
                "on_epoch_boundary": on_epoch_boundary,
            }
        )

    loader = build()
    loader.sampler.set_epoch(5)  # type: ignore[attr-defined]
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    state = loader.state_dict()
    list(batches)
    loader.sampler.set_epoch(6)  # type: ignore[attr-defined]
    expected = list(loader)
    resumed = build()
    resumed.load_state_dict(state)
    resumed.sampler.set_epoch(6)  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="set to epoch 6 after load_state_dict"):
        first = list(resumed)
    assert same(first, expected if on_epoch_boundary == "next_epoch" else [])
    if on_epoch_boundary == "empty":
        assert same(list(resumed), expected)


def test_an_epoch_that_failed_is_told_again_behind_a_reload() -> None:
    """The sampler has the next epoch already when the state behind the last one is loaded."""

    def epochs_of(loader: StatefulGPULoader[Any], numbers: range) -> list[Any]:
        found = []
        for number in numbers:
            loader.sampler.set_epoch(number)  # type: ignore[attr-defined]
            found.append(list(loader))
        return found

    arguments = {"sampler": DistributedSampler(Indices(N), 2, 0), "on_epoch_boundary": "next_epoch"}
    expected = epochs_of(make(lambda: arguments), range(4))
    loader = make(lambda: {**arguments, "sampler": DistributedSampler(Indices(N), 2, 0)})
    epochs_of(loader, range(1))
    loader.sampler.set_epoch(1)  # type: ignore[attr-defined]
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    state = loader.state_dict()
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
    """Of another length of the dataset, too, that is padded to the same number."""

    def build(**arguments: Any) -> StatefulGPULoader[Any]:
        given = {"dataset": Indices(N), "num_replicas": 2, "rank": 0, **arguments}
        return make(lambda: {"sampler": DistributedSampler(**given)})

    loader = build()
    batches = iter(loader)
    next(batches)
    resumed = build(**changes)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(StateMismatch, match=r"'num_replicas': \d, 'shuffle'"):
        next(iter(resumed))
    other = make(lambda: {"sampler": DistributedSampler(Indices(N), 2, 1)})
    other.load_state_dict(loader.state_dict())
    assert len(list(other)) == len(loader) - 1


def test_the_loaders_epoch_reaches_the_sampler_inside_a_batch_sampler() -> None:
    """An epoch of the loader is one of its sampler."""
    inner = DistributedSampler(Indices(N), 2, 0)
    loader = make(lambda: {"batch_sampler": BatchSampler(inner, 4, drop_last=False)})
    loader.set_epoch(3)
    assert inner.epoch == 3


def test_a_sampler_that_cannot_be_iterated_again_is_refused() -> None:
    """Never wrong in silence, in the middle of an epoch or between two."""
    loader = make(lambda: {"sampler": ShufflingOutOfSight(N)})
    states = []
    for epoch in range(3):
        for number, _ in enumerate(loader):
            if number == 1:
                states.append((epoch, loader.state_dict()))
        states.append((epoch + 1, loader.state_dict()))
    for epoch, state in states:
        resumed = make(lambda: {"sampler": ShufflingOutOfSight(N)})
        resumed.load_state_dict(state)
        if epoch == 0 or (epoch == 1 and state["position"] == 0):
            next(iter(resumed))  # what a fresh one shuffles is the same
            continue
        with pytest.raises(StateMismatch, match="not reproducible") as refused:
            next(iter(resumed))
        assert refused.value.field == "sampler"
        assert resumed.state_dict() == state


def test_a_large_list_that_a_sampler_shuffles_in_place_is_warned_of_when_it_is_saved() -> None:
    """A12: once, and not where a new loader can still resume."""
    length = 5000

    def of() -> StatefulGPULoader[Any]:
        return StatefulGPULoader(
            range(length), batch_size=1000, sampler=ShufflingInPlace(length), seed=1
        )

    loader = of()
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
    resumed = of()
    resumed.load_state_dict(state)
    with pytest.raises(StateMismatch, match="not reproducible"):
        next(iter(resumed))


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
    """G6, B7: and nothing is changed."""
    loader = make(lambda: {"sampler": ShufflingInPlace(N)})
    list(loader)
    next(iter(loader))
    state = loader.state_dict()
    assert state["user"]["sampler"]["attributes"]["indices"]["kind"] == "list"
    state["user"]["sampler"]["attributes"]["indices"] = form
    resumed = make(lambda: {"sampler": ShufflingInPlace(N)})
    with pytest.raises(StateMismatch, match="sampler's attributes"):
        resumed.load_state_dict(state)
    assert resumed.sampler.indices == list(range(N))  # type: ignore[attr-defined]


def test_another_sampler_is_refused() -> None:
    loader = make(lambda: {"sampler": StatefulSampler(N)})
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(StateMismatch, match="'sampler StatefulSampler'"):
        make(lambda: {"sampler": RandomSampler(range(N))}).load_state_dict(state)
    with pytest.raises(StateMismatch, match="order differs"):
        make(dict).load_state_dict(state)
    other = make(lambda: {"sampler": [0, 1, 2, 3, 4]})
    next(iter(other))
    resumed = make(lambda: {"sampler": [0, 1, 2, 7, 4]})
    resumed.load_state_dict(other.state_dict())
    with pytest.raises(StateMismatch, match="other indices"):
        next(iter(resumed))


@pytest.mark.parametrize("name", WITHOUT_STATE)
def test_the_callers_generators_are_left_alone(name: str) -> None:
    """Whatever the sampler draws, in whatever generator."""
    loader = make(WITHOUT_STATE[name])
    before = generators()
    for _ in loader:
        assert generators() == before
    assert generators() == before


def test_one_sample_comes_twice_and_is_drawn_twice() -> None:
    (batch,) = StatefulGPULoader(Noisy(4), batch_size=2, sampler=[1, 1], seed=1)
    assert batch["index"].tolist() == [1, 1]
    assert not torch.equal(batch["torch"][0], batch["torch"][1])


def test_a_samplers_own_objects_reach_the_dataset() -> None:
    """Keys that are no ints, as a dict-style dataset has them."""
    data = {"cat": 1, "dog": 2, ("a", 1): 3}
    loader = StatefulGPULoader(data, batch_size=2, sampler=["dog", ("a", 1), "cat"])  # type: ignore[arg-type]
    batches = iter(loader)
    assert next(batches).tolist() == [2, 3]
    resumed = StatefulGPULoader(data, batch_size=2, sampler=["dog", ("a", 1), "cat"])  # type: ignore[arg-type]
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed)).tolist() == [1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_exception_of_a_sampler_is_raised_at_its_turn(num_workers: int) -> None:
    """Batches before it are delivered, and it is asked again."""

    class Stumbling:
        def __init__(self) -> None:
            self.i = 0

        def __iter__(self) -> Stumbling:
            return self

        def __next__(self) -> int:
            self.i += 1
            if self.i == 6:
                raise LookupError("no index 6")
            if self.i > 9:
                raise StopIteration
            return self.i

    loader = StatefulGPULoader(
        Indices(20), batch_size=2, sampler=Stumbling(), num_workers=num_workers
    )
    batches = iter(loader)
    assert [next(batches).tolist(), next(batches).tolist()] == [[1, 2], [3, 4]]
    with pytest.raises(LookupError, match="no index 6"):
        next(batches)
    assert [batch.tolist() for batch in batches] == [[5, 7], [8, 9]]


def test_a_sequential_sampler_of_torch_has_the_loaders_own_order() -> None:
    loader = make(lambda: {"sampler": SequentialSampler(Indices(N))})
    assert loader.state_dict()["user"] is None

"""torchdata states that contain dataset states, and refusals by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, RandomSampler, Sampler, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader import StatefulGPULoader, WeightedSampler
from stateful_gpu_loader.samplers import SubsetSampler
from tests.conformance import loaded, refusal
from tests.map_datasets import Indices
from tests.torchdata_objects import (
    LENGTH,
    Counting,
    IteratorSampler,
    IteratorStream,
    SelfStream,
    StatefulStream,
    Stream,
)
from tests.torchdata_runs import Batches, plain, through_torch, torchdata_run

EXECUTIONS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "snapshot_every_n_steps": 3},
]
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*samples of the iterable dataset are read again"),
    pytest.mark.filterwarnings("ignore:Neither dataset nor iter"),
]


def assert_finishes(
    make: Callable[..., Any], states: list[dict[str, Any]], batches: Batches
) -> None:
    """Check each state, and a second resume a batch later."""
    for delivered, state in enumerate(states[:-1]):
        loader = loaded(make(), through_torch(state))
        found, second = [], None
        for batch in loader:
            found.append(plain(batch))
            if second is None:
                second = through_torch(loader.state_dict())
        assert found == batches[delivered:], delivered
        if second is not None and delivered % 2 == 0:
            again = loaded(make(), second)
            assert [plain(batch) for batch in again] == batches[delivered + 1 :], delivered


@pytest.mark.processes
@pytest.mark.parametrize(
    ("batch_size", "execution"), [(2, EXECUTIONS[0]), (None, EXECUTIONS[1]), (2, EXECUTIONS[2])]
)
def test_a_map_style_dataset_with_state(batch_size: int | None, execution: dict[str, Any]) -> None:
    def make(kind: Any, **other: Any) -> Any:
        return kind(Counting(LENGTH), batch_size=batch_size, shuffle=True, **execution, **other)

    states, batches = torchdata_run(make(StatefulDataLoader))
    ours = partial(make, StatefulGPULoader)
    assert_finishes(ours, states, batches)
    if not execution["num_workers"]:
        loader = loaded(ours(), states[2])
        list(loader)
        assert loader.dataset.served == [index for batch in batches for index in batch]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("kind", "batch_size", "execution"),
    [
        (kind, batch_size, EXECUTIONS[(i + j) % 3])
        for i, kind in enumerate([Stream, StatefulStream, IteratorStream, SelfStream])
        for j, batch_size in enumerate([2, None])
    ],
)
def test_an_iterable(kind: type[Stream], batch_size: int | None, execution: dict[str, Any]) -> None:
    def make(loader: Any, **other: Any) -> Any:
        return loader(kind(LENGTH), batch_size=batch_size, **execution, **other)

    states, batches = torchdata_run(make(StatefulDataLoader))
    assert_finishes(partial(make, StatefulGPULoader), states, batches)
    finished = loaded(make(StatefulGPULoader), states[-1])
    assert (finished.state_dict()["epoch"], finished.state_dict()["position"]) == (1, 0)
    if kind in (Stream, IteratorStream):  # the others' epoch continues from their own end
        assert [plain(batch) for batch in finished] == batches


@pytest.mark.processes
@pytest.mark.parametrize(
    ("kind", "saved", "present"), [(Counting, 0, 2), (StatefulStream, 2, 0), (Stream, 2, 3)]
)
def test_another_number_of_workers_is_refused_with_both(
    kind: type[Any], saved: int, present: int
) -> None:
    theirs = StatefulDataLoader(kind(LENGTH), batch_size=2, num_workers=saved)
    loader = StatefulGPULoader(kind(LENGTH), batch_size=2, num_workers=present)
    refused = refusal(loader, state_of(theirs, 1), "num_workers")
    assert (refused.saved, refused.present) == (saved, present)


def state_of(loader: Any, delivered: int = 2) -> dict[str, Any]:
    batches = iter(loader)
    for _ in range(delivered):
        next(batches)
    state: dict[str, Any] = copy.deepcopy(loader.state_dict())
    list(batches)  # torchdata waits for workers that are left in the middle
    return state


class Pairs(Sampler[list[int]]):
    """A batch sampler with batches of its own sizes, without state."""

    def __init__(self) -> None:
        pass

    def __iter__(self) -> Any:
        return iter([[0], [1, 2], [3, 4, 5]])


def shuffled(**arguments: Any) -> dict[str, Any]:
    return {"dataset": Indices(LENGTH), "shuffle": True, **arguments}


REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[], dict[str, Any]], str]] = {
    "a shuffle that nobody knows": (
        lambda: {"dataset": Indices(LENGTH), "sampler": RandomSampler(Indices(LENGTH))},
        lambda: {"dataset": Indices(LENGTH), "sampler": RandomSampler(Indices(LENGTH))},
        "sampler",
    ),
    "batches of unknown size": (
        lambda: {"dataset": Indices(LENGTH), "batch_sampler": Pairs()},
        lambda: {"dataset": Indices(LENGTH), "batch_sampler": Pairs()},
        "batch_sampler",
    ),
    "shuffled into the dataset's order": (
        shuffled,
        lambda: {"dataset": Indices(LENGTH)},
        "shuffle",
    ),
    "the dataset's order into shuffled": (
        lambda: {"dataset": Indices(LENGTH)},
        shuffled,
        "shuffle",
    ),
    "an iterable into map-style": (lambda: {"dataset": Stream(LENGTH)}, shuffled, "dataset"),
    "map-style into an iterable": (shuffled, lambda: {"dataset": Stream(LENGTH)}, "dataset"),
    "ranks": (shuffled, lambda: shuffled(num_replicas=2, rank=0), "num_replicas"),
    "a sampler with state into the loader's order": (
        lambda: {"dataset": Indices(LENGTH), "sampler": IteratorSampler()},
        lambda: {"dataset": Indices(LENGTH)},
        "sampler",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_facts_missing_from_the_state_are_refused_by_name(name: str) -> None:
    theirs, ours, field = REFUSED[name]
    refused = refusal(StatefulGPULoader(**ours()), state_of(StatefulDataLoader(**theirs())))
    assert refused.field == field
    assert "finish the epoch there and start the next epoch here" in str(refused)


@pytest.mark.filterwarnings("ignore:.*in_order")
def test_batches_that_overtook_each_other_are_refused() -> None:
    """A state of in_order=False does not say which batches were delivered."""
    theirs = StatefulDataLoader(Indices(LENGTH), num_workers=2, in_order=False)
    state = state_of(theirs, 3)
    # The state when the second batch was delivered before the first, without the race.
    state["_snapshot"]["_main_snapshot"]["_sampler_iter_yielded"] = 2
    state["_snapshot"]["_snapshot_step"], state["_steps_since_snapshot"] = 3, 0
    refused = refusal(StatefulGPULoader(Indices(LENGTH)), state)
    assert refused.field == "in_order"


class Uneven(IterableDataset[int]):
    """One worker has a single sample."""

    def __iter__(self) -> Any:
        worker = get_worker_info()
        return iter([100] if worker is not None and worker.id else range(8))


@pytest.mark.processes
@pytest.mark.parametrize("batch_size", [1, None])
def test_a_worker_that_has_ended_before_the_others(batch_size: int | None) -> None:
    """Without a state nothing says how far each worker has read, so the load is refused."""
    make = partial(StatefulDataLoader, Uneven(), batch_size=batch_size, num_workers=2)
    ours = partial(StatefulGPULoader, Uneven(), batch_size=batch_size, num_workers=2)
    states, batches = torchdata_run(make())
    for delivered, state in enumerate(states[:-1]):
        if delivered > 3:
            refused = refusal(ours(), state)
            assert "a worker had ended before the others" in str(refused)
        else:
            loader = loaded(ours(), copy.deepcopy(state))
            assert [plain(batch) for batch in loader] == batches[delivered:], delivered


GARBAGE: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("_num_yielded", lambda state: state.update(_num_yielded="3")),
    ("_num_yielded", lambda state: state.update(_num_yielded=-1)),
    ("_iterator_finished", lambda state: state.pop("_iterator_finished")),
    ("_iterator_finished", lambda state: state.update(_iterator_finished=1)),
    ("_sampler_iter_yielded", lambda state: state.update(_sampler_iter_yielded=None)),
    ("_sampler_iter_state", lambda state: state.pop("_sampler_iter_state")),
    ("generator", lambda state: innermost(state).update(generator=torch.zeros(9))),
    ("sampler", lambda state: innermost(state).update(yielded=7)),
    ("samples_yielded", lambda state: state["_sampler_iter_state"].update(samples_yielded=None)),
    ("_snapshot", lambda state: state.update(_steps_since_snapshot=0)),
]


def innermost(state: dict[str, Any]) -> dict[str, Any]:
    inner: dict[str, Any] = state["_sampler_iter_state"]["sampler_iter_state"]
    return inner


@pytest.mark.parametrize(("field", "tear"), GARBAGE)
def test_garbage_is_refused_by_name_and_nothing_changes(
    field: str, tear: Callable[[dict[str, Any]], Any]
) -> None:
    state = state_of(StatefulDataLoader(**shuffled(batch_size=2)))
    tear(state)
    loader = StatefulGPULoader(**shuffled(batch_size=2, seed=1))
    batches = iter(loader)
    first = plain(next(batches))
    refused = refusal(loader, state)
    assert field in refused.field
    whole = [plain(batch) for batch in StatefulGPULoader(**shuffled(batch_size=2, seed=1))]
    assert [first, *map(plain, batches)] == whole


@pytest.mark.parametrize(
    "sampler", [SubsetSampler(range(5, 15)), WeightedSampler([1.0] * 10, 10)], ids=lambda s: type(s)
)
def test_an_order_that_torchdata_does_not_have_is_refused(sampler: Any) -> None:
    """Its state holds positions in a permutation of the whole dataset."""
    theirs = StatefulDataLoader(Indices(10), batch_size=2, shuffle=True)
    next(iter(theirs))
    ours = StatefulGPULoader(Indices(20), batch_size=2, sampler=sampler)
    refusal(ours, theirs.state_dict(), "order")

"""Every life of every kind of loader."""

from __future__ import annotations

import gc
import multiprocessing
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler

from stateful_gpu_loader import StatefulGPULoader
from tests.conformance import copy_of, same, uninterrupted
from tests.generators import generators
from tests.map_datasets import Noisy
from tests.user_objects import (
    OwnIterator,
    PlainIterable,
    StatefulDataset,
    StatefulIterable,
    StatefulSampler,
)

N = 14
UNEVEN = [3, 8, 2]
Make = Callable[..., StatefulGPULoader[Any]]
pytestmark = pytest.mark.filterwarnings("ignore:.*samples of the iterable dataset are read again")


def loader(dataset: Any, **arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(dataset, **{"batch_size": 4, "seed": 1, **arguments})


def seven() -> torch.Generator:
    return torch.Generator().manual_seed(7)


KINDS: dict[str, Make] = {
    "map": lambda **a: loader(Noisy(N), shuffle=True, **a),
    "map, generator": lambda **a: loader(Noisy(N), shuffle=True, seed=None, generator=seven(), **a),
    "sampler": lambda **a: loader(
        Noisy(N), sampler=RandomSampler(range(N), generator=seven()), **a
    ),
    "sampler with state": lambda **a: loader(Noisy(N), sampler=StatefulSampler(N), **a),
    "dataset with state": lambda **a: loader(StatefulDataset(N), shuffle=True, **a),
    "plain iterable": lambda **a: loader(PlainIterable(UNEVEN), **a),
    "iterable with state": lambda **a: loader(StatefulIterable(UNEVEN), **a),
    "own iterator": lambda **a: loader(OwnIterator(UNEVEN), **a),
}
WORKERS = [0, 2]


def copies(batches: Any) -> list[Any]:
    return [copy_of(batch) for batch in batches]


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_load_reaches_an_iterator_that_delivered_nothing(kind: str, num_workers: int) -> None:
    """torchdata ignores a load behind iter()."""
    make = KINDS[kind]
    expected, states = uninterrupted(make(num_workers=num_workers), 1)
    resumed = make(num_workers=num_workers)
    batches = iter(resumed)
    resumed.load_state_dict(states[0, 2])
    assert resumed.state_dict() == states[0, 2]
    assert same(copies(batches), expected[0][2:])


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_construction_iteration_and_state_have_no_side_effects(kind: str, num_workers: int) -> None:
    """torchdata's state_dict() starts workers and draws the order, and ours does not."""
    before, children = generators(), multiprocessing.active_children()
    built = KINDS[kind](num_workers=num_workers)
    iterator = iter(built)
    first, second = built.state_dict(), built.state_dict()
    assert same(first, second)
    assert multiprocessing.active_children() == children
    assert generators() == before
    expected = copies(KINDS[kind](num_workers=num_workers))
    assert same(copies(iterator), expected)
    assert generators() == before


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_state_begins_the_same_loader_anew(kind: str, num_workers: int) -> None:
    """Before the first batch, of a loader that has gone on since."""
    built = KINDS[kind](num_workers=num_workers)
    state = built.state_dict()
    expected = [copies(built), copies(built)]
    for _ in built:
        break
    built.load_state_dict(state)
    assert same([copies(built), copies(built)], expected)


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_another_live_iterator_takes_the_state_and_leaves_the_first_alone(kind: str) -> None:
    """Each iterator is a pass; workers' objects are each pass's own."""
    if "sampler" in kind:
        pytest.skip("the two passes share the user's one sampler, as in torch")
    make = KINDS[kind]
    expected, states = uninterrupted(make(num_workers=2), 2)
    built = make(num_workers=2)
    first = iter(built)
    found = [copy_of(next(first))]
    second = iter(built)
    begun = [copy_of(next(second))]
    assert built.state_dict() == states[1, 1]
    found.extend(copies(first))
    assert built.state_dict() == states[1, 1]
    assert same([found, begun + copies(second)], expected)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_break_leaves_nothing_behind_and_a_state_that_goes_on(
    kind: str, num_workers: int
) -> None:
    make = KINDS[kind]
    expected, states = uninterrupted(make(num_workers=num_workers), 2)
    before = set(multiprocessing.active_children())
    built = make(num_workers=num_workers)
    for _ in built:
        break
    gc.collect()
    assert set(multiprocessing.active_children()) <= before
    assert built.state_dict() == states[0, 1]
    resumed = make(num_workers=num_workers)
    resumed.load_state_dict(built.state_dict())
    assert same([copies(resumed), copies(resumed)], [expected[0][1:], expected[1]])


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_behind_its_end_an_iterator_stays_ended(kind: str, num_workers: int) -> None:
    built = KINDS[kind](num_workers=num_workers)
    batches = iter(built)
    copies(batches)
    state = built.state_dict()
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(batches)
    assert built.state_dict() == state
    assert (state["epoch"], state["position"]) == (1, 0)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_rest_can_be_the_next_epoch(kind: str, num_workers: int) -> None:
    """``on_epoch_boundary``."""
    make = KINDS[kind]
    expected, states = uninterrupted(make(num_workers=num_workers), 2)
    last = states[0, len(expected[0])]
    empty = make(num_workers=num_workers)
    empty.load_state_dict(last)
    assert same([copies(empty), copies(empty)], [[], expected[1]])
    following = make(num_workers=num_workers, on_epoch_boundary="next_epoch")
    following.load_state_dict(last)
    assert same(copies(following), expected[1])


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_warns_in_an_ordinary_run(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        built = KINDS[kind](num_workers=1)
        for _ in built:
            built.state_dict()

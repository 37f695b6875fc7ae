"""Several iterators of a loader, persistent workers, empty epochs, and distant places."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset

from stateful_gpu_loader import StatefulGPULoader
from tests.conformance import copy_of, same, uninterrupted
from tests.loader.passes import interrupted
from tests.map_datasets import Indices, Noisy, OwnGenerator
from tests.stream_kinds import KINDS


def make_noisy(**changes: Any) -> StatefulGPULoader[Any]:
    arguments: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 7, **changes}
    return StatefulGPULoader(Noisy(22), **arguments)


def test_a_subset_is_read_item_by_item() -> None:
    """Its items must not depend on their batch."""
    whole = StatefulGPULoader(Subset(Noisy(30), range(5, 25)), batch_size=20, seed=7)
    parts = StatefulGPULoader(Subset(Noisy(30), range(5, 25)), batch_size=3, seed=7)
    for key in ("random", "numpy", "torch"):
        joined = torch.cat([batch[key] for batch in parts])
        assert torch.equal(next(iter(whole))[key], joined)


@pytest.mark.processes
@pytest.mark.parametrize(
    "wrap",
    [
        lambda dataset: Subset(dataset, range(3, 20)),
        lambda dataset: ConcatDataset([dataset, Indices(4)]),
        lambda dataset: StackDataset(dataset, Indices(22)),
        lambda dataset: Subset(StackDataset(own=dataset), range(9)),
    ],
    ids=["subset", "concat", "stack", "subset of stack"],
)
def test_a_private_generator_is_reached_inside_torchs_wrappers(wrap: Any) -> None:
    """random_split returns a Subset."""
    orders = [
        list(StatefulGPULoader(wrap(OwnGenerator(22)), batch_size=None, seed=7, num_workers=w))
        for w in (0, 2)
    ]
    assert same(*orders)


def test_persistent_workers_stay_over_passes_and_broken_ones() -> None:
    loader = make_noisy(num_workers=2, persistent_workers=True)
    expected, _ = uninterrupted(make_noisy(), 3)
    broken = iter(loader)
    next(broken)
    before = [worker.pid for worker in broken._workers]
    del broken
    following = iter(loader)
    assert same(copy_of(next(following)), expected[1][0])
    assert [worker.pid for worker in following._workers] == before
    assert len(list(following)) == 5
    assert same([copy_of(batch) for batch in loader], expected[2])


@pytest.mark.processes
@pytest.mark.parametrize(
    ("kind", "persistent"),
    [
        ("order", True),
        ("order", False),
        ("iterable with state", False),
        ("plain iterable", False),
        ("dataset with state", False),
    ],
)
def test_another_live_iterator_takes_the_state_and_leaves_the_first_alone(
    kind: str, persistent: bool
) -> None:
    """Each iterator is a pass; each pass has its own objects in workers."""
    make = partial(KINDS[kind], num_workers=2, persistent_workers=persistent)
    expected, states = uninterrupted(make(), 2)
    built = make()
    first = iter(built)
    found = [copy_of(next(first))]
    second = iter(built)
    first_batches = [copy_of(next(second))]
    assert built.state_dict() == states[1, 1]
    found.extend(copy_of(batch) for batch in first)
    assert built.state_dict() == states[1, 1]
    assert same([found, first_batches + [copy_of(batch) for batch in second]], expected)


def test_an_older_iterator_keeps_running_after_a_load_and_does_not_move_the_state() -> None:
    expected, states = uninterrupted(make_noisy(), 1)
    loader = make_noisy()
    older = iter(loader)
    next(older)
    loader.load_state_dict(states[0, 3])
    assert same(copy_of(next(older)), expected[0][1])
    assert loader.state_dict() == states[0, 3]
    assert same([copy_of(batch) for batch in loader], expected[0][3:])


def test_an_epoch_without_a_whole_batch_is_one_epoch_after_a_resume_too() -> None:
    """``on_epoch_boundary="next_epoch"`` with ``drop_last``: each pass advances by one epoch."""
    arguments: dict[str, Any] = {"drop_last": True, "on_epoch_boundary": "next_epoch"}
    loader = StatefulGPULoader(Indices(10), batch_size=8, **arguments)
    after_the_last_batch, _ = interrupted(loader)
    resumed = StatefulGPULoader(Indices(10), batch_size=16, **arguments)
    resumed.load_state_dict(after_the_last_batch)
    for epoch in (1, 2, 3):
        assert list(resumed) == []
        assert resumed.state_dict()["epoch"] == epoch + 1
    for place in ((1, 0), (1, 10)):
        resumed.load_state_dict({**after_the_last_batch, "epoch": place[0], "position": place[1]})
        assert list(resumed) == []
        assert resumed.state_dict()["epoch"] == (2 if place[1] == 0 else 3)


def test_a_dropped_tail_counts_as_the_end_of_the_epoch() -> None:
    loader = StatefulGPULoader(
        Indices(10), batch_size=8, drop_last=True, on_epoch_boundary="next_epoch"
    )
    loader.load_state_dict({**loader.state_dict(), "position": 4})
    assert [batch.tolist() for batch in loader] == [list(range(8))]

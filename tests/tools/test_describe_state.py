"""A state in a person's words: as much as it says, and no more."""

from __future__ import annotations

from typing import Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader import StatefulGPULoader, StateMismatch, merge_state_dicts
from stateful_gpu_loader.tools.compare_states import compare_states
from stateful_gpu_loader.tools.describe_state import StateDescription, describe_state
from tests.loader.test_lanes import make as make_lanes
from tests.map_datasets import Failing
from tests.user_objects import PlainIterable, StatefulDataset, StatefulSampler


def after(loader: StatefulGPULoader[Any], batches: int) -> StateDescription:
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return describe_state(loader.state_dict())


def test_samples_of_an_epoch() -> None:
    loader = StatefulGPULoader(range(20), batch_size=4, shuffle=True, seed=7)
    for _ in loader:
        pass
    found = after(loader, 3)
    assert (found.epoch, found.position, found.share, found.steps) == (1, 12, 0.6, 3)
    assert (found.samples_seen, found.seed, found.global_batch_size) == (32, 7, 4)
    assert not found.unverified


def test_the_positions_of_all_ranks_count() -> None:
    loader = StatefulGPULoader(range(20), batch_size=2, num_replicas=2, rank=1)
    found = after(loader, 3)
    assert (found.position, found.global_batch_size, found.steps) == (12, 4, 3)


def test_what_is_yours_is_not_verified() -> None:
    found = after(StatefulGPULoader(range(8), batch_size=2, transform=lambda sample: sample), 1)
    [text] = found.unverified
    assert "<lambda> is compared by name only" in text


def test_states_of_your_objects() -> None:
    loader = StatefulGPULoader(
        StatefulDataset(20), batch_size=2, sampler=StatefulSampler(20), num_workers=0
    )
    found = after(loader, 2)
    assert [text.partition(" (")[0] for text in found.user_states] == [
        "the sampler",
        "dataset or iterator in the main process",
    ]
    assert found.epoch_length is None
    assert found.share is None
    assert "sampler" in found.unit


def test_an_iterable_counts_batches() -> None:
    found = after(StatefulGPULoader(PlainIterable([9]), batch_size=2), 2)
    assert (found.position, found.unit, found.steps, found.samples_seen) == (2, "batches", 2, None)
    assert "how many batches an epoch has" in found.unknown


def test_lanes_and_how_far_each_is() -> None:
    ranks = [make_lanes(num_replicas=3, rank=rank) for rank in range(3)]
    states = []
    for loader in ranks:
        next(iter(loader))
        states.append(loader.state_dict())
    one, merged = describe_state(states[0]), describe_state(merge_state_dicts(states))
    assert merged.num_lanes == len(merged.lanes)
    assert len(one.lanes) < len(merged.lanes)
    assert sum(lane.num_samples for lane in merged.lanes) > 0
    assert any("other ranks' states" in text for text in one.unknown)
    assert not any("other ranks' states" in text for text in merged.unknown)


def test_bad_samples() -> None:
    loader = StatefulGPULoader(
        Failing(20, {5}), batch_size=4, on_bad_sample="drop", collate_fn=list
    )
    found = after(loader, 3)
    assert found.num_bad_samples == 1
    assert found.bad_samples[0].index == 5


def test_a_state_of_torchdata() -> None:
    theirs = StatefulDataLoader(range(8), batch_size=2)
    next(iter(theirs))
    found = describe_state(theirs.state_dict())
    assert (found.writer, found.position) == ("StatefulDataLoader of torchdata", 1)
    assert found.epoch is None
    with pytest.raises(Exception, match="does not say which loader"):
        compare_states(theirs.state_dict(), theirs.state_dict())


def test_a_damaged_state_is_refused() -> None:
    state = StatefulGPULoader(range(8)).state_dict()
    with pytest.raises(StateMismatch, match="position"):
        describe_state({**state, "position": -1})


def states_of(batches: int, **arguments: Any) -> dict[str, Any]:
    loader = StatefulGPULoader(**{"dataset": range(20), "batch_size": 4, "seed": 7, **arguments})
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return loader.state_dict()


def test_the_same_place_is_the_same() -> None:
    found = compare_states(states_of(2), states_of(2))
    assert found.is_same
    assert found.resumes


@pytest.mark.parametrize(("first", "second", "steps"), [(1, 4, 3), (4, 1, -3)])
def test_batches_that_lie_between(first: int, second: int, steps: int) -> None:
    found = compare_states(states_of(first), states_of(second))
    assert (found.steps_between, found.samples_between) == (steps, 4 * steps)
    assert found.resumes
    assert not found.is_same


def test_epochs_that_lie_between() -> None:
    loader = StatefulGPULoader(range(20), batch_size=4, seed=7)
    before = states_of(1)
    for _ in loader:
        pass
    found = compare_states(before, loader.state_dict())
    assert (found.samples_between, found.steps_between) == (16, None)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"shuffle": True}, "shuffle"),
        ({"drop_last": True}, "drop_last"),
        ({"seed": 8}, "seed"),
        ({"dataset": range(21)}, "length"),
        ({"transform": abs}, "transform"),
    ],
)
def test_what_a_load_would_refuse(change: dict[str, Any], field: str) -> None:
    saved, other = states_of(1), states_of(1, **change)
    found = compare_states(saved, other)
    assert field in found.refused
    assert not found.resumes
    present = StatefulGPULoader(**{"dataset": range(20), "batch_size": 4, "seed": 7, **change})
    with pytest.raises(StateMismatch) as raised:
        present.load_state_dict(saved)
    assert raised.value.field in found.refused


def test_another_batch_size_is_no_obstacle() -> None:
    found = compare_states(states_of(2), states_of(4, batch_size=2))
    assert [one.field for one in found.differences] == ["global_batch_size"]
    assert found.resumes

"""Map-style datasets with state, separate in each worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import LoaderError, StatefulGPULoader, StateMismatch
from tests.conformance import loaded, refusal, same
from tests.loader.passes import interrupted
from tests.map_datasets import Indices
from tests.user_objects import (
    StatefulBatchSampler,
    StatefulDataset,
    StatefulIterable,
    StatefulSampler,
)

N = 23


def make(**arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(StatefulDataset(N), **{"batch_size": 4, "seed": 1, **arguments})


@pytest.mark.processes
@pytest.mark.parametrize(("saved", "present"), [(2, 1), (2, 0), (0, 2)])
def test_another_number_of_workers_is_refused_with_both(saved: int, present: int) -> None:
    loader = make(num_workers=saved)
    next(iter(loader))
    refused = refusal(make(num_workers=present), loader.state_dict(), "num_workers")
    assert (refused.saved, refused.present) == (saved, present)


def test_a_state_of_generators_beside_keyed_ones(tmp_path: Path) -> None:
    """The tutorial's datasets save torch's generator; the sample's key overrides it."""

    class KeepsGenerator(Indices):
        def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
            return index, torch.rand(())

        def state_dict(self) -> dict[str, Any]:
            return {"generator": torch.get_rng_state()}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            torch.set_rng_state(state_dict["generator"])

    def build(num_workers: int) -> StatefulGPULoader[Any]:
        return StatefulGPULoader(KeepsGenerator(9), batch_size=2, seed=1, num_workers=num_workers)

    plain = list(StatefulGPULoader(_Rand(9), batch_size=2, seed=1))
    for num_workers in (0, 2):
        loader = build(num_workers)
        batches = iter(loader)
        assert same([next(batches), next(batches)], plain[:2])
        torch.save(loader.state_dict(), tmp_path / "state.pt")
        resumed = build(num_workers)
        before = torch.get_rng_state()
        resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert same(list(resumed), plain[2:])
        assert torch.equal(torch.get_rng_state(), before)


class _Rand(Indices):
    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.rand(())


def test_a_state_is_a_copy() -> None:
    """A dataset that returns its own list does not change a saved state."""

    class Listing(Indices):
        def __init__(self) -> None:
            super().__init__(8)
            self.seen: list[int] = []

        def __getitem__(self, index: int) -> int:
            self.seen.append(index)
            return index

        def state_dict(self) -> dict[str, Any]:
            return {"seen": self.seen}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.seen = state_dict["seen"]

    loader = StatefulGPULoader(Listing(), batch_size=2)
    state, batches = interrupted(loader)
    next(batches)
    assert state["user"]["workers"][0]["dataset"] == {"seen": [0, 1]}
    resumed = loaded(StatefulGPULoader(Listing(), batch_size=2), state)
    state["user"]["workers"][0]["dataset"]["seen"].append(99)
    next(iter(resumed))
    assert resumed.state_dict()["user"]["workers"][0]["dataset"] == {"seen": [0, 1, 2, 3]}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_that_cannot_be_copied_is_an_error_with_its_owner(num_workers: int) -> None:
    class Functional(Indices):
        def state_dict(self) -> dict[str, Any]:
            return {"function": lambda: 0}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            pass

    loader = StatefulGPULoader(Functional(4), num_workers=num_workers)
    wanted = r"state_dict\(\) of Functional returned dict that cannot be copied"
    with pytest.raises(LoaderError, match=wanted):
        next(iter(loader))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_states_of_earlier_batches_are_kept(num_workers: int) -> None:
    """Trainers that fetch ahead ask for them, and resume from them."""

    def build() -> StatefulGPULoader[Any]:
        return make(sampler=StatefulSampler(N), num_workers=num_workers)

    expected = list(build())
    loader = build()
    batches, states = iter(loader), []
    for _ in range(4):
        states.append(loader.state_dict())
        next(batches)
    assert [loader.state_dict(batches_ago=k) for k in (1, 2, 3)] == states[:0:-1]
    resumed = loaded(build(), loader.state_dict(batches_ago=4))
    assert same(list(resumed), expected)


def test_damaged_user_states_are_refused_and_nothing_changes() -> None:
    loader = make(num_workers=2)
    good, _ = interrupted(loader)
    other = make(num_workers=2)
    for damage in (
        {"user": {}},
        {"user": 7},
        {"user": {**good["user"], "workers": [1, 2]}},
        {"user": {**good["user"], "workers": good["user"]["workers"][:1]}},
        {"user": {**good["user"], "next_worker": 5}},
        {"user": {**good["user"], "steps": -1}},
        {"user": {**good["user"], "steps": True}},
        {"user": {**good["user"], "sampler": {"kind": "state"}}},
        {"index_digest": "ab"},
        {"ahead": "[1"},
        {"ahead": "[-1]"},
        {"bad_samples": "{}"},
    ):
        refusal(other, {**good, **damage})
    plain = StatefulGPULoader(Indices(N), batch_size=4, num_workers=2)
    assert "Indices, which has no state" in str(refusal(plain, good))


def with_snapshots(dataset: Any, **arguments: Any) -> StatefulGPULoader[Any]:
    """Return a loader whose states, after three batches, are one batch after a snapshot."""
    given = {"num_workers": 1, "snapshot_every_n_steps": 2, **arguments}
    return StatefulGPULoader(dataset, **given)


def after_three_batches(loader: StatefulGPULoader[Any]) -> dict[str, Any]:
    state, _ = interrupted(loader, 3)
    assert state["user"]["steps"] == 1
    return state


COUNTS_STEPS = {
    "dataset": lambda n: with_snapshots(StatefulDataset(n), batch_size=4),
    "sampler": lambda n: with_snapshots(range(40), sampler=StatefulSampler(n), batch_size=4),
    "batch sampler": lambda n: with_snapshots(range(40), batch_sampler=StatefulBatchSampler(n)),
    "iterable": lambda n: with_snapshots(StatefulIterable([n]), batch_size=4),
}


@pytest.mark.parametrize("kind", ["dataset", "sampler", "iterable"])
@pytest.mark.parametrize("more", [4, 10**6])
def test_more_batches_after_a_snapshot_than_the_position_allows(kind: str, more: int) -> None:
    state = after_three_batches(COUNTS_STEPS[kind](40))
    damaged = {**state, "user": {**state["user"], "steps": 1 + more}}
    assert refusal(COUNTS_STEPS[kind](40), damaged, "user's steps").saved == 1 + more


@pytest.mark.parametrize("kind", ["sampler", "batch sampler", "iterable"])
def test_an_epoch_that_ends_before_the_batches_after_the_snapshot(kind: str) -> None:
    """Otherwise they would be skipped silently, and the epoch would be empty."""
    state = after_three_batches(COUNTS_STEPS[kind](40))
    state["user"]["steps"] += 20
    state["position"] += 20 * (4 if kind == "sampler" else 1)
    loader = loaded(COUNTS_STEPS[kind](40), state)
    with pytest.raises(StateMismatch, match=r"expected was '\d+, after which the .* ends"):
        list(loader)

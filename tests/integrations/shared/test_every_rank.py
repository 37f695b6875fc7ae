"""The states of all ranks in one: refusals, and the refusal by a plain loader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from stateful_gpu_loader import StatefulGPULoader, StateMismatch
from stateful_gpu_loader.integrations.shared import every_rank
from stateful_gpu_loader.integrations.shared.every_rank import load_own_state, state_of_all_ranks
from stateful_gpu_loader.state.bad_samples import BadSamples, FoundBad
from tests.conformance import differing, refusal
from tests.rank_processes import on_ranks


def loader_of(epoch: int = 0) -> StatefulGPULoader[Any]:
    loader: StatefulGPULoader[Any] = StatefulGPULoader(range(8), batch_size=2, seed=1)
    loader.set_epoch(epoch)
    next(iter(loader))
    return loader


def of_ranks(*ranks: int, num_ranks: int = 1, **changes: Any) -> dict[str, Any]:
    states = {f"rank_{rank:05d}": loader_of(epoch=3).state_dict() for rank in ranks}
    return {
        "format": "stateful_gpu_loader of each rank",
        "version": 1,
        "num_ranks": num_ranks,
        **states,
        **changes,
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_state_of_each_rank_gives_each_its_own(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state survives JSON."""
    monkeypatch.setattr(every_rank, "size_and_rank", lambda: (2, rank))
    other = {f"rank_{1 - rank:05d}": loader_of(epoch=2).state_dict()}
    loader = loader_of()
    load_own_state(loader, json.loads(json.dumps(of_ranks(rank, num_ranks=2, **other))))
    assert loader.state_dict()["epoch"] == 3


@pytest.mark.parametrize(
    ("state", "field", "values"),
    [
        (of_ranks(0, 1, num_ranks=2), "number of ranks", {"saved": 2, "present": 1}),
        (of_ranks(), "rank_00000", {}),
        (of_ranks(0, version=2), "version", {"saved": 2, "present": 1}),
        ({**of_ranks(0), "rank_00000": 3}, "format", {"saved": "int"}),
        (None, "format", {"saved": "NoneType"}),
    ],
)
def test_damaged_state_of_each_rank_is_refused(
    state: Any, field: str, values: dict[str, Any]
) -> None:
    """With the numbers, and nothing is changed."""
    loader = loader_of()
    before = loader.state_dict()
    with pytest.raises(StateMismatch, check=differing(field, **values)):
        load_own_state(loader, state)
    assert loader.state_dict() == before


def test_loader_alone_refuses_the_state_of_each_rank() -> None:
    """The error says that the states belong to all ranks."""
    assert refusal(loader_of(), of_ranks(0)).saved == "stateful_gpu_loader of each rank"


class WithTensor(IterableDataset[int]):
    def __init__(self, kept: torch.Tensor) -> None:
        self.kept = kept

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = state["kept"]


@pytest.fixture(scope="module")
def gathered() -> list[dict[str, Any]]:
    """Return the states that each of two ranks gathers from loaders of several kinds."""
    return on_ranks(_gather, 2)


def _gather(rank: int) -> dict[str, Any]:
    # Two processes with the samples of one data-parallel rank; then one is a step ahead.
    one: StatefulGPULoader[Any] = StatefulGPULoader(
        range(8), batch_size=2, seed=1, num_replicas=1, rank=0
    )
    batches = iter(one)
    next(batches)
    found: dict[str, Any] = {"equal": state_of_all_ranks(one)}
    for _ in range(rank):
        next(batches)
    try:
        state_of_all_ranks(one)
    except StateMismatch as error:
        found["apart"] = error.field, error.saved, error.present

    bad: StatefulGPULoader[Any] = StatefulGPULoader(WithTensor(torch.arange(3)), seed=1)
    bad.bad_samples.add((FoundBad(index=rank, position=rank, epoch=0, reason="no label"),))
    found["united"] = state_of_all_ranks(bad)
    unordered: StatefulGPULoader[Any] = StatefulGPULoader(
        range(8), seed=1, num_replicas=2, rank=rank, in_order=False
    )
    batches = iter(unordered)
    for _ in range(1 + rank):
        next(batches)
    found["unordered"] = state_of_all_ranks(unordered)
    for name, kept in (("same", torch.arange(3)), ("other", torch.arange(3) + rank)):
        found[name] = state_of_all_ranks(StatefulGPULoader(WithTensor(kept), seed=1))
    return found


def test_ranks_of_one_data_parallel_rank_count_once(gathered: list[dict[str, Any]]) -> None:
    """They differ only in the record of bad samples."""
    for rank in gathered:
        assert rank["equal"]["position"] == 2
        field, saved, present = rank["apart"]
        assert (field, saved) == ("position", 4)
        assert present == "2, as another process of data-parallel rank 0"


def test_records_and_order_of_arrival_may_differ_from_rank_to_rank(
    gathered: list[dict[str, Any]],
) -> None:
    """The records of bad samples are united. Without an order each rank keeps its state."""
    for rank in gathered:
        assert BadSamples.from_text(rank["united"]["bad_samples"]).total == 2
        assert rank["unordered"]["num_ranks"] == 2


def test_states_that_hold_tensors_are_compared_as_a_whole(gathered: list[dict[str, Any]]) -> None:
    """States of the user's objects: equal ones are one state, others one for each rank."""
    for rank in gathered:
        assert rank["same"]["format"] == "stateful_gpu_loader"
        assert rank["other"]["num_ranks"] == 2

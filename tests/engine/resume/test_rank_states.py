"""Merging the states of ranks, and refusals by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stateful_gpu_loader import StatefulGPULoader, merge_state_dicts
from stateful_gpu_loader.errors import StateMismatch
from tests.conformance import differing, refusal
from tests.datasets.shards import Numbers
from tests.map_datasets import Indices


def states_of(steps: int = 2, ranks: int = 2, **arguments: Any) -> list[dict[str, Any]]:
    """Return the states of ranks that have delivered ``steps`` batches each."""
    states = []
    for rank in range(ranks):
        loader = StatefulGPULoader(
            Numbers((9, 4, 7, 8), lanes=4),
            **{"batch_size": 2, "seed": 1, "num_replicas": ranks, "rank": rank, **arguments},
        )
        batches = iter(loader)
        for _ in range(steps):
            next(batches)
        states.append(loader.state_dict())
    return states


def test_the_order_of_the_ranks_does_not_matter() -> None:
    """The merged state holds all lanes of all ranks, and nothing else is added."""
    states = states_of()
    merged = merge_state_dicts(states)
    assert merged == merge_state_dicts(states[::-1])
    assert set(merged) == set(states[0]) | set(states[1])
    for state in states:
        assert state.items() <= merged.items()


def test_a_rank_that_has_ended_its_epoch() -> None:
    """The rank is one epoch ahead, and its lanes are empty."""
    states = states_of()
    (over,) = (
        {
            **state,
            "epoch": 1,
            "position": 0,
            **{key: "1/0:0:0:0:0" for key in state if "lane" in key},
        }
        for state in states[1:]
    )
    merged = merge_state_dicts([states[0], over])
    assert (merged["epoch"], merged["position"]) == (0, 2)
    assert merged["lane_00001"] == f"0/0:0:{1 << 62}:0:0"
    rest = StatefulGPULoader(Numbers((9, 4, 7, 8), lanes=4), batch_size=50, seed=1)
    rest.load_state_dict(merged)
    (batch,) = rest
    assert {i // 1000 for i in batch.tolist()} == {0, 2}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"position": 3}, "position"),
        ({"seed": 2}, "seed"),
        ({"global_batch_size": 6}, "global_batch_size"),
        ({"epoch": 1, "position": 1}, "epoch"),
        ({"epoch": 2, "position": 0}, "epoch"),
        ({"user": {"a": 1}}, "user"),
        ({"lane_00000": "0/0:0:0:0:0"}, "lanes"),
        ({"format": "another"}, "format"),
    ],
)
def test_states_that_do_not_belong_together(changes: dict[str, Any], field: str) -> None:
    """The error names the field and both values."""
    first, second = states_of()
    for states in ([first, {**second, **changes}], [{**second, **changes}, first]):
        with pytest.raises(StateMismatch, check=differing(field)):
            merge_state_dicts(states)


def test_no_states_and_one_state_twice() -> None:
    with pytest.raises(ValueError, match="no states were given"):
        merge_state_dicts([])
    first, _ = states_of()
    with pytest.raises(StateMismatch, check=differing("lanes")):
        merge_state_dicts([first, first])


def test_a_rank_that_is_missing() -> None:
    """The error comes before anything is loaded, and has the numbers."""
    states = states_of(ranks=4)
    with pytest.raises(StateMismatch, match=r"3 of 4 .* 3 .*\[2\]"):
        merge_state_dicts([states[0], states[1], states[3]])


def test_lanes_of_an_epoch_that_a_rank_has_ended_are_not_mixed_with_those_of_others() -> None:
    """torch.distributed.checkpoint gives another number of ranks such states.

    They have one rank's epoch and position, and every rank's lanes.
    """
    earlier = states_of(steps=5, ranks=1)[0]
    ahead = {**earlier, "epoch": 1, "position": 0}
    lanes = {key: f"1/{text.partition('/')[2]}" for key, text in earlier.items() if "lane" in key}
    for mixed in ({**earlier, **dict([lanes.popitem()])}, {**ahead, "lane_00000": "1/0:0:0:0:0"}):
        loader = StatefulGPULoader(Numbers((9, 4, 7, 8), lanes=4), batch_size=2, seed=1)
        error = refusal(loader, mixed)
        assert error.field.startswith("lane_")
        assert "RankedState" in error.remedy


def test_records_of_bad_samples_are_united() -> None:
    ranks = []
    for rank in range(2):
        loader = StatefulGPULoader(Indices(8), num_replicas=2, rank=rank, seed=1)
        bad = f'{{"total": 1, "samples": [[{rank}, {rank}, 0, "ValueError: x", true]]}}'
        ranks.append({**loader.state_dict(), "bad_samples": bad})
    loader = StatefulGPULoader(Indices(8), seed=1)
    merged = merge_state_dicts(ranks)
    loader.load_state_dict({**merged, "global_batch_size": 1})
    assert {bad.index for bad in loader.bad_samples.samples} == {0, 1}


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_lane_is_missing(ranks: int, counted: bool) -> None:
    """Lanes of three of four ranks: refused before the missing lane would be read.

    All ranks refuse if they need each other's lanes.
    """
    dataset = Numbers((9, 4, 7, 8), lanes=4, counted=counted)
    states = []
    for rank in range(4):
        loader = StatefulGPULoader(dataset, batch_size=2, seed=1, num_replicas=4, rank=rank)
        next(iter(loader))
        states.append(loader.state_dict())
    merged = merge_state_dicts(states)
    del merged["lane_00003"]
    for rank in range(ranks):
        loader = StatefulGPULoader(
            dataset, batch_size=8 // ranks, seed=1, num_replicas=ranks, rank=rank
        )
        if counted or 3 in range(rank, 4, ranks):
            assert "3" in str(refusal(loader, merged).saved)


def test_cursors_of_another_number_of_ranks_lose_no_samples() -> None:
    """A DCP checkpoint gives each rank its own lanes and other ranks' position."""
    dataset = Numbers((9, 4, 7, 8), lanes=4, counted=True)

    def build(ranks: int, rank: int) -> StatefulGPULoader[Any]:
        return StatefulGPULoader(
            dataset, batch_size=4 // ranks, seed=1, shuffle=True, num_replicas=ranks, rank=rank
        )

    refused: list[tuple[str, bool]] = []
    for steps in range(1, 7):
        alone = build(1, 0)
        batches = iter(alone)
        came = [number for _ in range(steps) for number in next(batches).tolist()]
        state = alone.state_dict()
        for rank in range(4):
            loader = build(4, rank)
            own = {key: state[key] for key in loader.state_dict()}
            try:
                loader.load_state_dict(own)
            except StateMismatch as error:
                refused.append((error.field, "RankedState" in error.remedy))
                continue
            came += [number for batch in loader for number in batch.tolist()]
            wanted = {number for number in dataset.all() if number // 1000 in shards(loader)}
            assert wanted <= set(came), (steps, rank)
    assert set(refused) == {("position", True)}


def shards(loader: StatefulGPULoader[Any]) -> set[int]:
    """Return the shards that the rank read in its finished epoch, one lane each."""
    (key,) = [key for key in loader.state_dict() if key.startswith("lane_")]
    fresh = StatefulGPULoader(loader.dataset, batch_size=99, seed=1, shuffle=True)
    lanes = fresh._engine.plan.lanes
    assert lanes is not None
    return {int(name) for name in lanes.of_epoch(1, 0).shards_of(int(key[5:]))}


class Opaque:
    """A user's object without a JSON form."""

    def __init__(self, number: int) -> None:
        self.number = number


@pytest.mark.parametrize("kind", [lambda n: torch.Generator().manual_seed(n).get_state(), Opaque])
def test_tensors_and_objects_in_states_of_own_objects(kind: Any) -> None:
    """They are compared by value: equal ones merge, others are refused by name."""
    states = states_of(ranks=2)
    for number in (1, 2):
        states[0]["user"], states[1]["user"] = {"it": kind(1)}, {"it": kind(number)}
        if number == 1:
            merged = merge_state_dicts(states)["user"]["it"]
            assert merged is states[0]["user"]["it"] or torch.equal(merged, kind(1))
            continue
        with pytest.raises(StateMismatch, check=differing("user")):
            merge_state_dicts(states)

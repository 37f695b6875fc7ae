"""States of distributed checkpoints that do not fit are refused with the numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader import StatefulGPULoader, StateMismatch
from stateful_gpu_loader.integrations.dcp import RankedState
from tests.conformance import differing, refusal
from tests.datasets.shards import Numbers
from tests.integrations.dcp_jobs import Job, datasets, refused, run_all, save_of_rank_0
from tests.rank_processes import on_ranks
from tests.trainer_data import image_loader


def test_on_another_number_of_ranks_and_with_a_rank_missing(tmp_path: Path) -> None:
    """States of user objects by both numbers, lanes by the name of the missing one."""
    data = datasets(tmp_path / "data")

    def job(name: str, way: str = "ranked", **arguments: Any) -> Job:
        return Job(data=name, dataset=data[name], way=way, **arguments)

    states = tmp_path / "states"
    on_ranks(run_all, 2, [job("states", steps=2, save=states)])
    (error,) = on_ranks(refused, 1, job("states", load=states))
    assert error[0] == "StateMismatch"
    assert "world_size differs: the state has 2, expected was 1" in error[1]
    assert "resume on 2 data-parallel ranks" in error[1]
    assert error[2], "the loader is unchanged"

    alone = tmp_path / "alone"
    whole = on_ranks(save_of_rank_0, 2, job("lanes", save=alone))
    for kind, text, unchanged in on_ranks(refused, 2, job("lanes", "value", load=alone)):
        assert kind == "CheckpointException"
        assert "loader.lane_00001" in text
        assert unchanged
    loader = image_loader(data["lanes"], batch_size=2, num_replicas=2, rank=1)
    refusal(loader, whole[0], "lanes")


def ranks_of(steps: int, size: int = 2, **arguments: Any) -> list[dict[str, Any]]:
    """Return the states of some ranks of lanes."""
    states = []
    for rank in range(size):
        loader = lanes(rank, size, **arguments)
        batches = iter(loader)
        for _ in range(steps):
            next(batches)
        states.append(loader.state_dict())
    return states


def lanes(rank: int, size: int, **arguments: Any) -> StatefulGPULoader[Any]:
    dataset = Numbers((9, 4, 7, 8), lanes=4, counted=True)
    given = {"batch_size": 2, "seed": 1, **arguments}
    return StatefulGPULoader(dataset, rank=rank, num_replicas=size, **given)


def value_of(states: list[dict[str, Any]]) -> dict[str, Any]:
    ranks = {f"dp_rank_{rank}": state for rank, state in enumerate(states)}
    return {"world_size": len(states), "dp_ranks": json.dumps(ranks)}


def ranked(rank: int = 0, size: int = 2, **arguments: Any) -> RankedState:
    return RankedState(lanes(rank, size, **arguments), dp_rank=rank, dp_world_size=size)


GOOD = value_of(ranks_of(2))


def test_another_batch_size_needs_the_states_of_all() -> None:
    """A rank's own state does not say how many batches the largest rank has left."""
    wrapped = ranked(batch_size=1)
    wrapped.load_state_dict(GOOD)
    own = ranked()
    own.load_state_dict(GOOD)
    rest = [number for batch in wrapped.loader for number in batch.tolist()]
    assert set(rest) >= {number for batch in own.loader for number in batch.tolist()}


def test_the_records_of_bad_samples_become_one() -> None:
    """Each rank keeps its own on the same number of ranks, and has all on another number."""
    states = ranks_of(2)
    for rank, state in enumerate(states):
        row = f'[{rank}, {rank}, 0, "ValueError: x", true]'
        state["bad_samples"] = f'{{"total": 1, "samples": [{row}]}}'
    for place, indices in (((0, 1), [0, 1]), ((0, 2), [0]), ((1, 2), [1])):
        wrapped = ranked(*place)
        wrapped.load_state_dict(value_of(states))
        assert [bad.index for bad in wrapped.loader.bad_samples.samples] == indices


def test_another_batch_size_where_states_cannot_be_merged() -> None:
    """The error says why the rank's own state was refused."""
    first, second = ranks_of(2)
    with pytest.raises(StateMismatch) as error:
        ranked(batch_size=1).load_state_dict(value_of([first, {**second, "position": 1}]))
    assert error.value.field == "global_batch_size"


def test_states_of_different_steps_are_refused_on_another_number() -> None:
    """Both numbers, and the reason."""
    wrapped = ranked(size=1)
    before = wrapped.loader.state_dict()
    with pytest.raises(StateMismatch) as error:
        wrapped.load_state_dict(value_of([ranks_of(2)[0], ranks_of(3)[1]]))
    assert (error.value.saved, error.value.present) == (2, 1)
    assert "'position'" in error.value.remedy
    assert differing("position")(error.value.__cause__)
    assert wrapped.loader.state_dict() == before


@pytest.mark.parametrize(
    ("state", "field"),
    [
        ({"dp_rank_0": b"pickled", "world_size": 1}, "keys"),
        (ranks_of(1)[0], "keys"),
        ([1], "keys"),
        ({**GOOD, "world_size": 3}, "dp_ranks"),
        ({**GOOD, "world_size": 1}, "dp_ranks"),
        ({**GOOD, "world_size": True}, "world_size"),
        ({**GOOD, "world_size": 0}, "world_size"),
        ({**GOOD, "dp_ranks": GOOD["dp_ranks"].replace("dp_rank_0", "dp_rank_2")}, "dp_ranks"),
        ({**GOOD, "dp_ranks": GOOD["dp_ranks"][:-1]}, "dp_ranks"),
        ({**GOOD, "dp_ranks": 3}, "dp_ranks"),
        ({**GOOD, "dp_ranks": "[1, 2]"}, "dp_ranks"),
        ({**GOOD, "dp_ranks": "[[1], [2]]"}, "dp_ranks"),
        ({**GOOD, "dp_ranks": '{"dp_rank_0": {"$no": 1}, "dp_rank_1": 2}'}, "dp_ranks"),
        ({**GOOD, "dp_ranks": '{"dp_rank_0": 1, "dp_rank_1": 2}'}, "format"),
    ],
)
def test_an_invalid_state_changes_nothing(state: Any, field: str) -> None:
    wrapped = ranked()
    before = wrapped.loader.state_dict()
    with pytest.raises(StateMismatch, check=differing(field)):
        wrapped.load_state_dict(state)
    assert wrapped.loader.state_dict() == before


def test_an_empty_state_is_none() -> None:
    """torchtitan means a checkpoint without a dataloader's state."""
    wrapped = ranked()
    before = wrapped.loader.state_dict()
    wrapped.load_state_dict({})
    assert wrapped.loader.state_dict() == before


@pytest.mark.parametrize("place", [(0, None), (None, 2), (2, 2), (-1, 2), (0, 0)])
def test_invalid_ranks_are_refused(place: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="Remedy"):
        RankedState(range(3), dp_rank=place[0], dp_world_size=place[1])


def test_ranks_that_the_group_does_not_have() -> None:
    """Without torch.distributed there is one process, and no second rank to ask."""
    with pytest.raises(ValueError, match=r"\['dp_rank_1'\]"):
        ranked(1, 2).state_dict()

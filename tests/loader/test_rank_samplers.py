"""Users' samplers that take one rank's share, resumed from another rank's state."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed
from torch.utils.data import DistributedSampler, Sampler

from stateful_gpu_loader import (
    StatefulGPULoader,
    StateMismatch,
    gather_state_dict,
    merge_state_dicts,
)
from stateful_gpu_loader.integrations.dcp import RankedState
from tests.conformance import same, through_json, uninterrupted
from tests.loader.passes import interrupted
from tests.map_datasets import Indices, Noisy
from tests.rank_processes import on_ranks
from tests.user_objects import (
    DealtWhenBuilt,
    InBatches,
    RepeatedAugmentation,
    ShuffledWhereItLies,
)

N = 15
RANKS = range(2)


def batches_of(sampler: Sampler[int]) -> dict[str, Any]:
    return {"batch_sampler": InBatches(sampler, (4,))}


CASES: dict[str, Any] = {
    "repeated augmentation": lambda rank: {
        "sampler": RepeatedAugmentation(N, 2, rank),
        "batch_size": 4,
    },
    "shuffled in place": lambda rank: {
        "sampler": ShuffledWhereItLies(N - 1, 2, rank),
        "batch_size": 4,
    },
    "in a batch sampler": lambda rank: batches_of(RepeatedAugmentation(N, 2, rank)),
    "torch's in a batch sampler": lambda rank: batches_of(DistributedSampler(Indices(N), 2, rank)),
}


def build(case: Any, rank: int) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(Noisy(N), seed=1, **case(rank))


@pytest.mark.parametrize("name", CASES)
def test_one_ranks_state_restores_every_rank(name: str) -> None:
    """Each rank has its own augmentations, in the middle, at the end and after an epoch."""
    runs = [uninterrupted(build(CASES[name], rank), 3) for rank in RANKS]
    for rank in RANKS:
        expected, own = runs[rank]
        for place, saved in runs[1 - rank][1].items():
            merged = merge_state_dicts([runs[each][1][place] for each in RANKS])
            for state in (saved, merged):
                resumed = build(CASES[name], rank)
                resumed.load_state_dict(through_json(state))
                rest = [list(resumed) for _ in range(place[0], 3)]
                wanted = [
                    expected[n][place[1] if n == place[0] else 0 :] for n in range(place[0], 3)
                ]
                assert same(rest, wanted), (rank, place)
            assert place[0] == 3 or resumed.state_dict() == own[3, 0]


def test_the_ranks_epoch_is_restored_with_it() -> None:
    """The epoch that set_epoch gave to the saving rank."""
    loaders = [build(CASES["repeated augmentation"], rank) for rank in RANKS]
    rests = []
    for loader in loaders:
        loader.set_epoch(5)
        state, batches = interrupted(loader)
        rests.append(list(batches))
    resumed = build(CASES["repeated augmentation"], 0)
    resumed.load_state_dict(state)
    assert same(list(resumed), rests[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"length": N + 1}, "indices of rank 0 of 2"),
        ({"seed": 3}, "indices of rank 0 of 2"),
        ({"num_replicas": 3}, "a sampler of rank 1 of 3"),
    ],
)
def test_another_sampler_is_refused_on_another_rank(change: dict[str, Any], words: str) -> None:
    """One rank's state identifies the sampler on every rank."""
    loader = build(CASES["repeated augmentation"], 0)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    states = [loader.state_dict()]
    list(batches)
    states.append(loader.state_dict())
    given = {"length": N, "num_replicas": 2, "rank": 1, **change}
    for state in states:
        resumed = StatefulGPULoader(
            Noisy(N), batch_size=4, sampler=RepeatedAugmentation(**given), seed=1
        )
        resumed.load_state_dict(state)
        with pytest.raises(StateMismatch, match=words):
            next(iter(resumed))


@pytest.mark.parametrize("kind", [DealtWhenBuilt])
def test_a_sampler_that_cannot_be_taken_as_another_ranks_is_refused(kind: Any) -> None:
    """The message says which rank saved the state, and what to do."""

    def loader_of_rank(rank: int) -> StatefulGPULoader[Any]:
        return StatefulGPULoader(Noisy(N), batch_size=2, sampler=kind(N, 2, rank), seed=1)

    loaders = [loader_of_rank(rank) for rank in RANKS]
    states = []
    for loader in loaders:
        batches = iter(loader)
        next(batches)
        states.append(loader.state_dict())
    rest = list(batches)
    resumed = loader_of_rank(1)
    resumed.load_state_dict(states[0])
    with pytest.raises(StateMismatch, match=r"rank 0 of 2'.* state of another rank.*RankedState"):
        next(iter(resumed))
    resumed = loader_of_rank(1)
    resumed.load_state_dict(states[1])
    assert same(list(resumed), rest)


def test_batches_of_changing_sizes_have_other_positions_on_another_rank() -> None:
    """The same number of indices is another number of batches there."""

    class InUnevenBatches(InBatches):
        def __iter__(self) -> Any:
            self.sizes = ((6, 2), (2, 2, 4))[self.sampler.rank]  # type: ignore[attr-defined]
            return super().__iter__()

    def loader_of_rank(rank: int) -> StatefulGPULoader[Any]:
        sampler = InUnevenBatches(RepeatedAugmentation(N, 2, rank), ())
        return StatefulGPULoader(Noisy(N), batch_sampler=sampler, seed=1)

    loader = loader_of_rank(0)
    batches = iter(loader)
    next(batches), next(batches)
    resumed = loader_of_rank(1)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(StateMismatch, match="RankedState"):
        next(iter(resumed))


class Unnamed(Sampler[int]):
    """Has other indices on each rank, without naming the rank."""

    def __iter__(self) -> Any:
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        return iter(range(rank, N, size))

    def __len__(self) -> int:
        return N // 2


def resume_on_two_ranks(rank: int) -> dict[str, Any]:
    """Return the result of each way to load a rank's state, for each kind of sampler."""
    found: dict[str, Any] = {}
    for name, case in {
        "repeated": CASES["repeated augmentation"],
        "built": lambda rank: {"sampler": DealtWhenBuilt(N, 2, rank), "batch_size": 2},
        "unnamed": lambda rank: {"sampler": Unnamed(), "batch_size": 2},
    }.items():
        loader = build(case, rank)
        own, batches = interrupted(loader)
        every = RankedState(loader).state_dict()
        of_rank_0 = [own]
        torch.distributed.broadcast_object_list(of_rank_0)
        try:
            gathered: Any = gather_state_dict(own)
        except StateMismatch as error:
            gathered = error
        rest = list(batches)

        def outcome(load: Any, case: Any = case, rest: Any = rest) -> Any:
            resumed = build(case, rank)
            try:
                load(resumed)
                return same(list(resumed), rest)
            except StateMismatch as error:
                return str(error)

        found[name] = {
            "own": outcome(lambda resumed, own=own: resumed.load_state_dict(own)),
            "ranked": outcome(lambda resumed, s=every: RankedState(resumed).load_state_dict(s)),
            "rank 0's": outcome(lambda resumed, s=of_rank_0[0]: resumed.load_state_dict(s)),
            "gathered": str(gathered)
            if isinstance(gathered, StateMismatch)
            else outcome(lambda resumed, s=gathered: resumed.load_state_dict(s)),
        }
    return found


@pytest.mark.ranks
def test_the_routes_that_errors_name_work_on_two_real_ranks() -> None:
    first, second = on_ranks(resume_on_two_ranks, 2)
    for found in (first, second):
        assert set(found["repeated"].values()) == {True}
        for kind in ("built", "unnamed"):
            assert found[kind]["own"] is found[kind]["ranked"] is True
    for kind in ("built", "unnamed"):
        assert first[kind]["rank 0's"] is True
        assert "RankedState" in second[kind]["rank 0's"]
        assert "another rank" in second[kind]["rank 0's"]
    assert "keep a state for each rank" in first["unnamed"]["gathered"]

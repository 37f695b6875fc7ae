"""torch.distributed.checkpoint with a loader as a value, on 1, 2, 4 and 1 processes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from torch.distributed.checkpoint.stateful import Stateful

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.integrations.dcp import RankedState
from tests.integrations.dcp_jobs import Job, Samples, datasets, run_all
from tests.rank_processes import on_ranks
from tests.trainer_data import sorted_samples

SIZES = (1, 2, 4, 1)
STEPS = (1, 2, 1, None)
WAYS = {
    "map": ("value", "app", "dict", "async", "ranked"),
    "lanes": ("value", "async", "ranked"),
    "counted lanes": ("ranked",),
}
"""Lanes with known numbers of samples deliver equally many batches on each rank. To resume on
another number of ranks, they need the states of all.
"""
Run: TypeAlias = list[Samples]
"""Samples of each rank."""
Chains: TypeAlias = dict[tuple[str, str], list[Run]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return datasets(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def everything(
    data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Samples], Chains]:
    """Samples of an uninterrupted process, and of the ranks of each number of processes in turn."""
    folder = tmp_path_factory.mktemp("chains")
    whole = [Job(data=name, dataset=data[name]) for name in WAYS]
    kinds = [(name, way) for name, ways in WAYS.items() for way in ways]
    uninterrupted: dict[str, Samples] = {}
    chains: Chains = {kind: [] for kind in kinds}
    for stage, (size, steps) in enumerate(zip(SIZES, STEPS, strict=True)):
        jobs = [
            Job(
                data=name,
                dataset=data[name],
                way=way,
                load=folder / f"{name}-{way}-{stage}" if stage else None,
                steps=steps,
                save=folder / f"{name}-{way}-{stage + 1}",
            )
            for name, way in kinds
        ]
        ranks = on_ranks(run_all, size, jobs + (whole if stage == 0 else []))
        for number, kind in enumerate(kinds):
            chains[kind].append([rank[number] for rank in ranks])
        if stage == 0:
            uninterrupted = dict(zip(WAYS, ranks[0][len(kinds) :], strict=True))
    return uninterrupted, chains


@pytest.fixture(scope="module")
def uninterrupted(everything: tuple[dict[str, Samples], Chains]) -> dict[str, Samples]:
    return everything[0]


@pytest.fixture(scope="module")
def chains(everything: tuple[dict[str, Samples], Chains]) -> Chains:
    return everything[1]


def global_batches(run: Run) -> Samples:
    """Return all ranks' samples of each step."""
    return [sorted_samples(parts) for parts in zip(*run, strict=True)]


def flat(runs: list[Run]) -> list[tuple[int, str]]:
    return [sample for run in runs for rank in run for batch in rank for sample in batch]


@pytest.mark.ranks
def test_a_loader_is_a_stateful_of_torch() -> None:
    """DCP calls its two methods by itself."""
    loader = StatefulGPULoader(range(4))
    assert isinstance(loader, Stateful)
    assert isinstance(RankedState(loader), Stateful)


@pytest.mark.ranks
@pytest.mark.parametrize("way", WAYS["map"])
def test_map_style_keeps_its_global_batches(
    way: str, chains: Chains, uninterrupted: dict[str, Samples]
) -> None:
    """Numbers and pixels, on 1, 2, 4 and 1 processes, and in the next epoch."""
    found = [batch for run in chains["map", way] for batch in global_batches(run)]
    assert found == [sorted(batch) for batch in uninterrupted["map"]]
    assert [len(run) for run in chains["map", way]] == list(SIZES)


@pytest.mark.ranks
@pytest.mark.parametrize("way", WAYS["lanes"])
def test_lanes_deliver_every_sample_once(
    way: str, chains: Chains, uninterrupted: dict[str, Samples]
) -> None:
    """With the pixels of one process. The next epoch is the same."""
    *runs, last = chains["lanes", way]
    (rest,) = last
    one_epoch = len(uninterrupted["lanes"]) // 2
    of_epoch, next_epoch = rest[:-one_epoch], rest[-one_epoch:]
    assert next_epoch == uninterrupted["lanes"][one_epoch:]
    came = flat([*runs, [of_epoch]])
    assert sorted(came) == sorted_samples(uninterrupted["lanes"][:one_epoch])
    assert len(came) == 24


@pytest.mark.ranks
def test_lanes_of_known_length_deliver_every_sample(
    chains: Chains, uninterrupted: dict[str, Samples]
) -> None:
    """Ranks that deliver equally many batches need the states of all to resume."""
    *runs, last = chains["counted lanes", "ranked"]
    (rest,) = last
    one_epoch = len(uninterrupted["counted lanes"]) // 2
    came = flat([*runs, [rest[:-one_epoch]]])
    assert sorted(came) == sorted_samples(uninterrupted["counted lanes"][:one_epoch])


def test_ranks_resume_from_their_own_states_on_as_many_processes(
    data: dict[str, Any], tmp_path: Path
) -> None:
    """Lanes that end before others, records of bad samples, states of the user's objects."""
    kinds = [
        (name, steps)
        for name in ("lanes that end alone", "bad samples", "states")
        for steps in (None, 1, 5)
    ]
    broken_off = [kind for kind in kinds if kind[1] is not None]

    def job(name: str, **given: Any) -> Job:
        dataset = copy.deepcopy(data[name])  # may have a state
        return Job(data=name, dataset=dataset, way="ranked", **given)

    def path(kind: tuple[str, int | None]) -> Path:
        return tmp_path / "{} {}".format(*kind)

    first = [job(kind[0], steps=kind[1], save=path(kind)) for kind in kinds]
    rest = [job(kind[0], load=path(kind)) for kind in broken_off]
    began, ended = on_ranks(run_all, 2, first), on_ranks(run_all, 2, rest)
    for rank in range(2):
        found = dict(zip(kinds, began[rank], strict=True))
        for kind, after in zip(broken_off, ended[rank], strict=True):
            assert found[kind] + after == found[kind[0], None], (rank, kind)

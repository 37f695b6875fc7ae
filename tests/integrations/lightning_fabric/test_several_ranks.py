"""Fabric's DDP on 2 ranks, with and without the adapter; tensor-parallel groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integrations.lightning_fabric.jobs import compare, map_style, on_four
from tests.integrations.lightning_fabric.training import adapted, one_process, together, train
from tests.rank_processes import on_ranks
from tests.trainer_data import photos, tars


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    photos(folder, 24)
    tars(folder / "tars", lengths=(6, 6, 6, 6))
    return folder


@pytest.fixture(scope="module")
def two_ranks(folder: Path) -> list[dict[str, Any]]:
    return on_ranks(compare, 2, 2, folder)


@pytest.fixture(scope="module")
def four_ranks(folder: Path, two_ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return on_ranks(on_four, 4, 4, folder)


@pytest.mark.parametrize(
    "situation",
    [
        "adapter, divided by it",
        "adapter, auto",
        "adapter, lanes",
        "adapter, torch's sampler",
        "adapter, divided by itself",
        "adapter, several batches a step",
        "built in, divided by Fabric, in order",
    ],
)
def test_two_resumed_ranks_consume_the_batches_of_an_uninterrupted_run(
    situation: str, two_ranks: list[dict[str, Any]]
) -> None:
    """Samples, pixels and final weights of both. A warning names Fabric's own sampler, whose
    epoch Fabric resets; without shuffling that changes nothing.
    """
    for rank in two_ranks:
        assert rank[situation]["exact"], rank[situation]["each"]
        assert rank[situation]["warned"] == (situation == "built in, divided by Fabric, in order")
        assert len(rank[situation]["uninterrupted"].batches) == 18


@pytest.mark.parametrize("situation", ["adapter, divided by it", "adapter, auto", "adapter, lanes"])
def test_each_sample_goes_to_one_rank(situation: str, two_ranks: list[dict[str, Any]]) -> None:
    """An undivided loader is divided, as Fabric divides one."""
    records = [rank[situation]["uninterrupted"] for rank in two_ranks]
    for epoch in range(3):
        numbers = [number for step in together(records, epoch) for number, _ in step]
        assert sorted(numbers) == list(range(24))


def test_global_batches_are_those_of_one_process(
    two_ranks: list[dict[str, Any]], folder: Path
) -> None:
    """The loader's own order, if divided by itself or the adapter; Fabric's division differs."""
    alone = train(one_process(), adapted, map_style(folder, 1))
    for situation in ("adapter, divided by it", "adapter, auto", "built in, auto"):
        records = [rank[situation]["uninterrupted"] for rank in two_ranks]
        for epoch in range(3):
            assert together(records, epoch) == together([alone], epoch), situation
    by_fabric = [rank["built in, divided by Fabric"]["uninterrupted"] for rank in two_ranks]
    assert together(by_fabric, 0) != together([alone], 0)


@pytest.mark.parametrize("situation", ["built in, auto", "built in, divided by Fabric"])
def test_built_in_way_is_exact_on_two_ranks_in_the_first_epoch_alone(
    situation: str, two_ranks: list[dict[str, Any]]
) -> None:
    """Later, Fabric sets the sampler to the epochs of a new process, with a warning."""
    for rank in two_ranks:
        assert rank[situation]["each"] == [True, False]
        assert rank[situation]["warned"]


def test_built_in_way_draws_other_augmentations_in_a_later_epoch(
    two_ranks: list[dict[str, Any]],
) -> None:
    """Also in order, if this package's sampler divides: the pass after the resumed one differs."""
    for rank in two_ranks:
        assert rank["built in, auto, in order"]["each"] == [False, True]


def test_built_in_way_saves_the_lanes_of_rank_0_alone(two_ranks: list[dict[str, Any]]) -> None:
    """The other rank refuses them when it loads, with the numbers."""
    assert two_ranks[0]["built in, lanes"] == "loaded"
    assert "the cursors of 2 lanes: [0, 2]" in two_ranks[1]["built in, lanes"]
    assert "which serves lanes [1, 3] of 4" in two_ranks[1]["built in, lanes"]


def test_tensor_parallel_ranks_consume_the_same_batches(
    four_ranks: list[dict[str, Any]],
) -> None:
    """Under Fabric's ModelParallelStrategy, resumed from a folder, map-style and lanes."""
    for situation in ("map-style", "lanes"):
        of_rank = [rank["mesh"][situation] for rank in four_ranks]
        assert all(rank["exact"] for rank in of_rank), situation
        consumed = [rank["uninterrupted"] for rank in of_rank]
        assert consumed[0] == consumed[1], situation
        assert consumed[2] == consumed[3], situation
        numbers = [number for rank in (0, 2) for batch in consumed[rank][:6] for number, _ in batch]
        assert sorted(numbers) == list(range(24)), situation


def test_states_of_each_rank_are_refused_on_another_number(
    four_ranks: list[dict[str, Any]],
) -> None:
    """Every rank names both numbers, and nothing is changed."""
    for rank in four_ranks:
        assert (
            "number of ranks differs: the state has 2, expected was 4"
            in rank["refused"]["per rank"]
        )


def test_loader_is_left_as_it_was_where_that_is_asked_for(four_ranks: list[dict[str, Any]]) -> None:
    """``use_distributed_sampler=False``."""
    for rank in four_ranks:
        assert rank["refused"]["left as it was"] == "None, 6 batches"

"""Composer on real processes of one gloo group, map-style and lanes, and on other numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import StateMismatch
from tests import prepared_processes
from tests.rank_processes import on_ranks
from tests.trainers_apart.composer_runs import Data, Samples, fitted

prepared_processes.PRELOADED.append("tests.trainers_apart.composer_runs")

GLOBAL_BATCH = 8
"""Of 24 samples: three batches an epoch."""

Run = dict[str, Any]
"""What one rank's run has left: ``trained`` batches and ``weights``."""


def runs_of_rank(rank: int, data: Data, num_ranks: int, jobs: list[dict[str, Any]]) -> list[Run]:
    """One run after the other; a job has the kind of its loader and the Trainer's arguments."""
    os.environ["NODE_RANK"] = "0"  # as Composer's launcher sets it
    ended = []
    for job in jobs:
        arguments = dict(job)
        kind = arguments.pop("kind")
        loader = data.loader(kind, batch_size=GLOBAL_BATCH // num_ranks, num_replicas="auto")
        done = fitted(loader, **arguments)
        ended.append({"trained": done.trained, "weights": done.weights})
    return ended


def steps_of(ranks: list[Run]) -> list[list[tuple[int, str]]]:
    """The global batch of each step."""
    batches: list[list[Samples]] = [run["trained"] for run in ranks]
    return [sorted(sum(step, ())) for step in zip(*batches, strict=True)]


def by_job(ranks: list[list[Run]]) -> list[list[Run]]:
    return [list(runs) for runs in zip(*ranks, strict=True)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return Data(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def undisturbed(data: Data, saved: Path) -> dict[str, list[Run]]:
    """Of two ranks each, with a checkpoint after each batch."""
    kinds = ("photographs", "lanes", "uneven lanes")
    jobs: list[dict[str, Any]] = [
        {"kind": kind, "duration": "6ba", "folder": saved / kind} for kind in kinds
    ]
    at_ends = {"folder": saved / "at ends", "save_interval": "1ep"}
    jobs.append({"kind": "uneven lanes", "duration": "6ba", **at_ends})
    ended = by_job(on_ranks(runs_of_rank, 2, data, 2, jobs))
    return dict(zip(kinds, ended, strict=False))


def test_two_ranks_resume_exactly(
    data: Data, saved: Path, undisturbed: dict[str, list[Run]]
) -> None:
    """In the middle of an epoch and at its end: batches, rank by rank, and weights."""
    places = [
        ("photographs", "photographs/ep0-ba2"),
        ("photographs", "photographs/ep0-ba3"),
        ("photographs", "photographs/ep1-ba4"),
        ("lanes", "lanes/ep0-ba2"),
        ("lanes", "lanes/ep0-ba3"),
        ("lanes", "lanes/ep1-ba4"),
        # Composer ends the epoch when the first rank's lanes end, and drops what others have read.
        ("uneven lanes", "uneven lanes/ep0-ba1"),
        ("uneven lanes", "uneven lanes/ep0-ba2"),
        ("uneven lanes", "uneven lanes/ep0-ba3"),
        ("uneven lanes", "at ends/ep1-ba3"),
    ]
    jobs = [
        {"kind": kind, "duration": "6ba", "load_path": str(saved / f"{place}.pt")}
        for kind, place in places
    ]
    resumed = by_job(on_ranks(runs_of_rank, 2, data, 2, jobs))
    for (kind, place), ranks in zip(places, resumed, strict=True):
        whole, batch = undisturbed[kind], int(place.partition("-ba")[2])
        assert len(whole[0]["trained"]) == 6
        assert whole[0]["trained"] != whole[1]["trained"]
        for one, other in zip(ranks, whole, strict=True):
            assert one["trained"] == other["trained"][batch:], place
            assert all(map(torch.equal, one["weights"], other["weights"])), place


def test_killed_ranks_resume_exactly(
    data: Data, tmp_path: Path, undisturbed: dict[str, list[Run]]
) -> None:
    """SIGKILL in the fifth step; autoresume finds the last checkpoint."""
    job = {
        "kind": "photographs",
        "duration": "6ba",
        "folder": tmp_path,
        "run_name": "nightly",
        "autoresume": True,
        "save_overwrite": False,
    }
    killed = on_ranks(runs_of_rank, 2, data, 2, [{**job, "kill_at": 4}], killed=True)
    assert killed == []
    (resumed,) = by_job(on_ranks(runs_of_rank, 2, data, 2, [job]))
    for one, other in zip(resumed, undisturbed["photographs"], strict=True):
        assert one["trained"] == other["trained"][4:]
        assert all(map(torch.equal, one["weights"], other["weights"]))


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_other_numbers_of_ranks_train_on_the_same_global_batches(
    num_ranks: int, data: Data, saved: Path, undisturbed: dict[str, list[Run]]
) -> None:
    """Map-style: the same samples and pixels in each step. Lanes: each sample once an epoch."""
    jobs = [
        {"kind": kind, "duration": "6ba", "load_path": str(saved / kind / "ep0-ba2.pt")}
        for kind in ("photographs", "lanes")
    ]
    photographs, lanes = by_job(on_ranks(runs_of_rank, num_ranks, data, num_ranks, jobs))
    assert steps_of(photographs) == steps_of(undisturbed["photographs"])[2:]
    before = [sample for step in steps_of(undisturbed["lanes"])[:2] for sample in step]
    rest = [number for step in steps_of(lanes) for number, _ in step]
    first_epoch = [number for number, _ in before] + rest[: 24 - len(before)]
    assert sorted(first_epoch) == list(range(24))


def test_composer_refuses_an_undivided_loader(data: Data) -> None:
    """Instead of giving each rank the same samples in silence."""
    assert on_ranks(refusal_on_rank, 2, data) == ["ValueError: True"] * 2


def refusal_on_rank(rank: int, data: Data) -> str:
    os.environ["NODE_RANK"] = "0"
    try:
        fitted(data.loader(), "1ba")
    except ValueError as error:
        return f"ValueError: {'does not use DistributedSampler' in str(error)}"
    return "trained"


def test_a_state_of_one_rank_of_two_is_refused(
    data: Data, saved: Path, tmp_path: Path, undisturbed: dict[str, list[Run]]
) -> None:
    """Lanes whose cursors are missing: before training, with the numbers."""
    path = saved / "lanes" / "ep0-ba2.pt"
    checkpoint = torch.load(path, weights_only=False)
    state = checkpoint["state"]["callbacks"]["LoaderStateCallback"]["loaders"]["train"]
    for lane in ("lane_00001", "lane_00003"):
        del state[lane]
    torch.save(checkpoint, tmp_path / "half.pt")
    loader = data.loader("lanes", batch_size=GLOBAL_BATCH)
    with pytest.raises(StateMismatch, match="2 lanes"):
        fitted(loader, "6ba", load_path=str(tmp_path / "half.pt"))

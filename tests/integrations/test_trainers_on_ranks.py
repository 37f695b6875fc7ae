"""Several processes of one gloo group under each trainer's adapter, resumed on another number.

Only the adapter divides the loader.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.rank_processes import on_ranks
from tests.trainer_data import photos, sorted_samples, tars

JOBS = {
    "Fabric": "tests.integrations.lightning_fabric.jobs",
    "Accelerate": "tests.integrations.hf_accelerate.loops",
    "transformers": "tests.integrations.hf_trainer.fits",
}
"""Modules with a function ``job``: one rank's two epochs, of 8 samples a step of all ranks.

It takes the dataset and a folder. ``save_at=`` a number of steps saves there and breaks off, by
SIGKILL with ``killed=``; ``resume=`` that number resumes. It returns the samples of each step, and
the weights.
"""
SAVED_AT = (2, 4)
"""Steps: in the middle of an epoch of 4, and at its last batch."""
Ran = tuple[list[list[Any]], list[float]]


def whole_and_resumed(rank: int, trainer: str, dataset: Any, folder: Path) -> list[Ran]:
    """Return an uninterrupted job, and saved and resumed jobs on the same number of ranks."""
    job = importlib.import_module(JOBS[trainer]).job
    for step in SAVED_AT:
        job(dataset, folder, save_at=step)
    return [job(dataset, folder), *resume(rank, trainer, dataset, folder, SAVED_AT)]


def resume(
    rank: int, trainer: str, dataset: Any, folder: Path, steps: tuple[int, ...]
) -> list[Ran]:
    job = importlib.import_module(JOBS[trainer]).job
    return [job(dataset, folder, resume=step) for step in steps]


def save_and_die(rank: int, trainer: str, dataset: Any, folder: Path) -> None:
    importlib.import_module(JOBS[trainer]).job(dataset, folder, save_at=2, killed=True)


def together(ranks: list[list[Ran]], run: int) -> list[list[Any]]:
    """Return the samples of all ranks in each step."""
    steps = zip(*(rank[run][0] for rank in ranks), strict=True)
    return [sorted_samples(step) for step in steps]


@pytest.mark.parametrize("kind", ["map-style", "lanes"])
@pytest.mark.parametrize("trainer", JOBS)
def test_two_processes_resume_on_two_one_and_four(trainer: str, kind: str, tmp_path: Path) -> None:
    """The same global batches, and the same samples of lanes; also after a SIGKILL."""
    dataset: Any = photos(tmp_path / "data", 32)
    if kind == "lanes":
        dataset = tars(tmp_path / "data", (8, 8, 8, 8))
    given = trainer, dataset, tmp_path / "saved"
    ranks = on_ranks(whole_and_resumed, 2, *given)
    whole = together(ranks, 0)
    assert len(whole) == 8
    assert len({sample for step in whole[:4] for sample in step}) == 32
    for run, step in enumerate(SAVED_AT, start=1):
        assert together(ranks, run) == whole[step:]
        for rank in ranks:
            assert rank[run][1] == rank[0][1], "weights"
    on_ranks(save_and_die, 2, trainer, dataset, tmp_path / "killed", killed=True)
    for others, step in (
        *((on_ranks(resume, 4, *given, (step,)), step) for step in SAVED_AT),
        *(([resume(0, *given, (step,))], step) for step in SAVED_AT),
        ([resume(0, trainer, dataset, tmp_path / "killed", (2,))], 2),
    ):
        rest = together(others, 0)
        if kind == "map-style":
            assert rest == whole[step:]
        # Lanes are divided again among another number of ranks.
        assert sorted_samples(rest) == sorted_samples(whole[step:])

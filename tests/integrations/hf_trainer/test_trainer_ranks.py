"""The Trainer on processes of one gloo group, resumed on another number of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.integrations.hf_trainer.fits import Fitted, fit, named
from tests.rank_processes import on_ranks
from tests.trainer_data import image_loader, photos, tars

GLOBAL_BATCH = 8
RESUMED = (2, 4)
"""Steps: in the middle of an epoch of 4, and at its end."""


def job(dataset: Any, folder: Path, **given: Any) -> Fitted:
    """One rank's whole job; the loader is divided by nobody but the adapter."""
    world = torch.distributed
    num_ranks = world.get_world_size() if world.is_initialized() else 1
    size = GLOBAL_BATCH // num_ranks
    loader = image_loader(dataset, batch_size=size, batch_transform=named)
    backend = {"ddp_backend": "gloo"} if num_ranks > 1 else {}
    return fit(loader, folder, each_sample=True, **backend, **given)


def resumed(dataset: Any, folder: Path, **given: Any) -> list[Fitted]:
    given = {"save_strategy": "no", **given}
    return [
        job(dataset, folder / "other", resume=str(folder / f"checkpoint-{step}"), **given)
        for step in RESUMED
    ]


def save_and_resume(
    rank: int, datasets: dict[str, Any], folder: Path
) -> dict[str, tuple[Fitted, list[Fitted]]]:
    """Undisturbed jobs, and those that go on from their checkpoints on as many ranks."""
    found = {}
    for name, dataset in datasets.items():
        given = {"max_steps": 7}
        whole = job(dataset, folder / name, **given)
        torch.distributed.barrier()
        found[name] = whole, resumed(dataset, folder / name, **given)
    return found


def resume_elsewhere(rank: int, dataset: Any, folder: Path) -> list[Fitted]:
    return resumed(dataset, folder, max_steps=7)


def save_and_die(rank: int, dataset: Any, folder: Path) -> None:
    job(dataset, folder, max_steps=7, breaks_at=6, killed=True, save_steps=2)


def together(ranks: list[Fitted]) -> list[Any]:
    """The global batches: of each step, the samples of all ranks."""
    return [
        sorted(sample for batch in batches for sample in batch)
        for batches in zip(*(rank.batches for rank in ranks), strict=True)
    ]


def test_two_processes_resume_on_two_one_and_four(tmp_path: Path) -> None:
    """The same global batches; a group that was killed, too."""
    datasets = {"map": photos(tmp_path / "a", 32), "lanes": tars(tmp_path / "b", (8, 8, 8, 8))}
    ranks = on_ranks(save_and_resume, 2, datasets, tmp_path)
    whole = together([rank["map"][0] for rank in ranks])
    for name in datasets:
        expected = together([rank[name][0] for rank in ranks])
        assert len(expected) == 7
        for i, step in enumerate(RESUMED):
            assert together([rank[name][1][i] for rank in ranks]) == expected[step:]
            assert ranks[0][name][1][i].weights == ranks[0][name][0].weights
    assert whole == together([job(datasets["map"], tmp_path / "alone", max_steps=7)])
    on_four = on_ranks(resume_elsewhere, 4, datasets["map"], tmp_path / "map")
    on_one = [resumed(datasets["map"], tmp_path / "map", max_steps=7)]
    for others in (on_four, on_one):
        for i, step in enumerate(RESUMED):
            assert together([rank[i] for rank in others]) == whole[step:]
    on_ranks(save_and_die, 2, datasets["map"], tmp_path / "killed", killed=True)
    rest = job(datasets["map"], tmp_path / "killed", max_steps=7, resume=True)
    assert together([rest]) == whole[4:]

"""Accelerate on several processes of one gloo group, resumed on another number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.integrations.accelerate import prepare_loader
from tests.integrations.hf_accelerate.loops import (
    Trained,
    dataset_of,
    each_sample,
    new_accelerator,
    together,
    train,
)
from tests.rank_processes import on_ranks
from tests.trainer_data import image_loader

GLOBAL_BATCH = 8
SAVED_BEHIND = (2, 4)
"""Batches: in the middle of an epoch of 4, and at its last batch."""


def job(dataset: Any, **given: Any) -> Trained:
    """One rank's whole job; the loader is divided by nobody but the adapter."""
    world = torch.distributed
    num_ranks = world.get_world_size() if world.is_initialized() else 1
    return train(
        lambda: image_loader(dataset, batch_size=GLOBAL_BATCH // num_ranks),
        accumulated=2,
        record=each_sample,
        **given,
    )


def save_and_resume(rank: int, folder: Path, dataset: Any) -> dict[str, Trained]:
    """An undisturbed job, and others that were saved and gone on with, on as many ranks."""
    found = {"whole": job(dataset)}
    for step in SAVED_BEHIND:
        job(dataset, save=(step, folder / f"{step}"))
        found[f"{step}"] = job(dataset, resume=folder / f"{step}")
    return found


def save_and_die(rank: int, folder: Path, dataset: Any) -> None:
    job(dataset, save=(2, folder / "killed"), killed=True)


def resume(rank: int, folder: Path, dataset: Any, names: list[str]) -> list[Trained]:
    return [job(dataset, resume=folder / name) for name in names]


@pytest.mark.parametrize("kind", ["even map", "even lanes"])
def test_two_processes_resume_on_two_one_and_four(kind: str, tmp_path: Path) -> None:
    """The same global batches, and of lanes the same samples; behind a SIGKILL, too."""
    dataset = dataset_of(kind, tmp_path / "data")
    ranks = on_ranks(save_and_resume, 2, tmp_path, dataset)
    whole = together([rank["whole"] for rank in ranks])
    assert len(whole) == 8
    for step in SAVED_BEHIND:
        assert together([rank[f"{step}"] for rank in ranks]) == whole[step:]
        for rank in ranks:
            assert rank[f"{step}"].weights == rank["whole"].weights
            assert rank[f"{step}"].syncs == rank["whole"].syncs[step:]
    names, places = [str(step) for step in SAVED_BEHIND], [*SAVED_BEHIND]
    if kind == "even map":
        on_ranks(save_and_die, 2, tmp_path, dataset, killed=True)
        names, places = [*names, "killed"], [*places, 2]
    for others in (
        on_ranks(resume, 4, tmp_path, dataset, names),
        [resume(0, tmp_path, dataset, names)],
    ):
        for i, step in enumerate(places):
            rest = together([rank[i] for rank in others])
            if kind == "even map":
                assert rest == whole[step:]
                # Another number of ranks adds the same numbers in another order.
                assert others[0][i].weights == pytest.approx(ranks[0]["whole"].weights, abs=1e-6)
            assert sorted_samples(rest) == sorted_samples(whole[step:])


def sorted_samples(batches: list[Any]) -> list[Any]:
    """Lanes are dealt anew among another number of ranks."""
    return sorted(sample for batch in batches for sample in batch)


def metrics(rank: int, length: int, batch_size: int) -> list[int]:
    accelerator = new_accelerator()
    loader = prepare_loader(accelerator, StatefulGPULoader(range(length), batch_size=batch_size))
    return torch.cat([accelerator.gather_for_metrics(batch) for batch in loader]).tolist()


def metrics_of_several(rank: int) -> tuple[list[int], str]:
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = metrics(rank, 13, 2)
    return found, " ".join(str(one.message) for one in caught)


def test_metrics_have_each_sample_once_where_one_is_repeated(tmp_path: Path) -> None:
    """gather_for_metrics on two processes; on four, what it cannot cut off is told."""
    assert [sorted(found) for found in on_ranks(metrics, 2, 13, 4)] == [list(range(13))] * 2
    for found, told in on_ranks(metrics_of_several, 4):
        assert set(found) == set(range(13))
        assert len(found) == 16
        assert "5 samples and 3 that are repeated" in told


def refused(rank: int, datasets: list[Any]) -> list[str]:
    """What ranks are told that lanes, samplers and configurations do not allow."""
    from accelerate.utils import DataLoaderConfiguration

    told = []

    def expect(accelerator: Any, loader: Any) -> None:
        try:
            prepare_loader(accelerator, loader)
        except ValueError as error:
            told.append(str(error))
        else:
            told.append("nothing")

    for dataset in datasets:
        expect(new_accelerator(), StatefulGPULoader(dataset))
    sampler = torch.utils.data.RandomSampler(range(9))
    expect(new_accelerator(), StatefulGPULoader(range(9), sampler=sampler))
    for way in ({"split_batches": True}, {"dispatch_batches": True}, {"even_batches": False}):
        accelerator = new_accelerator(dataloader_config=DataLoaderConfiguration(**way))
        expect(accelerator, StatefulGPULoader(range(9)))
    return told


def test_what_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    """No sample goes to every process in silence."""
    datasets = [dataset_of(kind, tmp_path / kind) for kind in ("lanes", "iterable")]
    parts = ["lanes", "num_replicas", "same samples", "split_batch", "dispatch_batch", "even_batch"]
    for told in on_ranks(refused, 3, datasets):
        assert len(told) == len(parts)
        for text, part in zip(told, parts, strict=True):
            assert part in text, told
            assert "Remedy" in text


def main_alone(rank: int, folder: Path) -> tuple[list[Any], list[Any]]:
    """Saved by the main process alone, as many scripts do; then loaded ahead of being prepared."""

    def make() -> StatefulGPULoader[Any]:
        return StatefulGPULoader(range(24), batch_size=3, shuffle=True, seed=1)

    accelerator = new_accelerator()
    whole = []
    for number, batch in enumerate(loader := prepare_loader(accelerator, make())):
        whole.append(batch.tolist())
        if number == 1:
            state = loader.state_dict()
            if accelerator.is_main_process:
                accelerator.save_state(str(folder))
    accelerator.wait_for_everyone()
    accelerator = new_accelerator()
    resumed = prepare_loader(accelerator, make())
    accelerator.load_state(str(folder))
    rests = [[batch.tolist() for batch in resumed]]
    undivided = make()
    undivided.load_state_dict(state)
    rests.append([batch.tolist() for batch in prepare_loader(new_accelerator(), undivided)])
    return whole, rests


def test_the_main_process_saves_alone(tmp_path: Path) -> None:
    """Nobody waits for the other; and a state that was loaded first is not lost."""
    for whole, rests in on_ranks(main_alone, 2, tmp_path / "saved"):
        assert len(whole) == 4
        assert rests == [whole[2:], whole[2:]]

"""Where Lightning's own saving of loader states, without any callback, resumes exactly.

Its fit loop saves ``[loader.state_dict(), ...]`` of the train loaders. What it cannot restore is in
``test_built_in_limits.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader

from stateful_gpu_loader import FolderSource, StatefulGPULoader
from tests.integrations.lightning.recorded_fits import (
    OF_LIGHTNING,
    Job,
    Recorder,
    every_epoch,
    every_step,
    places,
)
from tests.map_datasets import Noisy
from tests.trainer_data import image_loader, photos, tars

pytestmark = [pytest.mark.filterwarnings(text) for text in OF_LIGHTNING]

BATCHES = 18
"""Of three epochs of 24 photographs, four in a batch."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> FolderSource:
    return photos(tmp_path_factory.mktemp("photos"))


def make(data: Any, **arguments: Any) -> Callable[[], Any]:
    """Loaders that go over into the next epoch from a checkpoint at an epoch's last batch."""
    return lambda: image_loader(data, **{"on_epoch_boundary": "next_epoch", **arguments})


def assert_exact(
    job: Job, folder: Path, saves: Callable[[Path], Callback], at: tuple[int, ...]
) -> Recorder:
    """Break off in the last epoch; each checkpoint of so many steps resumes to the same end."""
    undisturbed = job.run()
    assert len(undisturbed.seen) == BATCHES
    job.run(saves(folder), fails_at=BATCHES - 1)
    for step in at:
        resumed = job.run(resume=folder / f"step={step}.ckpt")
        assert places(undisturbed.seen, resumed.seen) == list(range(BATCHES)), f"from {step}"
        assert resumed.weights() == undisturbed.weights(), f"from {step}"
    return undisturbed


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [1, 5, 8], ids=lambda step: f"step {step}")
def test_mid_epoch(data: FolderSource, tmp_path: Path, workers: int, at: int) -> None:
    """A checkpoint by ``every_n_train_steps``."""
    assert_exact(Job(make=make(data, num_workers=workers)), tmp_path, every_step, (at,))


def test_mid_epoch_with_the_default_boundary(data: FolderSource, tmp_path: Path) -> None:
    """``on_epoch_boundary`` only matters at an epoch's last batch."""
    job = Job(make=make(data, on_epoch_boundary="empty"))
    assert_exact(job, tmp_path, every_step, (1, 5, 7, 11))


def test_epochs_last_batch_with_next_epoch(data: FolderSource, tmp_path: Path) -> None:
    """With ``on_epoch_boundary="next_epoch"`` the epoch after is delivered in full."""
    assert_exact(Job(make=make(data)), tmp_path, every_step, (6, 12))


def test_epochs_last_batch_with_the_default_boundary(data: FolderSource, tmp_path: Path) -> None:
    """Lightning tells the next epoch to the sampler, so that no empty rest is what it means."""
    job = Job(make=make(data, on_epoch_boundary="empty"))
    assert_exact(job, tmp_path, every_step, (6, 12))


def test_epoch_end_of_an_unshuffled_loader(data: FolderSource, tmp_path: Path) -> None:
    """Its sampler is told the epoch, which keys the crops."""
    assert_exact(Job(make=make(data, shuffle=False)), tmp_path, every_epoch, (6, 12))


def test_unshuffled_validation_with_random_crops(data: FolderSource, tmp_path: Path) -> None:
    """As above."""
    job = Job(make=make(data), validation=make(data, batch_size=8, seed=3, shuffle=False))
    undisturbed = job.run()
    job.run(every_step(tmp_path), fails_at=13)
    resumed = job.run(resume=tmp_path / "step=8.ckpt")
    assert resumed.seen == undisturbed.seen
    assert resumed.validated == undisturbed.validated


def test_epoch_end(data: FolderSource, tmp_path: Path) -> None:
    """Lightning drops the state there and tells the sampler the epoch, which says it all."""
    assert_exact(Job(make=make(data)), tmp_path, every_epoch, (6, 12))


def test_by_time(data: FolderSource, tmp_path: Path) -> None:
    """``train_time_interval`` is due after every batch here."""

    def at_once(folder: Path) -> ModelCheckpoint:
        interval = timedelta(0)
        return ModelCheckpoint(folder, "{step}", train_time_interval=interval, save_top_k=-1)

    assert_exact(Job(make=make(data)), tmp_path, at_once, (2, 6, 9))


def test_max_steps_by_the_step_checkpoint(data: FolderSource, tmp_path: Path) -> None:
    """Stopped by ``max_steps``, resumed from the checkpoint of that step."""
    job = Job(make=make(data))
    undisturbed = job.run()
    assert len(job.run(every_step(tmp_path), max_steps=4).seen) == 4
    resumed = job.run(resume=tmp_path / "step=4.ckpt")
    assert resumed.seen == undisturbed.seen
    assert resumed.weights() == undisturbed.weights()


def test_in_the_middle_of_a_counted_job(data: FolderSource, tmp_path: Path) -> None:
    """A job that only ``max_steps`` ends."""
    job = Job(make=make(data), trainer={"max_epochs": -1, "max_steps": BATCHES})
    assert_exact(job, tmp_path, every_step, (3, 6, 10))


def test_accumulation(data: FolderSource, tmp_path: Path) -> None:
    """Checkpoints at optimizer steps; four batches a step, and two at an epoch's end."""
    job = Job(make=make(data), trainer={"accumulate_grad_batches": 4})
    assert_exact(job, tmp_path, every_step, (1, 2, 3, 4))


@pytest.mark.parametrize("every", [1, 2])
def test_reloaded_loaders(data: FolderSource, tmp_path: Path, every: int) -> None:
    """A new loader object each epoch, or every second one."""
    job = Job(
        model={"make_loader": make(data)}, trainer={"reload_dataloaders_every_n_epochs": every}
    )
    assert_exact(job, tmp_path, every_step, (2, 6, 8, 12, 15))


class Photographs(LightningDataModule):
    """The loader in a LightningDataModule."""

    def __init__(self, make_loader: Callable[[], Any]) -> None:
        super().__init__()
        self._make_loader = make_loader

    def train_dataloader(self) -> Any:
        """A new one at each call."""
        return self._make_loader()


@pytest.mark.parametrize("place", ["hook", "data module"])
def test_where_the_loader_is_built(data: FolderSource, tmp_path: Path, place: str) -> None:
    """In ``train_dataloader`` of the model, or of a LightningDataModule."""
    loader = make(data)
    job = Job(make=lambda: Photographs(loader))
    if place == "hook":
        job = Job(model={"make_loader": loader})
    assert_exact(job, tmp_path, every_step, (2, 6, 10))


@pytest.mark.parametrize("use", [True, False])
def test_use_distributed_sampler_in_one_process(
    data: FolderSource, tmp_path: Path, use: bool
) -> None:
    """Without ranks Lightning leaves the loader as it is."""
    job = Job(make=make(data), trainer={"use_distributed_sampler": use})
    assert_exact(job, tmp_path, every_step, (3, 6))


def test_lanes_with_counts(tmp_path: Path) -> None:
    """Shards that tell their number of samples make a sized loader."""
    lengths = (5, 8, 3, 8)
    shards = tars(tmp_path / "shards", lengths)
    counted = type(shards)(shards.paths, num_lanes=len(lengths), counts=lengths)
    assert_exact(Job(make=make(counted)), tmp_path, every_step, (1, 5, 6, 9, 12))


@pytest.mark.parametrize("mode", ["max_size_cycle", "min_size"])
def test_several_loaders_mid_epoch(data: FolderSource, tmp_path: Path, mode: str) -> None:
    """Two loaders of unequal lengths, before the shorter one ends."""
    loader, other = make(data), make(data, batch_size=6, seed=5)
    job = Job(make=lambda: CombinedLoader([loader(), other()], mode))
    undisturbed = job.run()
    fails_at = len(undisturbed.seen) - 1
    job.run(every_step(tmp_path), fails_at=fails_at)
    for step in (1, 3):
        resumed = job.run(resume=tmp_path / f"step={step}.ckpt")
        assert resumed.seen == undisturbed.seen
        assert resumed.weights() == undisturbed.weights()


def test_validation_each_epoch(data: FolderSource, tmp_path: Path) -> None:
    """A validation loader whose sampler is told the epoch needs no state between passes."""
    job = Job(make=make(data), validation=make(data, batch_size=8, seed=3))
    undisturbed = assert_exact(job, tmp_path, every_step, (1, 5, 9))
    assert len(undisturbed.validated) == 9
    assert job.run(resume=tmp_path / "step=8.ckpt").validated == undisturbed.validated


def test_a_second_resume_in_the_same_epoch(data: FolderSource, tmp_path: Path) -> None:
    """Interrupted at batch 8, resumed, interrupted at batch 10, resumed."""
    job = Job(make=make(data))
    undisturbed = job.run()
    job.run(every_step(tmp_path / "first"), fails_at=8)
    again = job.run(
        every_step(tmp_path / "second"), resume=tmp_path / "first/step=8.ckpt", fails_at=10
    )
    assert again.seen == undisturbed.seen[:10]
    resumed = job.run(resume=tmp_path / "second/step=10.ckpt")
    assert resumed.seen == undisturbed.seen
    assert resumed.weights() == undisturbed.weights()


def test_a_dataset_that_draws_from_the_global_generators(tmp_path: Path) -> None:
    """In worker processes, whatever the model draws in between."""

    class Drawing(Recorder):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.seen.append((batch["index"].tolist(), batch["torch"].tolist()))
            torch.rand(3)
            return self.model.weights(batch["numpy"].float()).mean()

    def run(*callbacks: Callback, **given: Any) -> Recorder:
        job = Job(
            make=lambda: StatefulGPULoader(
                Noisy(24), batch_size=4, shuffle=True, seed=11, num_workers=2
            ),
            recorder=Drawing,
            trainer={"max_epochs": 2},
        )
        return job.run(*callbacks, **given)

    undisturbed = run()
    run(every_step(tmp_path, 4), max_steps=4)
    assert run(resume=tmp_path / "step=4.ckpt").seen == undisturbed.seen

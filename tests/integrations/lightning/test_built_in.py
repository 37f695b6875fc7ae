"""Lightning's own saving of loader states, without the callback: where it is exact and where not.

Its fit loop saves ``[loader.state_dict(), ...]`` of the train loaders. Where that is not exact, a
test states the precise difference, so that a release of Lightning with a fix fails here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.utilities import CombinedLoader

from stateful_gpu_loader import FolderSource, StatefulGPULoader, TarShards
from tests.integrations.lightning.recorded_fits import (
    OF_LIGHTNING,
    Witness,
    assert_same,
    every_epoch,
    every_step,
    fit,
)
from tests.map_datasets import Noisy
from tests.trainer_data import image_loader, photos, tars

pytestmark = [pytest.mark.filterwarnings(text) for text in OF_LIGHTNING]

ALL = list(range(18))
"""Batches of three epochs of 24 photographs, four in a batch."""
FIRST, SECOND, THIRD = ALL[:6], ALL[6:12], ALL[12:]
LENGTHS = (5, 8, 3, 8)


@dataclass(frozen=True)
class Data:
    photos: FolderSource
    shards: TarShards
    uninterrupted: dict[Any, Witness] = field(default_factory=dict)
    """Runs of jobs, which other jobs break off in other ways."""

    def loader(self, **arguments: Any) -> StatefulGPULoader[Any]:
        """Return a loader that resumes in the next epoch from an epoch's last batch."""
        return image_loader(self.photos, **{"on_epoch_boundary": "next_epoch", **arguments})

    def two(self, mode: str) -> CombinedLoader:
        """Return loaders of unequal lengths, 6 and 4 batches an epoch."""
        return CombinedLoader([self.loader(), self.loader(batch_size=6, seed=5)], mode)

    def lanes(self) -> StatefulGPULoader[Any]:
        return image_loader(self.shards, on_epoch_boundary="next_epoch")

    def counted_lanes(self) -> StatefulGPULoader[Any]:
        """Return a sized loader: shards with known numbers of samples."""
        shards = TarShards(self.shards.paths, num_lanes=len(LENGTHS), counts=LENGTHS)
        return image_loader(shards, on_epoch_boundary="next_epoch")

    def module(self) -> LightningDataModule:
        class Photographs(LightningDataModule):
            def train_dataloader(_) -> Any:  # noqa: N805
                return self.loader()

        return Photographs()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder = tmp_path_factory.mktemp("data")
    return Data(photos(folder / "photos"), tars(folder / "shards", LENGTHS))


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training that is interrupted, by an exception in its last step unless otherwise given."""

    make: Callable[[Data], Any] = Data.loader
    in_hook: bool = False
    """Whether the loader comes from the hook ``train_dataloader``."""
    validation: Callable[[Data], Any] = lambda data: None
    kind: type[Witness] = Witness
    model: dict[str, Any] = field(default_factory=dict)
    """Arguments of the witness."""
    trainer: dict[str, Any] = field(default_factory=dict)
    saves: Callable[[Path], Callback] = every_step
    stop: dict[str, Any] = field(default_factory=dict)
    """Arguments of the trainer that end it, instead of the exception."""
    fails_at: int | None = None
    """Number of the batch in whose step the exception is raised; None for the last one."""

    def run(self, data: Data, *callbacks: Callback, fails_at: Any = None, **given: Any) -> Witness:
        witness = self.kind(fails_at=fails_at, **self.model)
        if self.in_hook:
            witness.train_dataloader = lambda: self.make(data)
        return fit(
            lambda: None if self.in_hook else self.make(data),
            *callbacks,
            validation=lambda: self.validation(data),
            witness=witness,
            built_in=True,
            **{**self.trainer, **given},
        )

    def break_off(self, data: Data, folder: Path) -> Witness:
        """Return the uninterrupted run; leave the interrupted one's checkpoints in the folder."""
        key = self.make, self.validation, repr((self.trainer, self.model, self.in_hook))
        if key not in data.uninterrupted:
            data.uninterrupted[key] = self.run(data)
        uninterrupted = data.uninterrupted[key]
        if self.stop:
            self.run(data, self.saves(folder), **self.stop)
            return uninterrupted
        fails_at = len(uninterrupted.trained) - 1 if self.fails_at is None else self.fails_at
        with pytest.raises(RuntimeError, match="a step failed"):
            self.run(data, self.saves(folder), fails_at=fails_at)
        return uninterrupted


def of_data(**arguments: Any) -> Callable[[Data], Any]:
    return lambda data: data.loader(**arguments)


def every_time(folder: Path) -> ModelCheckpoint:
    """Save every time: ``train_time_interval`` is due after every batch here."""
    interval = timedelta(0)
    return ModelCheckpoint(folder, "{step}", train_time_interval=interval, save_top_k=-1)


class Drawing(Witness):
    """Draws from the global generator, as the dataset does."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        torch.rand(3)
        return super().training_step(batch, batch_idx)


def noisy(data: Data) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(Noisy(24), batch_size=4, shuffle=True, seed=11, num_workers=2)


COUNTED = {"max_epochs": -1, "max_steps": 18}
"""A job that only ``max_steps`` ends."""

EXACT: dict[str, tuple[Job, tuple[int, ...]]] = {
    "by steps, at an epoch's last batch": (Job(), (1, 5, 6, 8)),
    # Lightning sets the next epoch on the sampler, so an empty rest is not meant.
    "default boundary": (Job(make=of_data(on_epoch_boundary="empty")), (6, 7, 12)),
    "two workers": (Job(make=of_data(num_workers=2)), (5,)),
    # Lightning drops the state there, and sets the sampler's epoch, which is sufficient.
    "epoch end": (Job(saves=every_epoch), (6, 12)),
    "epoch end, unshuffled": (Job(make=of_data(shuffle=False), saves=every_epoch), (6,)),
    "by time": (Job(saves=every_time), (6, 9)),
    "max_steps": (Job(stop={"max_steps": 4}), (4,)),
    "counted": (Job(trainer=COUNTED), (3, 6)),
    # Four batches a step, and two at an epoch's end.
    "accumulation": (Job(trainer={"accumulate_grad_batches": 4}), (1, 2, 3)),
    "hook": (Job(in_hook=True), (6, 10)),
    "data module": (Job(make=Data.module), (2, 6)),
    "reloaded": (
        Job(in_hook=True, trainer={"reload_dataloaders_every_n_epochs": 2}),
        (6, 8, 12),
    ),
    "use_distributed_sampler": (Job(trainer={"use_distributed_sampler": False}), (3, 6)),
    "counted lanes": (Job(make=Data.counted_lanes), (5, 6, 9)),
    # Before the shorter one ends.
    "two, max_size_cycle": (Job(make=lambda data: data.two("max_size_cycle")), (3,)),
    "two, min_size": (Job(make=lambda data: data.two("min_size")), (3,)),
    # A validation loader whose sampler's epoch is set needs no state between passes.
    "validation": (Job(validation=of_data(batch_size=8, seed=3)), (5, 8)),
    "unshuffled validation": (Job(validation=of_data(batch_size=8, shuffle=False)), (8,)),
    "draws in workers": (Job(make=noisy, kind=Drawing, stop={"max_steps": 4}), (4,)),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact(name: str, data: Data, tmp_path: Path) -> None:
    job, steps = EXACT[name]
    uninterrupted = job.break_off(data, tmp_path)
    for step in steps:
        resumed = job.run(data, resume=tmp_path / f"step={step}.ckpt")
        assert_same(resumed, uninterrupted, step)


def test_a_second_resume_in_the_same_epoch(data: Data, tmp_path: Path) -> None:
    """Interrupted at batch 8, resumed, interrupted at batch 10, resumed."""
    uninterrupted = Job(fails_at=8).break_off(data, tmp_path / "first")
    with pytest.raises(RuntimeError, match="a step failed"):
        Job().run(
            data,
            every_step(tmp_path / "second"),
            resume=tmp_path / "first/step=8.ckpt",
            fails_at=10,
        )
    assert_same(Job().run(data, resume=tmp_path / "second/step=10.ckpt"), uninterrupted)


def places(uninterrupted: Witness, found: Witness) -> list[int | None]:
    """Return the uninterrupted run's number of each batch of the other run, or None."""
    known = {batch: number for number, batch in enumerate(uninterrupted.seen)}
    return [known.get(batch) for batch in found.seen]


def without(batch: int) -> list[int | None]:
    return [number for number in ALL if number != batch]


def last(folder: Path) -> ModelCheckpoint:
    return ModelCheckpoint(folder, "{step}", save_last=True)


ASKING = Job(model={"asks_for_steps": True})
LIMITS: dict[str, tuple[Job, str, list[int | None]]] = {
    # Lightning drops the state of an epoch's end, and sets the epoch only on samplers with
    # set_epoch(): the first epoch's numbers and crops come again.
    "epoch end of lanes": (
        Job(make=Data.lanes, saves=every_epoch),
        "step=6",
        [*FIRST, *FIRST, *SECOND],
    ),
    # Saved after the loop: Lightning counts the epoch that max_steps cut short as complete.
    "max_steps, by the last": (
        Job(saves=last, stop={"max_steps": 4}),
        "last",
        [*FIRST[:4], *SECOND, *THIRD],
    ),
    # The rest of the epoch comes, but Lightning's epoch is one ahead.
    "max_steps of a counted job": (
        Job(saves=last, trainer=COUNTED, stop={"max_steps": 4}),
        "step=4",
        [*FIRST, *THIRD, *[None] * 6],
    ),
    # Lightning treats the ended epoch as in progress (FitLoop.restarting), and trains one more
    # batch in it: it has set the sampler's next epoch, and sets the one after for the rest.
    "epoch end of a counted job": (
        Job(saves=every_epoch, trainer=COUNTED),
        "step=6",
        [*FIRST, SECOND[0], *THIRD, *[None] * 5],
    ),
    # The state counts the batch in flight as delivered, but no step was made with it.
    "exception": (Job(saves=OnExceptionCheckpoint, fails_at=3), "on_exception", without(3)),
    "exception in an epoch's first step": (
        Job(saves=OnExceptionCheckpoint, fails_at=6),
        "on_exception",
        without(6),
    ),
    # Lightning fetches one batch ahead to know the last one, and saves the loader's present state,
    # so the batch in hand is lost.
    "unsized": (Job(make=Data.lanes), "step=2", without(2)),
    # Lightning sets up the loaders before the states are loaded: the epoch starts again, and ends
    # after as many batches as were left.
    "estimated_stepping_batches": (ASKING, "step=4", [*FIRST[:4], 0, 1, *SECOND, *THIRD]),
    # A shorter loader that has ended starts again when the combined one is iterated, or continues
    # although the longer one has ended. Their states hold neither.
    "two, max_size_cycle": (
        Job(make=lambda data: data.two("max_size_cycle")),
        "step=6",
        [*FIRST, *[None] * 6, *THIRD],
    ),
    "two, max_size": (
        Job(make=lambda data: data.two("max_size")),
        "step=5",
        [*FIRST[:5], None, *SECOND, *THIRD],
    ),
    # The four batches of the shorter loader are an epoch; now two of the longer one follow.
    "two, min_size": (
        Job(make=lambda data: data.two("min_size")),
        "step=4",
        [0, 1, 2, 3, None, None, 8, 9, 10, 11],
    ),
}


@pytest.mark.filterwarnings("ignore:set_epoch.* after load_state_dict")
@pytest.mark.parametrize("name", LIMITS)
def test_not_exact(name: str, data: Data, tmp_path: Path) -> None:
    job, checkpoint, expected = LIMITS[name]
    uninterrupted = job.break_off(data, tmp_path)
    assert places(uninterrupted, job.run(data, resume=tmp_path / f"{checkpoint}.ckpt")) == expected


def test_epoch_end_without_a_seed(data: Data, tmp_path: Path) -> None:
    """The state holds the seed of ``seed=None``. Lightning drops the state at an epoch's end."""

    def seeded(seed: int) -> Job:
        def unseeded(data: Data) -> Any:
            torch.manual_seed(seed)
            return data.loader(seed=None)

        return Job(make=unseeded, saves=every_epoch)

    uninterrupted = seeded(1).break_off(data, tmp_path)
    found = seeded(2).run(data, resume=tmp_path / "step=6.ckpt")
    assert places(uninterrupted, found) == FIRST + [None] * 12
    assert_same(seeded(1).run(data, resume=tmp_path / "step=6.ckpt"), uninterrupted)


@pytest.mark.filterwarnings("ignore:set_epoch.* after load_state_dict")
def test_last_batch_under_limit_train_batches(data: Data, tmp_path: Path) -> None:
    """Lightning begins a new epoch of four batches with the rest of the one that was cut short."""
    job = Job(trainer={"limit_train_batches": 4})
    job.break_off(data, tmp_path)
    found = places(Job().run(data), job.run(data, resume=tmp_path / "step=4.ckpt"))
    assert found == [*FIRST, 12, 13, 14, 15]


class SaveAfter(Callback):
    """Saves after a batch, of training or of validation."""

    def __init__(self, path: Path, *, trained: int, validated: int | None = None) -> None:
        self.path = path
        self._counts = trained, validated

    def on_train_batch_end(self, trainer: Any, model: Any, *_: Any) -> None:
        """Save, wherever the accumulation is."""
        if self._counts == (len(model.trained), None):
            trainer.save_checkpoint(self.path)

    def on_validation_batch_end(self, trainer: Any, model: Any, *_: Any) -> None:
        """Save in the middle of a validation."""
        if self._counts == (len(model.trained), len(model.validated)):
            trainer.save_checkpoint(self.path)


def test_in_the_middle_of_an_accumulation(data: Data, tmp_path: Path) -> None:
    """The batches are the same. The gradients before the checkpoint are lost."""
    job, saved = Job(trainer={"accumulate_grad_batches": 4}), tmp_path / "middle.ckpt"
    uninterrupted = job.run(data, SaveAfter(saved, trained=8))
    resumed = job.run(data, resume=saved)
    assert resumed.trained == uninterrupted.trained
    assert not torch.equal(resumed.weight, uninterrupted.weight)


@pytest.mark.parametrize(
    ("trained", "validated", "left_out"),
    [
        pytest.param(2, 2, [2], id="before the epoch's end"),
        pytest.param(6, 7, [7, 8], id="at the epoch's end"),
    ],
)
def test_in_the_middle_of_a_validation(
    data: Data, tmp_path: Path, trained: int, validated: int, left_out: list[int]
) -> None:
    """Validation loaders are not saved, so the rest of the validation is skipped. The training
    resumes exactly.
    """
    job = Job(validation=of_data(batch_size=8, seed=3), trainer={"val_check_interval": 2})
    saved = tmp_path / "middle.ckpt"
    uninterrupted = job.run(data, SaveAfter(saved, trained=trained, validated=validated))
    resumed = job.run(data, resume=saved)
    assert resumed.trained == uninterrupted.trained
    assert resumed.validated == [
        batch for place, batch in enumerate(uninterrupted.validated) if place not in left_out
    ]

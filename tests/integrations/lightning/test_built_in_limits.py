"""Where Lightning's own saving of loader states is not exact, and by how much.

Each test states the precise difference, so that a release of Lightning that mends it fails here.
The numbers are those of the undisturbed run's batches: six an epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.utilities import CombinedLoader

from stateful_gpu_loader import FolderSource
from tests.integrations.lightning.recorded_fits import (
    OF_LIGHTNING,
    Job,
    every_epoch,
    every_step,
    places,
)
from tests.trainer_data import image_loader, photos, tars

pytestmark = [
    *(pytest.mark.filterwarnings(text) for text in OF_LIGHTNING),
    pytest.mark.filterwarnings("ignore:`.fit.ckpt_path=None.` was called without a model"),
    pytest.mark.filterwarnings("ignore:.fit.ckpt_path=.last.. is set"),
]
KEEPS_ITS_EPOCH = pytest.mark.filterwarnings("ignore:set_epoch.* after load_state_dict")
"""Our warning: Lightning tells the sampler another epoch than that of the state."""

ALL = list(range(18))
FIRST, SECOND, THIRD = ALL[:6], ALL[6:12], ALL[12:]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> FolderSource:
    return photos(tmp_path_factory.mktemp("photos"))


def make(data: Any, **arguments: Any) -> Callable[[], Any]:
    return lambda: image_loader(data, **{"on_epoch_boundary": "next_epoch", **arguments})


def resumed_places(job: Job, saved: Path) -> list[int | None]:
    """What a run resumed from ``saved`` has trained on, before and after."""
    return places(job.run().seen, job.run(resume=saved).seen)


def test_epoch_end_of_lanes(tmp_path: Path) -> None:
    """Lightning drops the state of an epoch's end, and tells the epoch to samplers that have
    ``set_epoch`` alone: the first epoch's numbers and crops come again."""
    job = Job(make=make(tars(tmp_path / "shards")))
    job.run(every_epoch(tmp_path), fails_at=13)
    again = resumed_places(job, tmp_path / "step=6.ckpt")
    assert again == FIRST + FIRST + SECOND


def test_epoch_end_without_a_seed(data: FolderSource, tmp_path: Path) -> None:
    """The seed of ``seed=None`` is in the state, which Lightning drops at an epoch's end."""

    def seeded(seed: int) -> Job:
        def unseeded_loader() -> Any:
            torch.manual_seed(seed)
            return make(data, seed=None)()

        return Job(make=unseeded_loader)

    undisturbed = seeded(1).run()
    seeded(1).run(every_epoch(tmp_path), every_step(tmp_path / "steps"), fails_at=13)
    found = seeded(2).run(resume=tmp_path / "step=6.ckpt").seen
    assert places(undisturbed.seen, found) == FIRST + [None] * 12
    found = seeded(2).run(resume=tmp_path / "steps/step=5.ckpt").seen
    assert places(undisturbed.seen, found) == ALL
    found = seeded(1).run(resume=tmp_path / "step=6.ckpt").seen
    assert places(undisturbed.seen, found) == ALL


@pytest.mark.parametrize("name", ["step=4", "last"])
def test_max_steps_by_the_checkpoint_of_the_end(
    data: FolderSource, tmp_path: Path, name: str
) -> None:
    """Saved behind the loop: Lightning counts the epoch that ``max_steps`` cut short as over."""
    job = Job(make=make(data))
    job.run(ModelCheckpoint(tmp_path, "{step}", save_last=True), max_steps=4)
    assert resumed_places(job, tmp_path / f"{name}.ckpt") == [0, 1, 2, 3, *SECOND, *THIRD]


@KEEPS_ITS_EPOCH
def test_end_of_a_counted_job(data: FolderSource, tmp_path: Path) -> None:
    """The same of a job without epochs: the rest comes, and then Lightning's epoch is one ahead."""
    job = Job(make=make(data), trainer={"max_epochs": -1, "max_steps": 18})
    job.run(ModelCheckpoint(tmp_path, "{step}"), max_steps=4)
    assert resumed_places(job, tmp_path / "step=4.ckpt") == FIRST + THIRD + [None] * 6


def test_epoch_end_of_a_counted_job(data: FolderSource, tmp_path: Path) -> None:
    """Where ``max_steps`` is given, Lightning takes the epoch that has ended for one under way
    (``FitLoop.restarting``), and trains one more batch in it: it has told the sampler the next
    epoch, so that it is that epoch's first, and tells it the one after for the rest."""
    job = Job(make=make(data), trainer={"max_epochs": -1, "max_steps": 18})
    job.run(every_epoch(tmp_path), fails_at=13)
    again = resumed_places(job, tmp_path / "step=6.ckpt")
    assert again == [*FIRST, SECOND[0], *THIRD, *[None] * 5]


@pytest.mark.parametrize("fails_at", [3, 6])
def test_exception(data: FolderSource, tmp_path: Path, fails_at: int) -> None:
    """The state speaks of the batch in flight as delivered, and no step was made of it."""
    job = Job(make=make(data))
    job.run(OnExceptionCheckpoint(tmp_path), fails_at=fails_at)
    assert resumed_places(job, tmp_path / "on_exception.ckpt") == [
        batch for batch in ALL if batch != fails_at
    ]


def test_unsized_loader(tmp_path: Path) -> None:
    """Lightning fetches one batch ahead to know the last one, and saves the loader's present
    state: the batch that it holds is lost."""
    job = Job(make=make(tars(tmp_path / "shards")))
    job.run(every_step(tmp_path), fails_at=13)
    for step in (2, 7):
        again = resumed_places(job, tmp_path / f"step={step}.ckpt")
        assert again == [batch for batch in ALL if batch != step]
    assert resumed_places(job, tmp_path / "step=6.ckpt") == ALL


@pytest.mark.parametrize(("step", "again"), [(4, [0, 1]), (5, [0])])
def test_estimated_stepping_batches(
    data: FolderSource, tmp_path: Path, step: int, again: list[int]
) -> None:
    """Asked for in ``configure_optimizers``, it sets the loaders up before the states are there to
    load: the epoch begins anew, and ends after as many batches as were left."""
    job = Job(make=make(data), model={"asks_for_steps": True})
    job.run(every_step(tmp_path), fails_at=13)
    found = resumed_places(job, tmp_path / f"step={step}.ckpt")
    assert found == [*FIRST[:step], *again, *SECOND, *THIRD]
    assert resumed_places(job, tmp_path / "step=6.ckpt") == ALL


@KEEPS_ITS_EPOCH
@pytest.mark.parametrize(
    ("mode", "step", "differ"),
    [
        ("max_size_cycle", 5, []),
        ("max_size_cycle", 6, SECOND),
        ("max_size", 5, [5]),
        ("min_size", 4, [4, 5]),
    ],
)
def test_several_loaders(
    data: FolderSource, tmp_path: Path, mode: str, step: int, differ: list[int]
) -> None:
    """A shorter loader that has ended begins anew when the combined one is iterated, or goes on
    although the longer one has ended: nothing of that is in their states."""
    loader, other = make(data), make(data, batch_size=6, seed=5)
    job = Job(make=lambda: CombinedLoader([loader(), other()], mode))
    undisturbed = job.run().seen
    job.run(every_step(tmp_path), fails_at=len(undisturbed) - 1)
    found = places(undisturbed, job.run(resume=tmp_path / f"step={step}.ckpt").seen)
    expected = [None if batch in differ else batch for batch in range(len(undisturbed))]
    if mode == "min_size":
        # The four batches of the shorter loader are an epoch; now two of the longer one follow.
        expected = [0, 1, 2, 3, None, None, 8, 9, 10, 11]
    assert found == expected


@KEEPS_ITS_EPOCH
def test_last_batch_under_limit_train_batches(data: FolderSource, tmp_path: Path) -> None:
    """Lightning begins a new epoch of four batches with the rest of the one that was cut short."""
    job = Job(make=make(data), trainer={"limit_train_batches": 4})
    job.run(every_step(tmp_path), fails_at=9)
    undisturbed = Job(make=make(data)).run().seen
    found = places(undisturbed, job.run(resume=tmp_path / "step=4.ckpt").seen)
    assert found == [*FIRST, 12, 13, 14, 15]
    assert resumed_places(job, tmp_path / "step=6.ckpt") == list(range(12))


class SaveAfter(Callback):
    """Saves after a batch, of training or of validation."""

    def __init__(self, path: Path, *, trained: int, validated: int | None = None) -> None:
        self.path = path
        self._counts = trained, validated

    def on_train_batch_end(self, trainer: Any, model: Any, *_: Any) -> None:
        """Whatever the accumulation is at."""
        if self._counts == (len(model.seen), None):
            trainer.save_checkpoint(self.path)

    def on_validation_batch_end(self, trainer: Any, model: Any, *_: Any) -> None:
        """In the middle of a validation."""
        if self._counts == (len(model.seen), len(model.validated)):
            trainer.save_checkpoint(self.path)


def test_in_the_middle_of_an_accumulation(data: FolderSource, tmp_path: Path) -> None:
    """The batches are the same; the gradients of those before the checkpoint are in none."""
    job = Job(make=make(data), trainer={"accumulate_grad_batches": 4})
    undisturbed = job.run()
    saved = tmp_path / "middle.ckpt"
    job.run(SaveAfter(saved, trained=8), fails_at=13)
    resumed = job.run(resume=saved)
    assert resumed.seen == undisturbed.seen
    assert resumed.weights() != undisturbed.weights()


@pytest.mark.parametrize(
    ("trained", "validated", "left_out"),
    [
        pytest.param(2, 2, [2], id="before the epoch's end"),
        pytest.param(6, 7, [7, 8], id="at the epoch's end"),
    ],
)
def test_in_the_middle_of_a_validation(
    data: FolderSource, tmp_path: Path, trained: int, validated: int, left_out: list[int]
) -> None:
    """Validation loaders are not saved: the rest of the validation is left out. The training goes
    on exactly."""
    job = Job(
        make=make(data),
        validation=make(data, batch_size=8, seed=3),
        trainer={"val_check_interval": 2},
    )
    undisturbed = job.run()
    saved = tmp_path / "middle.ckpt"
    job.run(SaveAfter(saved, trained=trained, validated=validated), fails_at=13)
    resumed = job.run(resume=saved)
    assert resumed.seen == undisturbed.seen
    assert resumed.validated == [
        batch for place, batch in enumerate(undisturbed.validated) if place not in left_out
    ]

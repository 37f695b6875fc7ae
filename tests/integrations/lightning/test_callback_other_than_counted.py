"""LoaderStateCallback: Lightning's counters disagree with the loader's place."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from lightning.pytorch.utilities import CombinedLoader

from stateful_gpu_loader.integrations.lightning import LoaderStateCallback
from tests.integrations.lightning.recorded_fits import (
    OF_LIGHTNING,
    READS_AGAIN,
    Witness,
    assert_exact_from_every_hook,
    assert_same,
    every_epoch,
    every_step,
    fit,
    saved_everywhere,
    silent_trainer,
)
from tests.integrations.lightning.streams import SizedStream, noisy, stream
from tests.integrations.lightning.test_callback_situations import EpochEnds

pytestmark = [pytest.mark.filterwarnings(text) for text in (*OF_LIGHTNING, READS_AGAIN)]


class TooLong(SizedStream):
    """Reports more samples than it has."""

    def __len__(self) -> int:
        return self.length + 8


def sized_and_not() -> CombinedLoader:
    """Return a sized loader, and a stream without a length that ends first."""
    return CombinedLoader({"a": noisy(20), "b": stream(12)}, "min_size")


SHORT: dict[str, Any] = {
    "min_size of sized and unsized": sized_and_not,
    "too long a len": partial(stream, 12, TooLong),
}


@pytest.mark.parametrize("validates_early", [False, True])
@pytest.mark.parametrize("loader", SHORT)
def test_epochs_that_end_before_lightnings_count(
    loader: str, validates_early: bool, tmp_path: Path
) -> None:
    """Dropped bad samples have the same effect. No later epoch is left out."""
    validation = partial(stream, 8, TooLong if validates_early else SizedStream)
    interval: dict[str, Any] = {"val_check_interval": 2} if validates_early else {}
    every = 5 if validates_early else 1
    assert_exact_from_every_hook(
        tmp_path, SHORT[loader], validation=validation, every=every, **interval
    )


def test_an_epoch_whose_end_was_saved_is_not_ended_again(tmp_path: Path) -> None:
    """Its hooks have run. If only its last batch was known, they run in the resumed fit."""
    make = SHORT["too long a len"]
    fit(make, every_epoch(tmp_path / "epoch"), every_step(tmp_path / "step"))
    for when, num_ended in (("epoch", 2), ("step", 3)):
        ends = EpochEnds()
        fit(make, ends, resume=tmp_path / when / "step=3.ckpt")
        assert ends.num_ended == num_ended


@pytest.mark.parametrize("loader", SHORT)
def test_resumed_again_where_nothing_was_left_of_an_epoch(loader: str, tmp_path: Path) -> None:
    make = SHORT[loader]
    uninterrupted = fit(make, every_step(tmp_path))
    paths = saved_everywhere(tmp_path, make, resume=tmp_path / "step=3.ckpt")
    for path in paths[:6]:
        assert_same(fit(make, resume=path), uninterrupted)


def test_an_earlier_checkpoint_in_a_second_fit_of_the_trainer(tmp_path: Path) -> None:
    """The first fit's validation does not count for the resumed epoch."""
    uninterrupted = fit(noisy, validation=partial(noisy, 12))
    trainer = silent_trainer(LoaderStateCallback(), every_step(tmp_path))
    trainer.fit(Witness(), noisy(), noisy(12))
    for step in (3, 5, 8):
        witness, path = Witness(), tmp_path / f"step={step}.ckpt"
        trainer.fit(witness, noisy(), noisy(12), ckpt_path=path, weights_only=True)
        assert_same(witness, uninterrupted)


def test_exception_with_validations_counted_over_epochs(tmp_path: Path) -> None:
    """Resumed twice; a repeated batch moves no validation."""
    arguments: dict[str, Any] = {
        "validation": partial(noisy, 12),
        "check_val_every_n_epoch": None,
        "val_check_interval": 3,
    }
    uninterrupted = fit(noisy, **arguments)
    for number, steps in ((1, (9,)), (3, (8, 11)), (4, (9,)), (5, (8,)), (7, (9, 11))):
        folder = tmp_path / f"{number}"
        with pytest.raises(RuntimeError, match="a step failed"):
            fit(noisy, OnExceptionCheckpoint(folder), witness=Witness(fails_at=number), **arguments)
        path = folder / "on_exception.ckpt"
        assert_same(fit(noisy, every_step(folder), resume=path, **arguments), uninterrupted)
        for step in steps:
            path = folder / f"step={step}.ckpt"
            assert_same(fit(noisy, resume=path, **arguments), uninterrupted)

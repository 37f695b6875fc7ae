"""Checkpoints that the Trainer saves in the middle of a step, as at a SIGTERM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.hf_trainer.fits import Saving, fit, loader_of

STEPS = 13


@pytest.mark.parametrize(
    ("event", "accumulated"),
    [
        ("on_step_begin", 1),
        ("on_step_begin", 3),
        ("on_pre_optimizer_step", 3),
        ("on_pre_optimizer_step", 20),
    ],
)
def test_a_save_in_the_middle_of_a_step(event: str, accumulated: int, tmp_path: Path) -> None:
    """Batches that were fetched but not trained on come again: in an epoch, at its last batches,
    and before its first. Weights are equal too, if no dropout had drawn yet.
    """
    make = loader_of("map", tmp_path / "data")
    per_epoch = -(-7 // accumulated)
    given = {"gradient_accumulation_steps": accumulated, "save_strategy": "no"}
    saving = tuple(
        Saving(step, event, tmp_path / "run") for step in {0, per_epoch - 1, per_epoch, 1}
    )
    whole = fit(make(), tmp_path / "run", callbacks=saving, **given)
    assert whole.batches == fit(make(), tmp_path / "uninterrupted", **given).batches
    for step in {one.step for one in saving}:
        kept = str(tmp_path / "run" / f"kept-{step}")
        rest = fit(make(), tmp_path / "other", resume=kept, **given)
        done = step // per_epoch * 7 + step % per_epoch * accumulated
        assert rest.batches == whole.batches[done:]
        assert rest.steps == whole.steps
        if event == "on_step_begin":
            assert rest.weights == whole.weights


@pytest.mark.parametrize("accumulated", [1, 4, 5])
def test_without_length(accumulated: int, tmp_path: Path) -> None:
    """Lanes. Batches of one step may belong to two epochs of 6."""
    make = loader_of("lanes", tmp_path / "data")
    given = {"gradient_accumulation_steps": accumulated, "save_strategy": "no", "max_steps": 3}
    given["max_steps"] = 8 if accumulated == 1 else 3
    saving = tuple(
        Saving(step, "on_step_begin", tmp_path / "run") for step in range(given["max_steps"])
    )
    whole = fit(make(), tmp_path / "run", callbacks=saving, **given)
    for step in range(given["max_steps"]):
        kept = str(tmp_path / "run" / f"kept-{step}")
        rest = fit(make(), tmp_path / "other", resume=kept, **given)
        assert rest.batches == whole.batches[len(whole.batches) - len(rest.batches) :]
        assert rest.steps == whole.steps
        assert len(rest.batches) > (whole.steps - step - 1) * accumulated

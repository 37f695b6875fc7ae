"""The Trainer of transformers: a resumed run equals an uninterrupted one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from stateful_gpu_loader import StatefulGPULoader
from tests.integrations.hf_trainer.fits import EPOCHS, fit, loader_of
from tests.trainer_data import seen


def checkpoint(folder: Path, step: int) -> str:
    return str(folder / f"checkpoint-{step}")


@pytest.mark.parametrize("accumulated", [1, 3])
def test_checkpoints_resume(accumulated: int, tmp_path: Path) -> None:
    """In an epoch and at its end, with a shorter last step: the same numbers, pixels and
    weights, with a dropout that draws from torch's generator.
    """
    make = loader_of("map", tmp_path / "data")
    given = {"gradient_accumulation_steps": accumulated}
    whole = fit(make(), tmp_path / "run", **given)
    assert len(whole.batches) == 14
    assert whole.batches == delivered(make(), EPOCHS)
    per_epoch = -(-7 // accumulated)
    for step in {1, per_epoch - 1, per_epoch, per_epoch + 1, whole.steps - 1}:
        rest = fit(
            make(),
            tmp_path / "other",
            resume=checkpoint(tmp_path / "run", step),
            save_strategy="no",
            **given,
        )
        done = step // per_epoch * 7 + step % per_epoch * accumulated
        assert rest.batches == whole.batches[done:]
        assert (rest.weights, rest.steps, rest.epoch) == (whole.weights, whole.steps, whole.epoch)


def delivered(loader: StatefulGPULoader[Any], epochs: int) -> list[Any]:
    """Return the batches of the loader without a Trainer."""
    return [
        seen([batch["pixel_values"], batch["labels"]]) for _ in range(epochs) for batch in loader
    ]


@pytest.mark.parametrize("accumulated", [1, 4])
def test_a_loader_without_length_resumes(accumulated: int, tmp_path: Path) -> None:
    """By max_steps, and in the second epoch. A rest of an epoch that is too small for a step is
    accumulated with the next epoch's batches, as the Trainer does.
    """
    make = loader_of("lanes", tmp_path / "data")
    given = {"gradient_accumulation_steps": accumulated, "max_steps": 8 // accumulated + 1}
    whole = fit(make(), tmp_path / "run", **given)
    for step in {1, 6 // accumulated, whole.steps - 1}:
        rest = fit(
            make(),
            tmp_path / "other",
            resume=checkpoint(tmp_path / "run", step),
            save_strategy="no",
            **given,
        )
        assert rest.batches == whole.batches[len(whole.batches) - len(rest.batches) :]
        assert (rest.weights, rest.steps) == (whole.weights, whole.steps)


def test_an_exception_in_a_step(tmp_path: Path) -> None:
    """The broken run resumes from its last checkpoint, twice; worker processes change nothing."""
    whole = fit(loader_of("map", tmp_path / "data")(), tmp_path / "whole", save_strategy="no")
    make = loader_of("map", tmp_path / "data", num_workers=2)
    first = fit(make(), tmp_path / "run", breaks_at=6, save_steps=2)
    assert first.batches == whole.batches[:5]
    second = fit(make(), tmp_path / "run", resume=True, breaks_at=6, save_steps=2)
    assert second.batches == whole.batches[4:9]
    third = fit(make(), tmp_path / "run", resume=True, save_steps=2)
    assert (third.batches, third.weights) == (whole.batches[8:], whole.weights)


class Stopping(TrainerCallback):
    """Ends a run after a step, as a person or a time limit does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step == self.step


@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_a_run_that_was_stopped(strategy: str, tmp_path: Path) -> None:
    """By a callback, at the last step of an epoch."""
    make = loader_of("map", tmp_path / "data")
    whole = fit(make(), tmp_path / "whole", save_strategy="no")
    fit(make(), tmp_path / "run", callbacks=(Stopping(7),), save_strategy=strategy)
    rest = fit(make(), tmp_path / "run", resume=True, save_strategy="no")
    assert (rest.batches, rest.weights) == (whole.batches[7:], whole.weights)


def test_more_epochs_than_before(tmp_path: Path) -> None:
    """A finished run is extended."""
    make = loader_of("map", tmp_path / "data")
    given = {"lr_scheduler_type": "constant", "save_strategy": "epoch"}
    whole = fit(make(), tmp_path / "whole", num_train_epochs=3, **given)
    fit(make(), tmp_path / "run", num_train_epochs=1, **given)
    rest = fit(make(), tmp_path / "run", resume=True, num_train_epochs=3, **given)
    assert (rest.batches, rest.weights) == (whole.batches[7:], whole.weights)


def test_evaluation_is_the_trainers(tmp_path: Path) -> None:
    """A separate dataset is evaluated between the steps; the training loader does not move."""
    make = loader_of("map", tmp_path / "data")
    whole = fit(make(), tmp_path / "whole", save_strategy="no")

    gray = {"pixel_values": torch.full((3, 8, 8), 127), "labels": torch.tensor(0)}
    given = {"eval_strategy": "steps", "eval_steps": 1, "eval_dataset": [gray] * 6}
    evaluated = fit(make(), tmp_path / "run", **given)
    assert evaluated.batches == whole.batches
    rest = fit(make(), tmp_path / "run", resume=checkpoint(tmp_path / "run", 3), **given)
    assert (rest.batches, rest.weights) == (whole.batches[3:], evaluated.weights)


def test_the_file_is_only_in_the_checkpoint(tmp_path: Path) -> None:
    """The user's save_model() writes no checkpoint."""
    fit(loader_of("map", tmp_path / "data")(), tmp_path / "run", max_steps=2)
    found = sorted(path.parent.name for path in (tmp_path / "run").rglob("loader_state.json"))
    assert found == ["checkpoint-1", "checkpoint-2"]

"""What a Trainer cannot keep with a loader is told ahead of the training (F3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import CheckpointError, StatefulGPULoader, StateMismatch
from stateful_gpu_loader.errors import CheckpointNotFound
from stateful_gpu_loader.integrations.shared.loader_file import write_states
from stateful_gpu_loader.integrations.transformers import LoaderTrainer
from tests.integrations.hf_trainer.fits import Model, arguments, fit, loader_of


def assert_refused(
    folder: Path, loader: StatefulGPULoader[Any], error: type[Exception], text: str, **given: Any
) -> None:
    """``train()`` refuses the checkpoint before it has touched the model or the loader."""
    model = Model()
    given = {"save_strategy": "no", **given}
    trainer = LoaderTrainer(
        model=model, args=arguments(folder.parent, **given), train_loader=loader
    )
    state, weights = loader.state_dict(), [one.clone() for one in model.parameters()]
    with pytest.raises(error, match=text):
        trainer.train(resume_from_checkpoint=str(folder))
    assert loader.state_dict() == state
    assert all(map(torch.equal, model.parameters(), weights))
    assert model.batches == []


def test_checkpoints_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    """F3: another loader, another global batch, another accumulation, a missing file, a torn one,
    and one of several loaders."""
    make = loader_of("map", tmp_path / "data")
    fit(make(), tmp_path / "run", max_steps=3, save_steps=3)
    folder = tmp_path / "run" / "checkpoint-3"
    other = loader_of("map", tmp_path / "data", drop_last=True)
    assert_refused(folder, other(), StateMismatch, "drop_last differs")
    larger = loader_of("map", tmp_path / "data", batch_size=8)
    assert_refused(folder, larger(), StateMismatch, "global_batch_size .* has 4, expected was 8")
    assert_refused(
        folder,
        make(),
        StateMismatch,
        "gradient_accumulation_steps .* has 1, expected was 2",
        gradient_accumulation_steps=2,
    )
    file = folder / "loader_state.json"
    whole = file.read_text()
    file.write_text(whole[:-30])
    assert_refused(folder, make(), CheckpointError, "loader_state.json")
    file.unlink()
    assert_refused(folder, make(), CheckpointNotFound, "no loader_state.json.*LoaderTrainer")
    write_states(folder, [make().state_dict()] * 2)
    assert_refused(folder, make(), StateMismatch, "number of loaders .* has 2, expected was 1")


@pytest.mark.parametrize("name", ["ignore_data_skip", "auto_find_batch_size"])
def test_arguments_that_would_change_the_data_are_refused(name: str, tmp_path: Path) -> None:
    make = loader_of("map", tmp_path / "data")
    with pytest.raises(ValueError, match=rf"{name}=True\) with a loader. Remedy"):
        LoaderTrainer(model=Model(), args=arguments(tmp_path, **{name: True}), train_loader=make())


def test_arguments_that_the_loader_has_are_told(tmp_path: Path) -> None:
    """F3: dataloader_num_workers and others are the loader's."""
    given = arguments(tmp_path, dataloader_num_workers=3, per_device_train_batch_size=4)
    make = loader_of("map", tmp_path / "data")
    with pytest.warns(UserWarning, match="dataloader_num_workers=3.*has num_workers=0") as told:
        LoaderTrainer(model=Model(), args=given, train_loader=make())
    assert len(told) == 1


def test_a_dataset_is_no_loader(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="train_loader is a list, no StatefulGPULoader"):
        LoaderTrainer(model=Model(), args=arguments(tmp_path), train_loader=[1, 2])

"""Combinations that a Trainer cannot keep are refused before the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from stateful_gpu_loader import CheckpointError, StatefulGPULoader, StateMismatch
from stateful_gpu_loader.errors import CheckpointNotFound
from stateful_gpu_loader.integrations.shared.every_rank import write_states
from stateful_gpu_loader.integrations.transformers import LoaderTrainer
from tests.integrations.hf_trainer.fits import Model, Saving, arguments, fit, loader_of, named


def assert_refused(
    folder: Path, loader: StatefulGPULoader[Any], error: type[Exception], text: str, **given: Any
) -> None:
    """Check that ``train()`` refuses the checkpoint before it touches the model or the loader."""
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
    """Another loader, batch or accumulation, missing and torn files, one of several loaders."""
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
    file.write_text(whole)
    steps = folder / "trainer_state.json"
    for damaged in ("{", "[]", "{}"):
        steps.write_text(damaged)
        assert_refused(folder, make(), CheckpointError, "trainer_state.json.*Remedy")
    steps.unlink()
    assert_refused(folder, make(), CheckpointNotFound, "no trainer_state.json. Remedy")
    file.unlink()
    assert_refused(folder, make(), CheckpointNotFound, "no loader_state.json.*LoaderTrainer")
    write_states(folder, [make().state_dict()] * 2)
    assert_refused(folder, make(), StateMismatch, "number of loaders .* has 2, expected was 1")


def trainer_with(folder: Path, given: dict[str, Any]) -> LoaderTrainer:
    loader = loader_of("map", folder / "data", shuffle=True)()
    return LoaderTrainer(model=Model(), args=arguments(folder, **given), train_loader=loader)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"ignore_data_skip": True}, "ignore_data_skip=True"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size=True"),
        ({"accelerator_config": {"split_batches": True}}, "split_batches=True"),
        ({"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches=True"),
        ({"train_sampling_strategy": "group_by_length"}, "length.*Remedy"),
    ],
)
def test_arguments_that_would_change_the_data_are_refused(
    given: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=text):
        trainer_with(tmp_path, given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"dataloader_num_workers": 3, "per_device_train_batch_size": 4},
            "dataloader_num_workers=3.*num_workers=0",
        ),
        ({"accelerator_config": {"even_batches": False}}, "even_batches=False.*drop_last"),
        ({"train_sampling_strategy": "sequential"}, "strategy=sequential.*shuffle=True"),
        ({"data_seed": 123}, "data_seed=123.*seed="),
    ],
)
def test_arguments_that_the_loader_has_are_reported(
    given: dict[str, Any], text: str, tmp_path: Path
) -> None:
    """Workers, batches and their order belong to the loader."""
    with pytest.warns(UserWarning, match=text) as warned:
        trainer_with(tmp_path, given)
    assert len(warned) == 1


def test_a_dataset_instead_of_a_loader_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"train_loader .*list.*StatefulGPULoader"):
        LoaderTrainer(model=Model(), args=arguments(tmp_path), train_loader=[1, 2])


def test_two_sources_of_training_data_are_refused(tmp_path: Path) -> None:
    make = loader_of("map", tmp_path / "data")
    given = {"model": Model(), "args": arguments(tmp_path), "train_loader": make()}
    with pytest.raises(ValueError, match=r"train_dataset .*train_loader"):
        LoaderTrainer(train_dataset=[1, 2], **given)
    with pytest.warns(UserWarning, match=r"data_collator=.*collate_fn"):
        LoaderTrainer(data_collator=named, **given)
    LoaderTrainer(data_collator=named, eval_dataset=[1, 2], **given)


class EndingEpochs(TrainerCallback):
    """Ends an epoch after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_epoch_stop = state.global_step == self.step


@pytest.mark.parametrize("kind", ["map", "lanes"])
def test_epochs_that_end_early_are_not_resumed(kind: str, tmp_path: Path) -> None:
    """The Trainer counts whole epochs if it knows their length. Earlier checkpoints are valid."""
    make = loader_of(kind, tmp_path / "data")
    run = tmp_path / "run"
    middle, ending = tmp_path / "middle", EndingEpochs(2)
    whole = fit(make(), run, max_steps=9, callbacks=(ending,))
    fit(make(), middle, max_steps=9, callbacks=(ending, Saving(2, "on_step_begin", middle)))
    (middle / "kept-2").rename(run / "kept-2")
    refused = ["checkpoint-2"]
    if kind == "map":
        refused += ["kept-2", "checkpoint-3", "checkpoint-9"]
    for name in refused:
        text = "epochs .* ended early"
        assert_refused(run / name, make(), StateMismatch, text, max_steps=9)
    given = {"max_steps": 9, "save_strategy": "no"}
    if kind == "lanes":
        for name in ("kept-2", "checkpoint-3"):
            rest = fit(make(), tmp_path / "other", resume=str(run / name), **given)
            step = int(name[-1])
            assert (rest.batches, rest.weights) == (whole.batches[step:], whole.weights)
    rest = fit(
        make(),
        tmp_path / "other",
        resume=str(run / "checkpoint-1"),
        callbacks=(EndingEpochs(2),),
        **given,
    )
    assert (rest.batches, rest.weights) == (whole.batches[1:], whole.weights)


def test_a_loader_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    """The Trainer counts batches that it never received, and would skip others."""
    make = loader_of("map", tmp_path / "data")
    loader, started = make(), make()
    next(iter(started))
    loader.load_state_dict(started.state_dict())
    fit(loader, tmp_path / "run", max_steps=2, save_steps=2)
    folder = tmp_path / "run" / "checkpoint-2"
    text = "batches of the epoch .* has 3, expected was 2"
    assert_refused(folder, make(), StateMismatch, text)


class Miscounted(torch.utils.data.IterableDataset[Any]):
    """Reports more samples than it has."""

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Any:
        sample = {"pixel_values": torch.zeros((3, 8, 8)), "labels": torch.tensor(0)}
        return iter([sample] * 8)


def test_a_dataset_whose_length_is_wrong(tmp_path: Path) -> None:
    """In the second epoch, the Trainer still counts the first."""
    loader = StatefulGPULoader(Miscounted(), batch_size=4)
    fit(loader, tmp_path / "run", max_steps=6)
    folder = tmp_path / "run" / "checkpoint-3"
    text = "epochs .* wrong length"
    assert_refused(folder, StatefulGPULoader(Miscounted(), batch_size=4), StateMismatch, text)

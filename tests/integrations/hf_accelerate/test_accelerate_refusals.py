"""States that do not fit are refused before anything is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader

from stateful_gpu_loader import CheckpointError, LoaderError, StatefulGPULoader, StateMismatch
from stateful_gpu_loader.errors import CheckpointNotFound
from stateful_gpu_loader.integrations.accelerate import prepare_loader
from tests.conformance import differing
from tests.integrations.hf_accelerate.loops import new_accelerator
from tests.integrations.lightning.streams import Stream


def job(*loaders: StatefulGPULoader[Any]) -> tuple[Accelerator, torch.nn.Module, list[Any]]:
    accelerator = new_accelerator()
    model = accelerator.prepare(torch.nn.Linear(2, 1))
    prepared = [prepare_loader(accelerator, loader) for loader in loaders]
    for loader in prepared:
        next(iter(loader))
    return accelerator, model, prepared


def numbers(drop_last: bool = False, length: int = 10) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(range(length), batch_size=3, seed=1, drop_last=drop_last)


def assert_nothing_changes(
    folder: Path, loaders: list[StatefulGPULoader[Any]], error: type[Exception], text: str
) -> None:
    accelerator, model, prepared = job(*loaders)
    before = [loader.state_dict() for loader in prepared]
    weights = model.weight.detach().clone()
    with pytest.raises(error, match=text):
        accelerator.load_state(str(folder))
    assert [loader.state_dict() for loader in prepared] == before
    assert torch.equal(model.weight, weights)


def test_accelerates_own_prepare_is_refused() -> None:
    """Accelerate would build a DataLoader of the dataset, without images, transforms and state."""
    accelerator = new_accelerator()
    for prepare in (accelerator.prepare, accelerator.prepare_data_loader):
        with pytest.raises(LoaderError, match=r"prepare_loader\(accelerator, loader\)"):
            prepare(numbers())
    assert accelerator._dataloaders == []


def test_functions_of_accelerate_that_build_another_loader_are_refused() -> None:
    """``skip_first_batches`` silently returned a plain DataLoader for both kinds of datasets."""
    for dataset in (range(10), Stream(10)):
        loader = StatefulGPULoader(dataset, batch_size=3, seed=1)
        for function in (skip_first_batches, new_accelerator().skip_first_batches):
            with pytest.raises(LoaderError, match=r"prepare_loader\(accelerator, loader\)"):
                function(loader, 1)
        with pytest.raises(LoaderError, match=r"prepare_loader\(accelerator, loader\)"):
            prepare_data_loader(loader)
        assert loader.multiprocessing_context is None


def test_states_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    """Another number of loaders, other loaders, the second of two, and damaged or missing files."""
    accelerator, _, loaders = job(numbers(), numbers(drop_last=True))
    for loader in loaders:
        assert len(list(loader)) == len(loader)
    accelerator.save_state(str(tmp_path))
    assert_nothing_changes(
        tmp_path, [numbers()], StateMismatch, "number of loaders .* has 2, expected was 1"
    )
    both = [numbers(drop_last=True), numbers()]
    assert_nothing_changes(tmp_path, both, StateMismatch, "drop_last differs")
    second = [numbers(), numbers(drop_last=True, length=11)]
    assert_nothing_changes(tmp_path, second, StateMismatch, "dataset differs")
    file = tmp_path / "loader_state.json"
    file.write_text(file.read_text()[:-20])
    fitting = [numbers(), numbers(drop_last=True)]
    assert_nothing_changes(tmp_path, fitting, CheckpointError, "loader_state.json")
    file.unlink()
    assert_nothing_changes(
        tmp_path, fitting, CheckpointNotFound, r"no loader_state.json.*Remedy.*prepare_loader"
    )


def test_an_accepted_change_is_loaded() -> None:
    shuffled = [StatefulGPULoader(range(10), shuffle=True, seed=seed) for seed in (1, 2)]
    loader, other = [prepare_loader(new_accelerator(), each) for each in shuffled]
    state = {**loader.state_dict(), "epoch": 4}
    with pytest.raises(StateMismatch, check=differing("seed")):
        other.load_state_dict(state)
    other.load_state_dict(state, accept={"seed"})
    assert other.state_dict()["epoch"] == 4


def test_other_loaders_are_refused() -> None:
    with pytest.raises(TypeError, match=r"DataLoader .*StatefulGPULoader.*accelerator\.prepare"):
        prepare_loader(new_accelerator(), DataLoader(range(3)))  # type: ignore[arg-type]

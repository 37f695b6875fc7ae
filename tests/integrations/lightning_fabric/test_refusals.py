"""Refusals of loaders under Fabric, before training starts and with nothing half-changed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from stateful_gpu_loader import StatefulGPULoader, StateMismatch
from stateful_gpu_loader.integrations.fabric import setup_dataloaders
from tests.conformance import differing
from tests.integrations.lightning_fabric.training import adapted, one_process


def numbers(length: int = 24) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(range(length), batch_size=4, shuffle=True, seed=1)


def started_loader(length: int = 24) -> Any:
    """Return a loader under Fabric, one batch into its epoch."""
    loader = adapted(one_process(), numbers(length))
    next(iter(loader))
    return loader


def test_other_objects_are_refused_by_their_names() -> None:
    """No loader, torch's own loader, and one that Fabric has already wrapped."""
    fabric = one_process()
    with pytest.raises(ValueError, match="Remedy"):
        setup_dataloaders(fabric)
    with pytest.raises(TypeError, match=r"DataLoader .*StatefulGPULoader"):
        setup_dataloaders(fabric, DataLoader(range(4)))
    with pytest.raises(TypeError, match=r"_FabricDataLoader .*StatefulGPULoader"):
        setup_dataloaders(fabric, fabric.setup_dataloaders(numbers()))
    with pytest.raises(TypeError, match=r"FabricLoader .*StatefulGPULoader"):
        setup_dataloaders(fabric, setup_dataloaders(fabric, numbers()))


def test_fabric_that_was_not_launched_is_refused() -> None:
    """Its ranks are not known yet."""
    unlaunched = SimpleNamespace(world_size=2, strategy=None)
    with pytest.raises(RuntimeError, match=r"fabric\.world_size = 2.*fabric\.launch\(\)"):
        setup_dataloaders(unlaunched, numbers())


def test_state_of_another_loader_is_refused(tmp_path: Path) -> None:
    """Training and validation loader are exchanged; no loader has moved."""
    fabric = one_process()
    fabric.save(tmp_path / "state", {"train": started_loader(24), "valid": started_loader(20)})
    train, valid = started_loader(24), started_loader(20)
    before = train.state_dict(), valid.state_dict()
    contents = {"saved": "range(0, 24)", "present": "range(0, 20)"}
    with pytest.raises(StateMismatch, check=differing("dataset", **contents)):
        fabric.load(tmp_path / "state", {"train": valid, "valid": train})
    assert (train.state_dict(), valid.state_dict()) == before


def test_refused_loader_leaves_the_model_after_it_unchanged(tmp_path: Path) -> None:
    """Fabric loads in the dictionary's order: with the loaders first, all or nothing."""
    fabric, trained = one_process(), torch.nn.Linear(1, 1)
    fabric.save(tmp_path / "state", {"loader": started_loader(24), "model": trained})
    model = torch.nn.Linear(1, 1)
    before = model.weight.item()
    assert trained.weight.item() != before
    with pytest.raises(StateMismatch, check=differing("dataset")):
        fabric.load(tmp_path / "state", {"loader": started_loader(20), "model": model})
    assert model.weight.item() == before


def test_accepted_change_is_loaded() -> None:
    """``accept`` reaches the loader, whose epoch then counts."""
    loader = started_loader()
    state = {**loader.state_dict(), "epoch": 4}
    other = adapted(one_process(), StatefulGPULoader(range(24), batch_size=4, shuffle=True, seed=2))
    with pytest.raises(StateMismatch, check=differing("seed")):
        other.load_state_dict(state)
    other.load_state_dict(state, accept={"seed"})
    assert other.state_dict()["epoch"] == 4

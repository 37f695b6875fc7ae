"""``inspect`` finds the states in files that trainers have just written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import DataLoaderConfiguration
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.integrations.accelerate import prepare_loader
from tests.cli.command import command
from tests.integrations.hf_accelerate.loops import new_accelerator
from tests.integrations.hf_trainer.fits import fit, named
from tests.integrations.lightning.recorded_fits import OF_LIGHTNING, every_step
from tests.integrations.lightning.recorded_fits import fit as lightning_fit
from tests.trainer_data import image_loader, photos

pytestmark = [pytest.mark.filterwarnings(text) for text in OF_LIGHTNING]


def inspected(path: Path) -> dict[str, dict[str, Any]]:
    """Return the printed text of each state, by its file and its place."""
    done = command("inspect", path, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["unreadable"] == []
    return {
        f"{Path(each['path']).relative_to(path)} {each['where']}": each for each in found["states"]
    }


def test_lightnings_own_record_counts_unless_the_callbacks_is_there(tmp_path: Path) -> None:
    data, saved = photos(tmp_path / "photos"), tmp_path / "saved"
    for name, built_in in (("alone", True), ("both", False)):
        saves = every_step(saved / name, steps=2)
        lightning_fit(lambda: image_loader(data), saves, built_in=built_in, max_steps=2)
    found = inspected(saved)
    record = "loops.fit_loop.state_dict.combined_loader.0"
    assert {place: bool(each["note"]) for place, each in found.items()} == {
        f"alone/step=2.ckpt {record}": False,
        f"both/step=2.ckpt {record}": True,
        "both/step=2.ckpt callbacks.LoaderStateCallback.train.0.state": False,
    }
    assert {each["container"] for each in found.values()} == {"Lightning checkpoint"}
    assert {each["batches_seen"] for each in found.values()} == {2}


def test_accelerates_folder_has_our_file_or_torchdatas_state(tmp_path: Path) -> None:
    accelerator = new_accelerator()
    accelerator.prepare(torch.nn.Linear(1, 1))
    ours = prepare_loader(accelerator, StatefulGPULoader(range(10), batch_size=2, seed=1))
    next(iter(ours))
    accelerator.save_state(str(tmp_path / "saved/ours"))
    accelerator = new_accelerator(
        dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True)
    )
    theirs = accelerator.prepare(StatefulDataLoader(list(range(10)), batch_size=2))
    next(iter(theirs))
    accelerator.save_state(str(tmp_path / "saved/theirs"))
    found = inspected(tmp_path / "saved")
    assert {place: (each["container"], each["library"]) for place, each in found.items()} == {
        "ours/loader_state.json loaders.loader_0": ("Accelerate checkpoint", "stateful_gpu_loader"),
        "theirs/dl_state_dict.bin ": ("torch.save file", "torchdata's StatefulDataLoader"),
    }
    assert found["ours/loader_state.json loaders.loader_0"]["position"] == 2
    assert found["theirs/dl_state_dict.bin "]["batches_seen"] == 1


def test_the_trainers_folder(tmp_path: Path) -> None:
    loader = image_loader(photos(tmp_path / "photos"), batch_transform=named)
    fit(loader, tmp_path / "run", max_steps=2)
    found = inspected(tmp_path / "run")
    assert {place: (each["container"], each["batches_seen"]) for place, each in found.items()} == {
        f"checkpoint-{step}/loader_state.json loaders.loader_0": ("transformers checkpoint", step)
        for step in (1, 2)
    }

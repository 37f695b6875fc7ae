"""``inspect`` and ``diff`` on real files, as processes and in this one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.cli.app import app
from stateful_gpu_loader.tools.state_files import NoState
from tests.cli.command import command


@pytest.fixture
def saved(tmp_path: Path) -> list[Path]:
    loader = StatefulGPULoader(range(20), batch_size=4, seed=7)
    batches, paths = iter(loader), []
    for step in range(3):
        paths.append(tmp_path / f"{step}.pt")
        torch.save({"train": loader.state_dict(), "val": loader.state_dict()}, paths[-1])
        next(batches)
    return paths


def test_inspect_as_a_process(saved: list[Path]) -> None:
    done = command("inspect", saved[2])
    assert done.returncode == 0, done.stderr
    assert "at train" in done.stdout
    assert "8 of 20 (40.0%) samples of the epoch" in done.stdout
    assert done.stderr == ""


def test_inspect_for_a_program(saved: list[Path]) -> None:
    done = CliRunner().invoke(app, ["inspect", str(saved[2]), "--json"])
    found = json.loads(done.stdout)
    assert [one["where"] for one in found] == ["train", "val"]
    assert (found[0]["position"], found[0]["steps"], found[0]["share"]) == (8, 2, 0.4)


def test_diff_as_a_process(saved: list[Path]) -> None:
    done = command("diff", saved[0], saved[2])
    assert done.returncode == 1, done.stderr
    assert "the second is later, by 8 samples or 2 steps" in done.stdout


def test_the_same_place_is_status_0(saved: list[Path]) -> None:
    assert CliRunner().invoke(app, ["diff", str(saved[1]), str(saved[1])]).exit_code == 0


def test_one_of_several_states(saved: list[Path]) -> None:
    arguments = ["diff", str(saved[0]), str(saved[1]), "--json", "--where"]
    done = CliRunner().invoke(app, [*arguments, "val"])
    assert list(json.loads(done.stdout)) == ["val"]
    missing = CliRunner().invoke(app, [*arguments, "test"])
    assert isinstance(missing.exception, NoState)


def test_a_refusal_says_what_accepts_it(tmp_path: Path) -> None:
    for name, drop_last in (("a.json", False), ("b.json", True)):
        loader = StatefulGPULoader(range(20), batch_size=4, seed=7, drop_last=drop_last)
        (tmp_path / name).write_text(json.dumps(loader.state_dict()))
    done = CliRunner().invoke(app, ["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert done.exit_code == 1
    assert "accept={'drop_last'}" in done.stdout


def test_a_file_without_a_state_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    done = command("inspect", tmp_path / "notes.txt")
    assert done.returncode == 2
    assert "no state of a loader" in done.stderr
    assert "Traceback" not in done.stderr

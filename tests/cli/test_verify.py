"""``verify`` at the command line: what it prints, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stateful_gpu_loader.cli.app import app
from tests.cli.command import command
from tests.tools import faults

TRAIN = """
from stateful_gpu_loader import StatefulGPULoader

def make_loader(batch_size=4):
    return StatefulGPULoader(range(20), batch_size=batch_size, shuffle=True, seed=1)

def make_empty():
    return StatefulGPULoader([])
"""


@pytest.fixture(autouse=True)
def _no_new_process(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Saves the start of new interpreters, but for the tests with whole processes."""
    if request.node.get_closest_marker("processes") is None:
        monkeypatch.setattr(
            "stateful_gpu_loader.cli.verify.factory_of",
            lambda target, arguments: lambda: getattr(faults, target)(),
        )


def test_nothing_differs() -> None:
    done = CliRunner().invoke(app, ["verify", "make_exact", "--batches", "4"])
    assert done.exit_code == 0, done.output
    assert "exact    a new loader, inline" in done.stdout
    assert "nothing differs" in done.stdout


def test_something_differs() -> None:
    done = CliRunner().invoke(app, ["verify", "make_with_clock", "--batches", "4", "--json"])
    assert done.exit_code == 1, done.output
    report = json.loads(done.stdout)
    assert report["is_exact"] is False
    assert report["cause"]["kind"] == "the clock"
    assert report["sample"]["fields"][0]["field"] == "['value']"


def test_processes_that_cannot_be_started_are_skipped_with_the_reason(spawns: None) -> None:
    arguments = ["verify", "make_unpicklable", "--batches", "4"]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["is_exact"] is True
    assert report["sample"] is report["cause"] is None
    outcomes = {check["name"]: check for check in report["checks"]}
    for name in ("2 processes", "a worker process is killed"):
        assert outcomes[name]["outcome"] == "skipped"
        assert "dataset cannot be pickled" in outcomes[name]["reason"]
    text = CliRunner().invoke(app, arguments).stdout
    assert "skipped  2 processes, after batch 2: worker processes are started with 'spawn'" in text
    assert report["verdict"] == text.splitlines()[-1]


@pytest.mark.processes
def test_as_a_process(tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text(TRAIN)
    done = command(
        "verify", "training:make_loader", "--arg", "batch_size=5", "--batches", "5", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exact    a new Python process" in done.stdout
    assert done.stderr == ""


ENDS_ELSEWHERE = """
import multiprocessing, os
if multiprocessing.parent_process() is not None:
    os._exit(3)
"""


@pytest.mark.processes
def test_a_check_that_could_not_run_is_no_difference(tmp_path: Path) -> None:
    """A new process cannot import the module of the factory."""
    (tmp_path / "training.py").write_text(ENDS_ELSEWHERE + TRAIN)
    done = command("verify", "training:make_loader", "--batches", "4", "--json", cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["is_exact"] is None
    assert report["sample"] is report["cause"] is None
    outcomes = {check["name"]: check["outcome"] for check in report["checks"]}
    assert outcomes.pop("a new Python process") == "could not run"
    assert "could not run" not in outcomes.values()
    assert "differs" not in outcomes.values()
    assert report["verdict"].startswith("Could not run: 1 of ")


@pytest.mark.processes
def test_an_unforeseen_error_is_no_difference(tmp_path: Path) -> None:
    """Status 1 says that something differs."""
    (tmp_path / "training.py").write_text("raise MemoryError\n")
    done = command("verify", "training:make_loader", cwd=tmp_path)
    assert done.returncode == 2
    assert "MemoryError" in done.stderr


@pytest.mark.processes
def test_what_cannot_be_run_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text(TRAIN)
    done = command("verify", "training:make_empty", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: the loader delivers no batch")
    assert "Traceback" not in done.stderr

"""The command ``verify``: its output and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import Done, command

TRAIN = """
from stateful_gpu_loader import StatefulGPULoader
from tests.tools import faults

# pickle knows no lambda, so none is called in a new process, whose start takes seconds.
make_exact = lambda batch_size: StatefulGPULoader(range(20), batch_size=batch_size, seed=1)
make_counter = lambda: StatefulGPULoader(faults.Applied(faults.counted), batch_size=4)
make_empty = lambda: StatefulGPULoader([])
sizes = [4] * 4
make_gone = lambda: StatefulGPULoader(range(20), batch_size=sizes.pop())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "training.py").write_text(TRAIN)
    return tmp_path


def verified(folder: Path, name: str, *arguments: str) -> Done:
    return command("verify", f"training:{name}", "--batches", "4", *arguments, cwd=folder)


def test_nothing_differs(folder: Path) -> None:
    done = verified(folder, "make_exact", "--arg", "batch_size=5")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("StatefulGPULoader of range, inline: 4 batches\nexact    a new ")
    assert "nothing differs" in done.stdout


def test_something_differs(folder: Path) -> None:
    done = verified(folder, "make_counter", "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["is_exact"] is False
    assert report["verdict"].startswith("Not exact: ")
    assert report["cause"]["kind"] == "a global variable"
    assert report["sample"]["fields"][0]["field"] == "['value']"


def test_a_check_that_could_not_run_is_not_a_difference(folder: Path) -> None:
    """The factory cannot make as many loaders as there are checks."""
    done = verified(folder, "make_gone", "--json")
    assert done.returncode == 2
    report = json.loads(done.stdout)
    assert report["is_exact"] is report["sample"] is report["cause"] is None
    assert report["verdict"].startswith("Could not run: ")
    checks = {check["outcome"]: check["reason"] for check in report["checks"]}
    assert "differs" not in checks
    assert "IndexError: pop from empty list" in checks["could not run"]


def test_a_loader_that_cannot_run_is_one_sentence(folder: Path) -> None:
    done = verified(folder, "make_empty")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: the loader delivers no batch")
    assert "Traceback" not in done.stderr

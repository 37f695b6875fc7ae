"""The command bench, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import command

FACTORY = """
from stateful_gpu_loader import StatefulGPULoader

def make(n=1000):
    return StatefulGPULoader(range(n), batch_size=10)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(FACTORY)
    return tmp_path


def test_json_holds_the_report_and_the_picture_is_drawn(folder: Path) -> None:
    options = ("--workers", "0", "--seconds", "0.01", "--against", "torch", "--json")
    done = command("bench", "train:make", *options, "-o", "bench.svg", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert [rate["loader"] for rate in report["rates"]] == ["this loader", "torch's DataLoader"]
    assert {"read", "collate"} == {one["stage"] for one in report["ceilings"]}
    assert "<svg" in (folder / "bench.svg").read_text()


def test_text_ends_with_the_recommendation_and_a_mistake_is_one_sentence(folder: Path) -> None:
    done = command("bench", "train.py:make", "--workers", "0", "--seconds", "0.01", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "num_workers=0 delivers" in done.stdout.splitlines()[-1]
    done = command("bench", "train:make", "--workers", "two", cwd=folder)
    assert done.returncode == 2
    assert done.stderr == "Error: --workers 'two' is no list of numbers such as 0,1,2,4\n"

"""The examples of Composer and of Ray Train run as scripts, and say what is the same."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.patience import seconds

FOLDER = Path(__file__).parent.parent.parent / "examples" / "trainers"
PRINTS = {
    "composer_callback": (
        "composer",
        ["resumed after step 12: 6 batches the same", "weights the same"],
    ),
    "ray_train": (
        "ray",
        ["a worker was killed in step 12: True", "18 batches of both workers the same"],
    ),
}


@pytest.mark.parametrize("name", PRINTS)
def test_an_example_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    package, lines = PRINTS[name]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed; make test-trainers-apart installs it")
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    path = FOLDER / f"{name}.py"
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds(40),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # Ray itself tells of the worker that died.
    assert [line for line in done.stdout.splitlines() if "raylet" not in line] == lines
    assert list(tmp_path.iterdir()) == []
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60

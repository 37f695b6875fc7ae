"""Runs in_dynamic_mode/ in a separate process.

The threads that dynamic mode starts stay until the process ends, and other tests fork theirs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import seconds

pytest.importorskip("nvidia.dali")

FOLDER = Path(__file__).with_name("in_dynamic_mode")
MODULES = [FOLDER / f"{name}.py" for name in ("resume", "refusals", "checkpoints")]


def test_in_dynamic_mode() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *map(str, MODULES)]
    run = subprocess.run(
        command, cwd=FOLDER.parents[2], capture_output=True, text=True, timeout=seconds(30)
    )
    assert run.returncode == 0, run.stdout[-10_000:] + run.stderr[-3000:]

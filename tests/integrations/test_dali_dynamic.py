"""Runs in_dynamic_mode/ in a process of its own and reports its tests one by one.

The threads that dynamic mode starts stay for the rest of a process, and other tests fork theirs.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import seconds

pytest.importorskip("nvidia.dali")

FOLDER = Path(__file__).with_name("in_dynamic_mode")
MODULES = [FOLDER / f"{name}.py" for name in ("resume", "refusals", "checkpoints")]
TESTS = [
    f"{module.name}::{node.name}"
    for module in MODULES
    for node in ast.parse(module.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
]


@pytest.fixture(scope="module")
def report() -> list[str]:
    """The lines of pytest, each test with its outcome."""
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *map(str, MODULES)]
    run = subprocess.run(
        command, cwd=FOLDER.parents[2], capture_output=True, text=True, timeout=seconds(30)
    )
    assert run.returncode in (0, 1), run.stdout[-3000:] + run.stderr[-3000:]
    return run.stdout.splitlines()


@pytest.mark.parametrize("test", TESTS)
def test_in_dynamic_mode(test: str, report: list[str]) -> None:
    """See the test of that name."""
    summary = [line.split(" - ")[0] for line in report if line.startswith(("PASSED", "FAILED"))]
    own = [line for line in summary if line.partition("[")[0].endswith(f"/{test}")]
    assert own, f"{test} gave no outcome:\n" + "\n".join(report[-60:])
    assert all(line.startswith("PASSED") for line in own), "\n".join(report)

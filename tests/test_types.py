"""Type checkers know the batches of a loader, and reject misspelled arguments."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stateful_gpu_loader.decoders.registry import DECODER_NAMES

ROOT = Path(__file__).parent.parent
LOADER = ROOT / "stateful_gpu_loader/loader.py"
PROGRAM = """
from typing import Any

import torch
from typing_extensions import assert_type

from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader.integrations.ray import RayWorkers


def joined(samples: list[Any]) -> dict[str, int]:
    return {"n": len(samples)}


images: StatefulGPULoader[list[torch.Tensor]] = StatefulGPULoader(FolderSource("photos"))
for pixels, labels in images:
    assert_type(pixels, torch.Tensor)
    pixels.shappe  # refused
for batch in StatefulGPULoader(range(10), collate_fn=joined):
    assert_type(batch, dict[str, int])
anything = StatefulGPULoader(range(10), batch_size=4)
for batch in anything:
    batch.whatever

StatefulGPULoader([0], decoder="torchvision", worker_type="thread", num_replicas="auto")
StatefulGPULoader([0], on_bad_sample="drop", on_epoch_boundary="next_epoch")
StatefulGPULoader([0], worker_type=RayWorkers(num_cpus=2))
StatefulGPULoader([0], on_bad_sample="replase")  # refused
StatefulGPULoader([0], worker_type="threads")  # refused
StatefulGPULoader([0], decoder="torchvison")  # refused
StatefulGPULoader([0], on_epoch_boundary="next")  # refused
StatefulGPULoader([0], num_replicas="autos")  # refused
StatefulGPULoader([0], bach_size=4)  # refused
"""
ONLY_PYRIGHT = """
inferred = StatefulGPULoader(FolderSource("photos"), batch_size=4)
assert_type(inferred, StatefulGPULoader[list[torch.Tensor]])
assert_type(inferred.peek(), list[torch.Tensor])
"""


@pytest.mark.processes
def test_mypy(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [
            *[sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")],
            *["--no-error-summary", str(tmp_path / "program.py")],
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"program\.py:(\d+): error", done.stdout)
    assert {int(line) for line in found} == refused(PROGRAM), done.stdout + done.stderr


@pytest.mark.processes
def test_pyright(tmp_path: Path) -> None:
    """Skipped if pyright is not installed: it needs Node.js, which takes 300 MB."""
    pyright = shutil.which("pyright") or shutil.which("basedpyright")
    if pyright is None:
        pytest.skip("pyright is not installed")
    (tmp_path / "program.py").write_text(PROGRAM + ONLY_PYRIGHT)
    done = subprocess.run(
        [pyright, "--pythonpath", sys.executable, "--outputjson", str(tmp_path / "program.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [
        each["range"]["start"]["line"] + 1
        for each in json.loads(done.stdout)["generalDiagnostics"]
        if each["severity"] == "error"
    ]
    assert set(found) == refused(PROGRAM), done.stdout


def refused(program: str) -> set[int]:
    """Return the numbers of the lines that a type checker must reject."""
    lines = program.splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}


def test_the_decoders_of_the_signature_are_all_there_are() -> None:
    (choices,) = re.findall(r"decoder: Literal\[(.*?)\]", LOADER.read_text(), re.DOTALL)
    assert set(re.findall(r'"(\w+)"', choices)) == set(DECODER_NAMES)

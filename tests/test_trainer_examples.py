"""The examples of trainers run as scripts, are short, and say when a resumed run is another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples" / "trainers"

APART = {"composer_callback", "ray_train"}
"""They run in ``make test-trainers``."""

EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in APART)

# A resumed run then starts anew: no example may find it to be the same.
FORGETFUL = """
import runpy, sys
from stateful_gpu_loader import StatefulGPULoader
StatefulGPULoader.load_state_dict = lambda self, state_dict, accept=(): None
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_finds_the_resumed_run_the_same(name: str, tmp_path: Path) -> None:
    """F1 to F5."""
    done = run(str(FOLDER / f"{name}.py"), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.endswith("the same") for line in lines), lines
    assert not any("ANOTHER" in line for line in lines), lines


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "torchrun_elastic"])
def test_an_example_says_that_a_run_without_its_state_is_another(name: str, tmp_path: Path) -> None:
    """Its verdict is no matter of course; or the adapter notices before there is one. (torchrun
    starts the script itself.)"""
    done = run("-c", FORGETFUL, str(FOLDER / f"{name}.py"), folder=tmp_path)
    is_refused = "StateMismatch" in done.stderr
    assert is_refused or "ANOTHER" in done.stdout, done.stderr
    assert is_refused == (done.returncode != 0)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith('"""')
    assert len(text.splitlines()) < 60


def test_the_document_names_every_example() -> None:
    document = (FOLDER.parent.parent / "docs" / "trainers.md").read_text(encoding="utf-8")
    for path in FOLDER.glob("*.py"):
        assert f"](../examples/trainers/{path.name})" in document, path.name

"""The command line as a whole: help, mistakes, and the extra it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from stateful_gpu_loader.cli.app import app
from tests.cli.command import command


def test_options_of_several_commands_are_explained_alike() -> None:
    commands: Any = typer.main.get_command(app)
    helps: dict[str, set[str]] = {}
    for one in commands.commands.values():
        for option in one.params:
            if option.name in {"where", "arg", "as_json", "path"}:
                helps.setdefault(option.name, set()).add(option.help)
    assert {name: len(texts) for name, texts in helps.items()} == dict.fromkeys(helps, 1)
    assert set(helps) == {"where", "arg", "as_json", "path"}


def test_without_arguments_it_explains_itself() -> None:
    done = command()
    assert "Exit status: 0 all is well" in done.stdout + done.stderr


def test_mistakes_have_status_2(tmp_path: Path) -> None:
    unknown = command("inspekt")
    assert unknown.returncode == 2
    assert "inspekt" in unknown.stderr
    # Status 1, which Python itself would give, says that something differs.
    (tmp_path / "training.py").write_text("raise MemoryError\n")
    unforeseen = command("verify", "training:make_loader", cwd=tmp_path)
    assert unforeseen.returncode == 2
    assert "MemoryError" in unforeseen.stderr


def test_the_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "stateful_gpu_loader.cli.app")
    done = command()
    assert done.returncode == 2
    assert "pip install 'stateful_gpu_loader[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.processes
def test_the_package_is_a_command_too() -> None:
    command = [sys.executable, "-m", "stateful_gpu_loader", "inspect", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "Error: there is no file or folder 'nowhere'\n"

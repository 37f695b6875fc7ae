"""The command line as a process: help, mistakes, and the extra it needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

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


def test_an_unknown_command_is_a_mistake() -> None:
    done = command("inspekt")
    assert done.returncode == 2
    assert "inspekt" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_extra_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(name='typer')\n")
    done = command(env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])})
    assert done.returncode == 2
    assert "pip install 'stateful_gpu_loader[cli]'" in done.stderr
    assert "Traceback" not in done.stderr

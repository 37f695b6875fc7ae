"""The command line as a whole: help, mistakes, and its optional dependency."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import stateful_gpu_loader
from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.cli.app import app
from tests.cli.command import command


def test_shared_options_have_the_same_help() -> None:
    commands: Any = typer.main.get_command(app)
    helps: dict[str, set[str]] = {}
    for one in commands.commands.values():
        for option in one.params:
            if option.name in {"where", "arg", "as_json", "path"}:
                helps.setdefault(option.name, set()).add(option.help)
    assert {name: len(texts) for name, texts in helps.items()} == dict.fromkeys(helps, 1)
    assert set(helps) == {"where", "arg", "as_json", "path"}


def test_without_arguments_it_shows_its_help() -> None:
    done = command()
    assert "Exit status: 0 all is well" in done.stdout + done.stderr


def test_mistakes_have_status_2(tmp_path: Path) -> None:
    unknown = command("inspekt")
    assert unknown.returncode == 2
    assert "inspekt" in unknown.stderr
    # Python itself would exit with 1, which means a difference here.
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


def test_help_shows_every_word_of_every_command() -> None:
    """Rich reads text in brackets as markup and leaves it out."""
    commands: Any = typer.main.get_command(app)
    for name, one in commands.commands.items():
        shown = "".join(command(name, "--help").stdout.split())
        for text in [one.help, *(option.help for option in one.params)]:
            assert "".join(text.split()) in shown, name
    assert "..." not in command("--help").stdout.partition("Commands:")[2], "a summary is cut"
    assert "are [width, height]" in " ".join(commands.commands["preview"].help.split())


def test_the_version() -> None:
    done = command("--version")
    version = f"stateful-gpu-loader {stateful_gpu_loader.__version__}\n"
    assert (done.returncode, done.stdout) == (0, version)


def test_help_imports_no_torch() -> None:
    """torch takes seconds to import."""
    code = (
        "import sys\n"
        "from stateful_gpu_loader.cli import main\n"
        "for name in ([], ['inspect'], ['diff'], ['seek'], ['which'], ['verify'], ['preview'],\n"
        "             ['prepare'], ['bench']):\n"
        "    sys.argv = ['stateful-gpu-loader', *name, '--help']\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as end:\n"
        "        assert not end.code, name\n"
        "sys.exit(f'torch was imported' if 'torch' in sys.modules else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.processes
def test_inspect_imports_no_torchvision(tmp_path: Path) -> None:
    """It takes as long to import as torch."""
    torch.save(StatefulGPULoader([1, 2], seed=1).state_dict(), tmp_path / "state.pt")
    code = (
        "import sys\n"
        "from stateful_gpu_loader.cli.app import app\n"
        f"app(['inspect', {str(tmp_path / 'state.pt')!r}], standalone_mode=False)\n"
        "slow = {'torchvision', 'torch._dynamo', 'torchdata'} & set(sys.modules)\n"
        "sys.exit(f'{slow} imported' if slow else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.processes
def test_a_wrong_path_is_refused_without_torch() -> None:
    code = (
        "import sys\n"
        "from stateful_gpu_loader.cli import main\n"
        "sys.argv = ['stateful-gpu-loader', 'inspect', 'nowhere']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as stop:\n"
        "    sys.exit(10 * ('torch' in sys.modules) + stop.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 2


@pytest.mark.processes
def test_the_package_is_a_command_too() -> None:
    command = [sys.executable, "-m", "stateful_gpu_loader", "inspect", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "Error: there is no file or folder 'nowhere'\n"

"""Errors and exit statuses of the demo's command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from examples.demo import command
from examples.demo.__main__ import main
from stateful_gpu_loader import MissingDependency


@pytest.mark.parametrize("status", [0, 1])
def test_the_exit_status_is_the_demos(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs: list[Path] = []

    def run_demo(output: Path) -> int:
        outputs.append(output)
        return status

    monkeypatch.setattr(command, "run_demo", run_demo)
    assert main(["--output", str(tmp_path)]) == status
    assert outputs == [tmp_path]


@pytest.mark.parametrize("module", ["tqdm", "matplotlib"])
def test_a_missing_package_prints_the_line_that_installs_it(
    module: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["--output", str(tmp_path)]) == 1
    assert "pip install 'stateful_gpu_loader[demo]'" in capsys.readouterr().err


def test_an_error_is_one_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_demo(output: Path) -> int:
        raise MissingDependency("tqdm", needed_for="a test", extra="demo")

    monkeypatch.setattr(command, "run_demo", run_demo)
    assert main([]) == 1
    assert capsys.readouterr().err.startswith("demo: a test needs")


def test_an_output_that_is_a_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    assert main(["--output", str(tmp_path / "taken")]) == 1
    assert "taken" in capsys.readouterr().err

"""The pages that show the command line, executed from beginning to end."""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.prepared_processes import run_script

ROOT = Path(__file__).parent.parent.parent
WALKTHROUGH = ROOT / "docs/tools/walkthrough.md"
REPRODUCING = ROOT / "docs/reproducing.md"
BLOCK = re.compile(r"^```(\w+)(?: title=\"(\S+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)
STARTS = re.compile(r"(python|stateful-gpu-loader) (.*?)((?: (?:2>&1|>|\|\|?|&&) .*)?)")
"""A Python program, its arguments, and the shell's use of its output and status."""
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
INSTALLS = "pip install"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.processes
def test_every_line_of_the_walkthrough_does_what_it_shows(tmp_path: Path) -> None:
    assert _run_page(WALKTHROUGH, tmp_path) >= 14
    assert (tmp_path / "sheet.png").stat().st_size
    assert (tmp_path / "bench.png").stat().st_size


@pytest.mark.processes
def test_an_old_run_is_reproduced_as_its_page_shows(tmp_path: Path) -> None:
    """With the pictures and the training script of the walkthrough."""
    for _, title, content in BLOCK.findall(WALKTHROUGH.read_text()):
        if title:
            (tmp_path / title).write_text(content)
    assert _run_page(REPRODUCING, tmp_path) >= 16
    assert (tmp_path / "batch.png").stat().st_size


def _run_page(page: Path, folder: Path) -> int:
    """Write the files of a page, run its commands and its Python; return the number of commands."""
    count = 0
    for kind, title, content in BLOCK.findall(page.read_text()):
        if title:
            (folder / title).write_text(content)
        elif kind == "python":
            (folder / "block.py").write_text(f"if __name__ == '__main__':\n{_indented(content)}")
            assert _run("python block.py", folder).returncode == 0
        else:
            for command, wanted in COMMAND.findall(content):
                if not command.startswith(INSTALLS):
                    _check(command, wanted, folder)
                    count += 1
    return count


def _check(command: str, wanted: str, folder: Path) -> None:
    done = _run(command, folder)
    printed = f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    assert doctest.OutputChecker().check_output(wanted, done.stdout, OPTIONS), printed
    assert "Traceback" not in done.stderr, printed
    assert done.returncode == 0, printed


def _run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell command; a process with torch imported starts Python programs."""
    starts = STARTS.fullmatch(command)
    if starts is not None:
        program, arguments, rest = starts.groups()
        words = shlex.split(arguments)
        script = folder / words.pop(0) if program == "python" else "stateful_gpu_loader"
        done = run_script(script, *words, folder=folder)
        if not rest:
            return done
        command = f"(cat standard_output.txt; cat standard_error.txt >&2; exit {done.returncode})"
        command += rest
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=600
    )


def _indented(code: str) -> str:
    return "".join(f"    {line}" for line in code.splitlines(keepends=True))

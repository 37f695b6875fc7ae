"""The page that goes the whole way of a newcomer, executed from its beginning to its end."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs/tools/walkthrough.md"
BLOCK = re.compile(r"^```(\w+)(?: title=\"(\S+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
INSTALLS = "pip install"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.processes
def test_every_line_of_the_page_does_what_it_shows(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    assert [kind for kind, _, _ in blocks].count("console") >= 7
    for kind, title, content in blocks:
        if title:
            (tmp_path / title).write_text(content)
        elif kind == "python":
            (tmp_path / "block.py").write_text(f"if __name__ == '__main__':\n{_indented(content)}")
            assert _run("python block.py", tmp_path).returncode == 0
        else:
            for command, wanted in COMMAND.findall(content):
                if not command.startswith(INSTALLS):
                    _check(command, wanted, tmp_path)
    assert (tmp_path / "sheet.png").stat().st_size
    assert (tmp_path / "bench.png").stat().st_size


def _check(command: str, wanted: str, folder: Path) -> None:
    done = _run(command, folder)
    printed = f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    assert doctest.OutputChecker().check_output(wanted, done.stdout, OPTIONS), printed
    assert "Traceback" not in done.stderr, printed
    assert done.returncode == 0, printed


def _run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = [os.path.dirname(sys.executable), os.environ["PATH"]]
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": os.pathsep.join(paths), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def _indented(code: str) -> str:
    return "".join(f"    {line}" for line in code.splitlines(keepends=True))

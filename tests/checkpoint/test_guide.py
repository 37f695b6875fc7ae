"""docs/checkpoints.md: its examples run, and print what it says they print."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "checkpoints.md"


def test_the_guide_runs_and_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"```(python|text)\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) > 10
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    printed = ""
    for language, block in blocks:
        if language == "text":
            assert printed == block
            printed = ""
            continue
        assert not printed, "shown"
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(block, str(GUIDE), "exec"), names)
        printed = output.getvalue()
    assert not printed, "shown"


def test_what_the_guide_links_to_exists() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", GUIDE.read_text()):
        assert (GUIDE.parent / target).exists(), target

"""docs/migrating.md: its code runs, and prints what it says it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.datasets.tar.tar_files import write_photo_tars
from tests.images import write_photo_folder

DOCUMENT = Path(__file__).parent.parent / "docs" / "migrating.md"


def test_the_page_runs_and_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(shown) == DOCUMENT.read_text().count("```python") == 5
    write_photo_folder(tmp_path / "photos", num_classes=2, per_class=8)
    write_photo_tars(tmp_path / "tars")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "migrating"}
    for code, wanted in shown:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(DOCUMENT), "exec"), names)
        assert printed.getvalue() == wanted

"""examples/first_steps.ipynb: its cells run in order and print the stored output."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.documents import ROOT

NOTEBOOK = json.loads((ROOT / "examples" / "first_steps.ipynb").read_text(encoding="utf-8"))


def test_cells_run_and_print_what_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in cells)
    for cell in cells:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
        assert output.getvalue() == "".join(
            line for stored in cell["outputs"] for line in stored["text"]
        )


def test_it_is_a_notebook_of_format_4() -> None:
    """It has the keys that nbformat requires, so that Jupyter can open the file."""
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    for cell in NOTEBOOK["cells"]:
        required = {"cell_type", "id", "metadata", "source"}
        if cell["cell_type"] == "code":
            required |= {"execution_count", "outputs"}
        assert cell.keys() == required
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])

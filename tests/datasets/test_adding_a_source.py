"""docs/adding-a-source.md: its examples run, and its source keeps every promise."""

from __future__ import annotations

import importlib
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader import StatefulGPULoader
from tests.datasets.source_conformance import assert_shards_conform, assert_source_conforms
from tests.documents import write_table
from tests.images import write_photo_folder

DOCUMENT = Path(__file__).parents[2] / "docs" / "adding-a-source.md"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the page's classes, in a module that a spawned worker can import, too."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    classes = [block for block in blocks if "class " in block]
    assert len(classes) == 2
    (tmp_path / "documented_source.py").write_text("\n".join(classes))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(importlib.sys.modules, "documented_source", raising=False)
    return importlib.import_module("documented_source")


def write_photo_table(path: Path, first_label: int = 0) -> Path:
    photographs = write_photo_folder(path.parent / "photos", num_classes=1, per_class=10)
    return write_table(path, photographs, first_label)


@pytest.mark.processes
def test_the_documented_source_conforms(example: Any, tmp_path: Path) -> None:
    path = write_photo_table(tmp_path / "photos.sqlite")
    other = write_photo_table(tmp_path / "other.sqlite", first_label=5)
    make: Callable[[Path], Any] = example.SQLiteSource
    assert_source_conforms(lambda: make(path), changed=lambda: make(other))


def test_the_documented_source_names_a_row_that_was_changed(example: Any, tmp_path: Path) -> None:
    path = write_photo_table(tmp_path / "photos.sqlite")
    source = example.SQLiteSource(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE images SET data = x'00' WHERE rowid = 4")
    connection.close()
    loader = StatefulGPULoader(source)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    with pytest.raises(ValueError, match=r"photos\.sqlite, row 4"):
        next(batches)


@pytest.mark.processes
def test_the_documented_shards_conform(example: Any, tmp_path: Path) -> None:
    paths = []
    for number, num_lines in enumerate([5, 0, 7, 1]):
        path = tmp_path / f"{number}.txt"
        path.write_text("".join(f"line {line} of {number}\n" for line in range(num_lines)))
        paths.append(str(path))
    assert_shards_conform(lambda: example.Lines(paths), changed=lambda: example.Lines(paths[:3]))

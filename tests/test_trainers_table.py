"""docs/trainers.md: each cell of its tables is backed by a test of that name, which exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "trainers.md"
CELL = re.compile(r'\[(exact|refused|not exact)\]\(\.\./(tests/[\w/]+\.py) "(\w+)"\)(?:: .+)?')
NOTHING = "–"  # noqa: RUF001
"""There is nothing to do there, or no adapter is needed."""


def rows() -> list[tuple[str, list[str]]]:
    """The heading of each row's section, and its cells."""
    found, heading, in_table = [], "", False
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line[3:]
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| situation"):
            in_table = True
            assert cells == ["situation", "built in", "with adapter"], heading
        elif not line.startswith("|"):
            in_table = False
        elif in_table and not line.startswith("|---"):
            found.append((heading, cells))
    return found


@cache
def names_of_tests(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


TRAINERS = (
    *("Plain torch", "Tensor and pipeline", "Lightning", "Fabric", "Accelerate"),
    *("Hugging Face Trainer", "Composer", "Ray Train"),
)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_trainer_has_its_table(trainer: str) -> None:
    assert any(heading.startswith(trainer) for heading, _ in rows())


def test_every_cell_is_backed_by_a_test() -> None:
    """What is not exact says why."""
    faults = []
    for heading, cells in rows():
        if len(cells) != 3:
            faults.append(f"{heading}: {cells} are not three cells")
            continue
        if cells[1:] == [NOTHING, NOTHING]:
            faults.append(f"{heading}: nothing is said of {cells[0]!r}")
        for cell in cells[1:]:
            match = CELL.fullmatch(cell)
            if match is None:
                faults += [f"{heading}: {cell!r}"] if cell != NOTHING else []
                continue
            verdict, path, test = match.groups()
            if not (ROOT / path).is_file() or test not in names_of_tests(ROOT / path):
                faults.append(f"{heading}: there is no {path}::{test}")
            if verdict == "not exact" and "): " not in cell:
                faults.append(f"{heading}: {cells[0]!r} is not exact, for no reason")
    assert not faults, "\n".join(faults)

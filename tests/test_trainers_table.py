"""docs/trainers/: each cell of the tables gives the number of an existing test that shows it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from stateful_gpu_loader import MissingDependency

ROOT = Path(__file__).parent.parent
NO_TABLE = {"index", "composer"}
"""Pages without a table of situations. Composer cannot be installed, and its page says so."""
PAGES = [
    page for page in sorted((ROOT / "docs" / "trainers").glob("*.md")) if page.stem not in NO_TABLE
]
CELL = re.compile(r"(exact|refused|not exact) \((\d+)\)(: .+)?")
TEST = re.compile(r"^(\d+)\. \[`(\w+)`\]\(\.\./\.\./(tests/[\w/]+\.py)\)$", re.MULTILINE)
NOTHING = "–"  # noqa: RUF001
"""Cell for a situation without anything to do, or without need of an adapter."""


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of each row of the table of situations."""
    lines = text.split("\n## Situations\n")[1].split("\n## Tests\n")[0].splitlines()
    table = [line.strip("|").strip() for line in lines if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.split(" | ")] for line in table]
    assert head == ["situation", "built in", "with adapter"]
    return rows


@cache
def names_of_tests(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_trainer_has_its_page() -> None:
    names = {page.stem for page in PAGES}
    assert names >= {"plain-torch", "lightning", "fabric", "accelerate", "transformers"}
    assert names >= {"device-mesh", "ray"}


def test_the_import_of_composers_callback_names_its_page() -> None:
    with pytest.raises(MissingDependency, match=r"docs/trainers/composer\.md"):
        from stateful_gpu_loader.integrations.composer import LoaderStateCallback  # noqa: F401
    assert (ROOT / "docs" / "trainers" / "composer.md").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_cell_is_backed_by_a_test(page: Path) -> None:
    """Cells that are not exact say why."""
    text = page.read_text(encoding="utf-8")
    faults, used = [], set()
    for cells in rows_of(text):
        if len(cells) != 3 or cells[1:] == [NOTHING, NOTHING]:
            faults.append(f"{cells} says nothing, or is not three cells")
        for cell in cells[1:]:
            match = CELL.fullmatch(cell)
            if match is None:
                faults += [f"{cells[0]!r}: {cell!r}"] if cell != NOTHING else []
                continue
            used.add(int(match[2]))
            if match[1] == "not exact" and match[3] is None:
                faults.append(f"{cells[0]!r} is not exact, for no reason")
    tests = TEST.findall(text.split("\n## Tests\n")[1])
    assert [int(number) for number, _, _ in tests] == [*range(1, len(tests) + 1)]
    assert used == {int(number) for number, _, _ in tests}, "numbers without a test, or unused"
    for _, test, path in tests:
        if not (ROOT / path).is_file() or test not in names_of_tests(ROOT / path):
            faults.append(f"there is no {path}::{test}")
    assert not faults, "\n".join(faults)

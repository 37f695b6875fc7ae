"""Marked paths exist, and the commands know every mark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.marks import COSTLY, MARKED, ROOT, holds_no_test

PROJECT = ROOT.parent


def test_marked_places_exist() -> None:
    for place in MARKED:
        assert (ROOT / place).exists() or (PROJECT / place).exists(), place
    for test in COSTLY:
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(), test


def test_make_runs_every_mark() -> None:
    """``make test-all`` would leave out the tests of a mark that the Makefile does not know."""
    listed = re.search(r"^MARKS := (.+)$", _text("Makefile"), re.MULTILINE)
    block = re.search(r"^markers = \[\n(.*?)^\]", _text("pyproject.toml"), re.MULTILINE | re.DOTALL)
    assert listed is not None
    assert block is not None
    known = re.findall(r'"(\w+):', block[1])
    assert sorted([*listed[1].split(), "fast"]) == sorted(known)
    assert set(MARKED.values()) <= set(known)


def _text(name: str) -> str:
    return Path(PROJECT, name).read_text(encoding="utf-8")


LIGHTNING = PROJECT / "stateful_gpu_loader/integrations/lightning/callback.py"
FAST = "fast or not (processes or trainers)"


@pytest.mark.parametrize(
    ("path", "expression", "is_left_out"),
    [
        (ROOT / "images.py", "", True),
        (ROOT / "torchvisions_words.py", "", False),  # it has a doctest
        (Path(__file__), "", False),
        (LIGHTNING, FAST, True),
        (LIGHTNING, "trainers and not fast", False),
        (LIGHTNING, "(processes or ray) and not (fast or trainers)", True),
        (ROOT / "integrations/lightning", "processes and not (fast or trainers)", True),
        (PROJECT / "stateful_gpu_loader/integrations/dcp.py", FAST, False),
        (ROOT / "loader/test_faults.py", "(processes or ray) and not fast", False),
        (ROOT / "loader/test_faults.py", "ray", True),
        (ROOT / "loader/test_faults.py", "not ray", False),
    ],
)
def test_files_without_a_selected_test_are_left_out(
    path: Path, expression: str, is_left_out: bool
) -> None:
    assert holds_no_test(path, expression) is is_left_out

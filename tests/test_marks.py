"""Marked paths exist, and the commands know every mark."""

from __future__ import annotations

import re
from pathlib import Path

from tests.marks import COSTLY, MARKED, ROOT, holds_no_fast_test, holds_no_test

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


def test_files_without_a_test_are_left_out() -> None:
    assert holds_no_test(ROOT / "images.py")
    assert not holds_no_test(ROOT / "torchvisions_words.py"), "it has a doctest"
    assert not holds_no_test(Path(__file__))
    assert holds_no_fast_test(PROJECT / "stateful_gpu_loader/integrations/lightning/callback.py")
    assert not holds_no_fast_test(PROJECT / "stateful_gpu_loader/integrations/dcp.py")

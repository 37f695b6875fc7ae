"""The README's example prints what it shows, and the documents' links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from tests.images import write_photo_folder

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)# ]*)(?:#([^) ]+))?(?: \"[^\"]*\")?\)")


def test_the_example_prints_what_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    code, wanted = found.groups()
    write_photo_folder(tmp_path / "photos", num_classes=2, per_class=8)
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(README), "exec"), {})
    assert printed.getvalue() == wanted


def test_what_was_drawn_is_what_the_document_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "augmentation.md").read_text()
    found = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert found is not None
    code, wanted = found.groups()
    write_photo_folder(tmp_path / "photos", num_classes=2, per_class=8)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "augmentation.md", "exec"), {})
    assert capsys.readouterr().out == wanted


def test_the_readme_is_read_in_one_sitting() -> None:
    """At most 200 lines, and no table of benchmarks but the six rows that are drawn."""
    text = README.read_text()
    assert len(text.splitlines()) <= 200
    tables = re.findall(r"\n\|[^\n]*\n\|[ :|-]+\n", text)
    assert len(tables) == 2, "the six rows, and the list of documents"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_a_document_links_to_exists(document: Path) -> None:
    for target, anchor in LINK.findall(document.read_text()):
        path = document.parent / target if target else document
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path), f"{target}#{anchor}"


def anchors(document: Path) -> set[str]:
    """The names that a web page of the document gives its headings."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}

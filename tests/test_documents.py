"""The code of every page runs and prints what the page shows, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stateful_gpu_loader import __version__
from tests.documents import PAGES, ROOT, blocks_of, name_of, run_page

README = ROOT / "README.md"
LINK = re.compile(r"\]\((?!https?:)([^)# ]*)(?:#([^) ]+))?(?: \"[^\"]*\")?\)")


ELSEWHERE = {
    "docs/dali.md": "tests/integrations/in_dynamic_mode/checkpoints.py",
    "docs/reproducing.md": "tests/cli/test_walkthrough.py",
    "docs/tools/walkthrough.md": "tests/cli/test_walkthrough.py",
}
"""Pages whose code needs its own processes (beside DALI nothing is forked), and who runs it."""

MARKS = {
    "docs/trainers/accelerate.md": pytest.mark.trainers,
    "docs/trainers/fabric.md": pytest.mark.trainers,
    "docs/trainers/lightning.md": pytest.mark.trainers,
}
"""Pages that import a large package."""

NOT_RUN = {
    "docs/adding-a-source.md": 1,
    "docs/cluster.md": 2,
    "docs/coming-from/others.md": 1,
    "docs/gpu.md": 1,
    "docs/trainers/composer.md": 1,
    "docs/trainers/device-mesh.md": 1,
    "docs/trainers/transformers.md": 1,
}
"""Number of blocks that each page may leave unrun."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name_of(page), marks=MARKS.get(name_of(page), ()))
        for page in PAGES
        if blocks_of(page) and name_of(page) not in ELSEWHERE
    ],
)
def test_a_page_runs_and_prints_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page, tmp_path)


def test_pages_that_other_tests_run_are_run_there() -> None:
    for page, test in ELSEWHERE.items():
        assert f'ROOT / "{page}"' in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_of_python_is_one_that_can_be_run(page: Path) -> None:
    """Few blocks are not run, and these are valid Python too."""
    blocks = blocks_of(page)
    assert page.read_text(encoding="utf-8").count("```py") == len(blocks)
    not_run = [block for block in blocks if block.why_not_run is not None]
    assert len(not_run) == NOT_RUN.get(name_of(page), 0)
    for block in not_run:
        compile(block.code, name_of(page), "exec")


def test_the_readme_is_read_in_one_sitting() -> None:
    """It has at most 120 lines, and only the six rows of benchmarks that are drawn."""
    text = README.read_text()
    assert len(text.splitlines()) <= 120
    tables = re.findall(r"\n\|[^\n]*\n\|[ :|-]+\n", text)
    assert len(tables) == 2, "the six rows, and the list of documents"


def test_citation_and_license_are_those_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in citation
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'license = "BSD-3-Clause"' in project
    assert "\nlicense: BSD-3-Clause\n" in citation
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").startswith("BSD 3-Clause License\n")


@pytest.mark.parametrize("document", PAGES, ids=name_of)
def test_what_a_document_links_to_exists(document: Path) -> None:
    for target, anchor in LINK.findall(document.read_text()):
        path = document.parent / target if target else document
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path), f"{target}#{anchor}"


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings and API objects on its web page."""
    text = document.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    objects = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    return {heading.replace(" ", "-") for heading in plain} | set(objects)

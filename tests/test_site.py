"""The site names every page, and its API pages name every public name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stateful_gpu_loader
from stateful_gpu_loader import transforms

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
OF_THE_ROOT = {"index.md": "README.md", "changelog.md": "CHANGELOG.md"} | {
    "contributing.md": "CONTRIBUTING.md"
}
"""Pages that ``scripts/docs_site.py`` makes from files of the root."""


def test_the_navigation_names_every_page_once() -> None:
    """`make docs` refuses a missing page, but does not notice a page without a link."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    named = re.findall(r"[\w/.-]+\.md", navigation)
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert sorted(named) == sorted(pages | set(OF_THE_ROOT))
    assert all((ROOT / name).is_file() for name in OF_THE_ROOT.values())


@pytest.mark.parametrize("module", [stateful_gpu_loader, transforms], ids=lambda it: it.__name__)
def test_the_api_names_every_public_name_once(module: object) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md"))
    shown = re.findall(rf"^::: {re.escape(module.__name__)}\.(\w+)$", text, re.MULTILINE)
    assert sorted(shown) == sorted(set(module.__all__) - {"transforms"})

"""The site names every page, and its pages on the API name every public name."""

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
"""Pages that are made from files of the root, by ``scripts/docs_site.py``."""


def test_the_navigation_names_every_page_once() -> None:
    """`make docs` refuses a page that is not there; a page that is not named would not be found."""
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

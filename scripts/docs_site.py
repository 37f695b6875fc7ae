"""A MkDocs hook that adds files outside ``docs/`` to the site if pages link to them.

The README is the first page, and the root's other Markdown files are pages. Any other linked file
becomes a page that shows its text. So links have the form that a forge needs, relative to their
file, and the site still works offline and on its own.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
FROM_THE_NETWORK = re.compile(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"?https?:[^ >]+")
IMAGE = re.compile(r"<img [^>]*src=\"([^\"]+)\"[^>]*>")
LINK = re.compile(r"(?<=\]\()(?!\w+:|/|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the root's pages, and a page for each linked file of the repository."""
    for name, uri in ROOT_PAGES.items():
        files.append(File.generated(config, uri, content=_as_if_in_docs((ROOT / name).read_text())))
    pages = [file for file in files if file.src_uri.endswith(".md")]
    linked = {
        path
        for file in pages
        for target in LINK.findall(file.content_string)
        if (path := _path_outside(file.src_uri, target)) and path not in ROOT_PAGES
    }
    for path in sorted(linked):
        if (ROOT / path).exists():  # otherwise MkDocs complains about the unchanged link
            files.append(File.generated(config, _uri_of(path), content=_shown(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Redirect links that lead out of ``docs/`` to those pages."""
    folder = posixpath.dirname(page.file.src_uri)

    def on_the_site(match: re.Match[str]) -> str:
        path = _path_outside(page.file.src_uri, match[1])
        if path is None or not (ROOT / path).exists():
            return match[1]
        return posixpath.relpath(_uri_of(path), folder)

    return LINK.sub(on_the_site, markdown)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let a click on a picture open it in its full size."""
    return IMAGE.sub(r'<a href="\1">\g<0></a>', html)


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Raise if a page needs the network."""
    if found := FROM_THE_NETWORK.search(output):
        raise PluginError(
            f"{page.file.src_uri} loads {found[0]!r} from the network, but the site must work "
            "offline. Remedy: leave out the setting or plugin of mkdocs.yml that adds it"
        )
    return output


def _as_if_in_docs(markdown: str) -> str:
    """Return a page of the root with its links as in ``docs/``."""
    return LINK.sub(lambda match: posixpath.relpath(match[1], "docs"), markdown)


def _path_outside(uri: str, target: str) -> str | None:
    """Return the repository path that a page's link names, or None for one inside ``docs/``."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), target))
    return None if path.startswith(("docs/", "..")) else path


def _uri_of(path: str) -> str:
    return ROOT_PAGES.get(path, f"source/{path}.md")


def _shown(path: str) -> str:
    """Return a page with a file's text, or with the names of a folder's files."""
    head = f"---\nsearch: {{exclude: true}}\nhide: [navigation, toc]\n---\n\n# {path}\n\n"
    if (ROOT / path).is_dir():
        names = sorted(entry.name for entry in (ROOT / path).iterdir() if entry.is_file())
        return head + "".join(f"- `{name}`\n" for name in names)
    language = {".py": "python", ".json": "json", ".toml": "toml"}.get(Path(path).suffix, "text")
    return f"{head}``````{language}\n{(ROOT / path).read_text(encoding='utf-8')}\n``````\n"

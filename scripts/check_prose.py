"""Check the English of docstrings, comments and Markdown: ``python scripts/check_prose.py PATHS``.

It refuses the patterns that readers stumble over most often: docstrings that begin with a
preposition or a question word, words that have a plainer equivalent, and sentences that are too
long. What it accepts may still be hard to read.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_WORDS = 35
FIRST_WORDS = frozenset({"of", "what", "who", "as", "where", "behind"})
"""Words that no docstring may begin with."""
WORDS = {
    "anew": "again",
    "behind": "after",
    "mended": "fixed",
    "nobody": "no one, nothing",
    "told": "passed, given, returned",
    "of one's own": "private, separate",
    "whoever": "if you",
}
"""Words that are refused, with what to write instead."""

_WORD = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])[)\"*_]*\s+(?=[\"'`*_(\[]*[A-Z0-9])")
_CODE = re.compile(r"``.*?``|`[^`]*`", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_ENTRY = re.compile(r"^\s*(?:[-*+]|\d+\.|\*{0,2}\w+(?: \([^)]*\))?:)\s+")
"""The beginning of a list item, or of an entry under ``Args:``."""
_FENCE = re.compile(r"^\s*(```|~~~)")


@dataclass(frozen=True)
class Paragraph:
    """Text without code, and the line on which it begins."""

    line: int
    text: str


def main(paths: list[str]) -> int:
    """Print every fault in the files under ``paths``; return 1 if there is any, else 0."""
    num_faults = 0
    for path in sorted(_files(paths)):
        text = path.read_text(encoding="utf-8")
        for line, fault in sorted(_faults(path, text)):
            print(f"{path}:{line}: {fault}")
            num_faults += 1
    return 1 if num_faults else 0


def _files(paths: list[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        if path.is_file():
            yield path
        else:
            yield from (found for end in ("py", "md") for found in path.rglob(f"*.{end}"))


def _faults(path: Path, text: str) -> Iterator[tuple[int, str]]:
    if path.suffix == ".md":
        paragraphs = list(_paragraphs(1, text.splitlines()))
    else:
        docstrings = list(_docstrings(text))
        for line, docstring in docstrings:
            first = re.match(r"\W*(\w+)", docstring)
            if first and first[1].lower() in FIRST_WORDS:
                yield line, f"a docstring begins with {first[1]!r}: name the thing, or a verb"
        blocks = docstrings + list(_comments(text))
        paragraphs = [p for line, block in blocks for p in _paragraphs(line, block.splitlines())]
    for paragraph in paragraphs:
        for word in _WORD.findall(paragraph.text):
            yield paragraph.line, f"{word!r}: write {WORDS[word.lower()]}"
        for sentence in _SENTENCE_END.split(paragraph.text):
            num_words = len(sentence.split())
            if num_words > MAX_WORDS:
                start = " ".join(sentence.split()[:8])
                yield paragraph.line, f"a sentence of {num_words} words: {start} ..."


def _docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Strings that are statements: of modules, classes and functions, and after values."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                yield node.lineno, docstring


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Comments; those on successive lines of their own are one."""
    line, block = 0, ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        comment = token.string.lstrip("#:! ")
        alone = not token.line[: token.start[1]].strip()
        if block and alone and token.start[0] == line + block.count("\n") + 1:
            block += f"\n{comment}"
        else:
            if block:
                yield line, block
            line, block = token.start[0], comment
    if block:
        yield line, block


def _paragraphs(line: int, lines: list[str]) -> Iterator[Paragraph]:
    """Split on blank lines, list items, table rows and headings; code is left out."""
    start, kept = line, ""
    in_fence = in_example = False
    for number, content in enumerate([*lines, ""], line):
        if _FENCE.match(content):
            in_fence = not in_fence
            content = ""
        in_example = bool(content.strip()) and (in_example or content.lstrip().startswith(">>>"))
        if in_fence or in_example or content.lstrip().startswith(("<", "..")):
            content = ""
        alone = content.lstrip().startswith(("|", "#"))
        if not content.strip() or alone or _ENTRY.match(content):
            if kept.strip():
                yield Paragraph(start, _without_code(kept))
            start, kept = number, ""
        if alone:
            for cell in content.strip("| #").split("|"):
                yield Paragraph(number, _without_code(cell))
            start = number + 1
        else:
            kept += _ENTRY.sub("", content) + "\n"
    if kept.strip():
        yield Paragraph(start, _without_code(kept))


def _without_code(text: str) -> str:
    return _LINK.sub(r"\1", _CODE.sub("CODE", text))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

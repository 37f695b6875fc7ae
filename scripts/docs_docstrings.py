"""A Griffe extension that converts docstrings to Markdown.

Docstrings write doctests as plain paragraphs, and references in reStructuredText. A doctest becomes
a code block, and a reference becomes the name as code.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

REFERENCE = re.compile(r":(?:class|meth|func|attr|mod|data):`~?([^`]+)`")
DOCTEST = re.compile(r"^( *)>>> .*\n(?:\1\S.*(?:\n|\Z)|\1 .*(?:\n|\Z))*", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites the docstring of every object."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring; Griffe calls this once an object is known."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """Return a docstring with its doctests and references as Markdown."""
    fenced = DOCTEST.sub(lambda found: _fenced(found[0], found[1]), docstring + "\n")
    return REFERENCE.sub(r"`\1`", fenced)


def _fenced(doctest: str, indent: str) -> str:
    return f"{indent}```pycon\n{doctest.rstrip()}\n{indent}```\n"

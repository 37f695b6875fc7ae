"""Output of the commands: text for a person, JSON for a program, complaints and bars on stderr."""

from __future__ import annotations

import json
import sys
import unicodedata
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON for a program instead of text.")
]


def console() -> Console:
    """Return the console of stdout; it wraps nothing and colours nothing where none is seen."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def progress(*columns: ProgressColumn) -> Progress:
    """Return a progress bar on stderr, which vanishes when it is done; none is seen in a file."""
    errors = Console(stderr=True)
    return Progress(
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
        *columns,
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )


_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Categories of characters that move the cursor, colour, hide or reverse other text."""


def visible(text: str) -> str:
    r"""Return a text from a file with escapes for characters that a terminal would obey.

    >>> visible("a\x1b[2Jb\n\u202e")
    'a\\x1b[2Jb\\n\\u202e'
    """
    if text.isprintable():
        return text
    return "".join(
        repr(character)[1:-1] if unicodedata.category(character) in _INVISIBLE else character
        for character in text
    )


def print_json(value: Any) -> None:
    """Print a value as JSON, indented, on stdout."""
    print(json.dumps(value, indent=2))


def complain(message: str) -> None:
    """Print what went wrong on stderr."""
    _print_lines(f"Error: {message}")


def note(message: str) -> None:
    """Print on stderr what somebody should know about the answer on stdout."""
    _print_lines(f"Note: {message}")


def _print_lines(message: str) -> None:
    print("\n".join(map(visible, message.split("\n"))), file=sys.stderr)

"""Output of the commands: text or JSON on stdout, errors, notes and progress bars on stderr."""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateful_gpu_loader.errors import LoaderError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

_WIDTH_OF_FILES = 10_000
"""Columns of a table in a file or pipe."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def console() -> Console:
    """Return the console of stdout; without a terminal it neither wraps nor colours text."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False)
    width = None if "COLUMNS" in os.environ else _WIDTH_OF_FILES
    return Console(highlight=False, soft_wrap=True, width=width)


def progress(*columns: ProgressColumn) -> Progress:
    """Return a progress bar on stderr; it disappears at the end and is not written to files."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    errors = Console(stderr=True)
    return Progress(
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
        *columns,
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )


_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories of characters that move the cursor, or colour, hide or reverse text."""


def visible(text: str) -> str:
    r"""Return a text from a file, with escapes for characters that would control a terminal.

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


def check_output(path: Path) -> None:
    """Create the folder of an output file, so that a wrong path fails early.

    Raises:
        LoaderError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LoaderError(f"{str(path)!r} cannot be written: {said(error)}") from error
    if path.is_dir():
        raise LoaderError(f"{str(path)!r} is a folder. Remedy: give the path of a file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise LoaderError(f"{str(path)!r} cannot be written: permission denied")


def said(error: Exception) -> str:
    """Return the message of an error; an OSError with a file gets no errno.

    >>> said(FileNotFoundError(2, "No such file or directory", "a.png"))
    "'a.png': No such file or directory"
    """
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fspath(error.filename)!r}: {error.strerror}"
    return str(error)


def complain(message: str) -> None:
    """Print an error on stderr."""
    _print_lines(f"Error: {message}")


def note(message: str) -> None:
    """Print a note about the answer on stderr."""
    _print_lines(f"Note: {message}")


def _print_lines(message: str) -> None:
    print("\n".join(map(visible, message.split("\n"))), file=sys.stderr)

"""What commands print: text for a person, JSON for a program, complaints on stderr."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON for a program instead of text.")
]


def console() -> Console:
    """Return the console of stdout; it wraps nothing and colours nothing where none is seen."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def print_json(value: Any) -> None:
    """Print a value as JSON, indented, on stdout."""
    print(json.dumps(value, indent=2))


def complain(message: str) -> None:
    """Print what went wrong on stderr."""
    print(f"Error: {message}", file=sys.stderr)


def note(message: str) -> None:
    """Print on stderr what somebody should know about the answer on stdout."""
    print(f"Note: {message}", file=sys.stderr)

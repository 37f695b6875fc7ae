"""Runs a measurement in its own Python process, except in a smoke run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from benchmarks.harness import in_fresh_process

ROOT = Path(__file__).parent.parent
"""Folder in which processes start, so that they import this checkout, installed or not."""

_Result = TypeVar("_Result")


def run_apart(is_quick: bool, function: Callable[..., _Result], /, *arguments: object) -> _Result:
    """Run the function in a new process; a smoke run stays in this one to save time.

    >>> run_apart(True, max, 3, 7)
    7
    """
    if is_quick:
        return function(*arguments)
    return in_fresh_process(function, *arguments)

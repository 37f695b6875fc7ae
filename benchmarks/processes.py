"""Where a measurement runs: in a Python process of its own, but for a smoke run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from benchmarks.harness import in_fresh_process

ROOT = Path(__file__).parent.parent
"""Where a process begins whose modules are those of this checkout, installed or not."""

_Result = TypeVar("_Result")


def run_apart(is_quick: bool, function: Callable[..., _Result], /, *arguments: object) -> _Result:
    """What the function returns; a smoke run stays here, as it has no time for many starts.

    >>> run_apart(True, max, 3, 7)
    7
    """
    if is_quick:
        return function(*arguments)
    return in_fresh_process(function, *arguments)

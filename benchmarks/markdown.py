"""Tables as Markdown, and common parts of several sections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Content = dict[str, Any]
"""Result of :func:`benchmarks.results.read_results`."""


def as_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with the first column left-aligned and the others right-aligned.

    >>> print(as_table(["", "images/s"], [["ours", "7"]]))
    |  | images/s |
    | --- | ---: |
    | ours | 7 |
    """
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def aims_table(content: Content) -> str:
    """Return the table of aims and values reached."""
    rows = [
        [aim["what"], aim["aim"], aim["reached"], "yes" if aim["met"] else "**no**"]
        for aim in content["aims"]
    ]
    return as_table(["aim", "", "reached", "met"], rows)


def medians_of(content: Content) -> dict[str, float]:
    return {found["name"]: found["median"] for found in content["measurements"]}


def comparisons_of(content: Content, of: str) -> list[Any]:
    return [found for found in content["comparisons"] if found["of"] == of]


def times_of(content: Content, of: str, to: str) -> str:
    """Return the ratio of two measurements with its interval; empty if they were not compared."""
    for found in comparisons_of(content, of):
        if found["to"] == to:
            interval = f"[{found['ratio']['low']:.2f}, {found['ratio']['high']:.2f}]"
            return f"{found['ratio']['median']:.2f}x {interval}"
    return ""


def short(value: float) -> str:
    """Format a number with three significant digits.

    >>> short(1234.5), short(0.12345)
    ('1,234', '0.123')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def power_of_ten(n: int) -> str:
    """Return a power of ten with its exponent.

    >>> power_of_ten(1000)
    '10<sup>3</sup>'
    """
    return f"10<sup>{len(str(n)) - 1}</sup>"


def cell(found: dict[str, float], name: str, unit: str = "") -> str:
    """Return a median and its unit; empty if it was not measured."""
    return f"{short(found[name])} {unit}".strip() if name in found else ""

"""The command ``diff``: in what the states of two files differ, and how far apart they stand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from stateful_gpu_loader.cli.output import JsonOption, console, print_json, visible
from stateful_gpu_loader.cli.target import WhereOption
from stateful_gpu_loader.samplers.choice import order_in_words
from stateful_gpu_loader.tools.compare_states import (
    PLACE,
    Comparison,
    Difference,
    Pair,
    compare_files,
)


def diff(
    first: Annotated[
        Path,
        typer.Argument(metavar="A", help="A file or folder with a state, as inspect takes it."),
    ],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    where: WhereOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say in what two states differ, how far apart they are, and whether a loader as in A takes B.

    Several states are compared with those at the same place of the other file. Exit status: 0 the
    same loader at the same place, 1 something differs, 2 there is no state or it is damaged.
    """
    pairs = compare_files(first, second, where)
    if as_json:
        print_json([_plain(pair) for pair in pairs])
    else:
        for pair in pairs:
            for line in _lines(pair, first, second):
                console().print(Text(visible(line)))
    if not all(pair.comparison and pair.comparison.is_same for pair in pairs):
        raise typer.Exit(1)


def _plain(pair: Pair) -> dict[str, Any]:
    found = {"where": pair.where, "in_first": bool(pair.first), "in_second": bool(pair.second)}
    return {**found, "comparison": pair.comparison and pair.comparison.to_dict()}


def _lines(pair: Pair, first: Path, second: Path) -> Iterator[str]:
    if pair.where:
        yield f"{pair.where}:"
    if pair.comparison is None:
        yield f"  only {first if pair.second is None else second} has a state there"
        return
    for each in pair.comparison.differences:
        meaning = f" ({each.meaning})" if each.meaning else ""
        yield f"  {each.field}: {_said(each, each.first)} -> {_said(each, each.second)}{meaning}"
    yield f"  {_verdict(pair.comparison)}"


def _verdict(found: Comparison) -> str:
    if found.resumes is None:
        place = "the same place" if found.same_place else "different places"
        return f"{place}; whether it is the same loader is unknown, a state does not describe it"
    if not found.resumes:
        names = f"accept={{{', '.join(map(repr, found.accept))}}}"
        if not found.accept_is_enough:
            return "a loader as in A refuses B, whatever accept= names"
        return f"a loader as in A refuses B; with {names} it takes the fingerprint"
    if found.is_same:
        return "the same loader at the same place"
    if not found.same_identity:
        return "a loader as in A takes B only with seed=None, or with accept={'seed'}"
    return f"the same loader; a loader as in A goes on from B, which is {_apart(found)}"


def _apart(found: Comparison) -> str:
    if found.same_place:
        return "at the same place"
    if found.samples_apart is None and found.batches_apart is None:
        return "elsewhere, how far is unknown"
    apart = {"samples": found.samples_apart, "batches": found.batches_apart}
    counted = [f"{abs(n)} {unit}" for unit, n in apart.items() if n is not None]
    numbers = [n for n in apart.values() if n is not None]
    if not any(numbers):
        return "as far on; what differs of the place is named above"
    return f"{' or '.join(counted)} {'ahead' if max(numbers) > 0 else 'behind'}"


def _said(difference: Difference, value: Any) -> str:
    if value is not None:
        return order_in_words(value) if difference.field == "order" else str(value)
    if difference.field == "on_bad_sample":
        return "raise"
    return "nothing" if difference.kind == PLACE else "unknown"

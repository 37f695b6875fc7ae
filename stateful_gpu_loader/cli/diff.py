"""``diff``: how two saved states of a loader differ."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from stateful_gpu_loader.cli.inspect import PathArgument
from stateful_gpu_loader.cli.output import JsonOption, console, print_json
from stateful_gpu_loader.tools.compare_states import StateComparison, compare_states
from stateful_gpu_loader.tools.state_files import FoundState, NoState, find_states

WhereOption = Annotated[
    str | None,
    typer.Option(
        help="Which state, if a checkpoint holds several: the place that inspect shows for it."
    ),
]


def diff(
    first: PathArgument, second: PathArgument, where: WhereOption = None, json: JsonOption = False
) -> None:
    """Show what differs between the loaders' states of two checkpoints.

    Also whether a loader of the one resumes from the other, and how far they are apart. The exit
    status is 0 if both stand at the same place of the same stream, and 1 if not.
    """
    compared = {
        name: compare_states(one.state, other.state)
        for name, (one, other) in _pairs(find_states(first), find_states(second), where).items()
    }
    if json:
        print_json({name: _plain(found) for name, found in compared.items()})
    else:
        for name, found in compared.items():
            _show(name, found)
    raise typer.Exit(not all(found.is_same for found in compared.values()))


def _pairs(
    first: list[FoundState], second: list[FoundState], where: str | None
) -> dict[str, tuple[FoundState, FoundState]]:
    """The states of both checkpoints that belong together: those at the same place."""
    places = [{one.where: one for one in found} for found in (first, second)]
    if where is None and len(first) == len(second) == 1:
        return {first[0].where: (first[0], second[0])}
    shared = [name for name in places[0] if name in places[1] and where in (None, name)]
    alone = set(places[0]) ^ set(places[1]) if where is None else set()
    if not shared or alone:
        lists = " and ".join(", ".join(map(repr, each)) for each in places)
        raise NoState(
            f"the states of the two checkpoints do not belong together by their places: {lists}. "
            "Remedy: choose one that is in both with --where"
        )
    return {name: (places[0][name], places[1][name]) for name in shared}


def _plain(found: StateComparison) -> dict[str, Any]:
    return {
        **asdict(found),
        "differences": [
            {**asdict(one), "first": _brief(one.first), "second": _brief(one.second)}
            for one in found.differences
        ],
        "is_same": found.is_same,
        "resumes": found.resumes,
    }


def _show(name: str, found: StateComparison) -> None:
    out = console()
    if name:
        out.print(f"[bold]{name}[/bold]")
    if found.is_same:
        out.print("Both resume the same stream at the same place.")
        return
    table = Table("field", "first", "second", "", box=None, padding=(0, 2, 0, 0))
    for one in found.differences:
        values = [str(_brief(value)).replace("[", "\\[") for value in (one.first, one.second)]
        table.add_row(one.field, *values, "refused" if one.is_refused else "")
    out.print(table)
    out.print(_verdict(found))


def _verdict(found: StateComparison) -> str:
    if not found.resumes:
        accept = ", ".join(map(repr, found.refused))
        if "length" in found.refused:
            return (
                "A loader of the one refuses the other: they are of datasets of different lengths."
            )
        return (
            "A loader of the one refuses the other, unless the change is meant: "
            f"load_state_dict(state, accept={{{accept}}})."
        )
    if found.samples_between is None and found.steps_between is None:
        return "A loader of the one resumes from the other. How far they are apart is not known."
    apart = [
        f"{abs(number):,} {unit}"
        for number, unit in ((found.samples_between, "samples"), (found.steps_between, "steps"))
        if number is not None
    ]
    is_later = (found.samples_between or found.steps_between or 0) >= 0
    order = "the second is later" if is_later else "the second is earlier"
    return f"A loader of the one resumes from the other; {order}, by {' or '.join(apart)}."


def _brief(value: Any) -> Any:
    """A value as it is if it is plain, else its text, which may be long."""
    if isinstance(value, str | int | float | bool | None):
        return value
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."

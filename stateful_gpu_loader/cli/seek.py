"""The command ``seek``: a copy of a state file in which the loader goes on at another place."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from stateful_gpu_loader.cli.output import JsonOption, console, print_json
from stateful_gpu_loader.tools.seek import seek_file

StatesArgument = Annotated[
    Path, typer.Argument(metavar="PATH", help="A file or folder with the state of a loader.")
]
WhereOption = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="WHERE",
        help="Which of several loaders in PATH: the keys that lead to its state, joined by dots.",
    ),
]


def seek(
    path: StatesArgument,
    epoch: Annotated[int, typer.Option(help="Epoch to go to, counted from 0.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The new file; PATH stays as it is.")],
    position: Annotated[
        int | None, typer.Option(help="Position in the epoch's order, over all ranks, from 0.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="Samples of the epoch that all ranks have delivered by then.")
    ] = None,
    percent: Annotated[
        float | None,
        typer.Option(help="Share of the epoch, 0 to 100, rounded down to where a batch begins."),
    ] = None,
    where: WhereOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a copy of a state file in which the loader goes on at another place of its stream.

    The loader then delivers from there on what an uninterrupted run would have delivered. Give
    exactly one of --position, --samples and --percent.
    """
    moved = seek_file(
        path,
        out,
        epoch=epoch,
        position=position,
        samples=samples,
        percent=percent,
        where=where,
    )
    if as_json:
        print_json([asdict(each) for each in moved])
        return
    for each in moved:
        named = f" {each.where}" if each.where else ""
        console().print(f"{out}{named}: epoch {each.epoch}, position {each.position}", markup=False)

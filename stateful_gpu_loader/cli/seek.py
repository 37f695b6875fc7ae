"""The command ``seek``: a copy of a state file in which the loader goes on at another place."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from stateful_gpu_loader.cli.output import JsonOption, console, print_json, visible
from stateful_gpu_loader.cli.target import StatesArgument, WhereOption
from stateful_gpu_loader.tools.seek import seek_file


def seek(
    path: StatesArgument,
    epoch: Annotated[
        int, typer.Option(help="Epoch to go to, counted from 0: 2 is the third pass over the data.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The new file; PATH stays as it is.")],
    position: Annotated[
        int | None,
        typer.Option(
            help="Place in the epoch, in samples of all ranks together, counted from 0. Example: "
            "with 4 ranks and batches of 32 samples, 1280 is where step 10 begins (10 x 4 x 32)."
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            help="Number of samples of the epoch that all ranks together have delivered before "
            "that place. Example: 1280 goes on with the epoch's 1281st sample."
        ),
    ] = None,
    percent: Annotated[
        float | None,
        typer.Option(
            help="Share of the epoch before that place, in percent, 0 to 100, rounded down to "
            "where a step begins. Example: 40 of 64 samples in steps of 8 goes to position 24."
        ),
    ] = None,
    where: WhereOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a copy of a state file in which the loader goes on at another place of its stream.

    The loader then delivers from there on what an uninterrupted run would have delivered. Give
    exactly one of --position, --samples and --percent. A step is one batch on each rank. Models and
    optimizers in the file stay as they are. A distributed checkpoint is refused: call loader.seek()
    in the program that loads it.
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
        moved_to = f"{out}{named}: epoch {each.epoch}, position {each.position}"
        console().print(visible(moved_to), markup=False)

"""The command ``seek``: a copy of a state file from which the loader resumes elsewhere."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from stateful_gpu_loader.cli.output import JsonOption, console, note, print_json, visible
from stateful_gpu_loader.cli.target import StatesArgument, WhereOption


def seek(
    path: StatesArgument,
    epoch: Annotated[
        int,
        typer.Option(
            help="Epoch to go to, counted from 0. Example: 2 is the third pass over the data."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The new file; PATH is not changed.")],
    position: Annotated[
        int | None,
        typer.Option(
            help="Position in the epoch, in samples of all ranks together, counted from 0. "
            "Example: with 4 ranks and batches of 32 samples, step 10 begins at 1280."
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            help="Number of samples of the epoch that all ranks together deliver before the place. "
            "Example: after 1280, the loader resumes with the epoch's 1281st sample."
        ),
    ] = None,
    percent: Annotated[
        float | None,
        typer.Option(
            help="Percentage of the epoch before the place, 0 to 100, rounded down to the start "
            "of a step. Example: with 64 samples in steps of 8, 40 is position 24."
        ),
    ] = None,
    where: WhereOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a copy of a state file that resumes at another place.

    From there the loader delivers the samples of an uninterrupted run. Give exactly one of
    --position, --samples and --percent. A step is one batch on each rank. Models and optimizers in
    the file are not changed. A distributed checkpoint is refused: call loader.seek() in the program
    that loads it.
    """
    from stateful_gpu_loader.tools.seek import seek_file

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
        if each.note:
            note(each.note)

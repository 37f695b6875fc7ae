"""The command ``verify``: shows the report of ``verify_resume`` on a user's loader."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from stateful_gpu_loader.cli.output import JsonOption, console, print_json, progress
from stateful_gpu_loader.cli.target import ArgOption, FactoryArgument, factory_of


def verify(
    target: FactoryArgument,
    arg: ArgOption = None,
    batches: Annotated[
        int,
        typer.Option(
            min=2,
            help="Number of batches of the undisturbed run, with which resumed runs are compared. "
            "It may cover several epochs. Example: with 8 batches an epoch, 20 are two and a half "
            "epochs. The end of an epoch is checked only if the run is longer than one epoch.",
        ),
    ] = 12,
    as_json: JsonOption = False,
) -> None:
    """Verify that a loader resumes exactly.

    If it does not, the first sample that differs is shown, with the likely cause. The loader runs
    undisturbed, and is then interrupted and resumed at several places: in new loaders, with other
    numbers and kinds of workers, in a new process, and with a killed worker. All samples are
    compared bit for bit. Exit status: 0 nothing differs, 1 something differs, 2 the loader or one
    of the checks cannot run.
    """
    from stateful_gpu_loader.tools.verify import verify_resume

    make_loader = factory_of(target, arg)
    with progress() as bar:
        task = bar.add_task("the undisturbed run", total=None)

        def show(number: int, total: int, name: str) -> None:
            bar.update(task, completed=number, total=total, description=name)

        report = verify_resume(make_loader, batches=batches, on_check=show)
    if as_json:
        print_json(asdict(report) | {"is_exact": report.is_exact, "verdict": report.verdict})
    else:
        console().print(str(report), markup=False)
    if not report.is_exact:
        raise typer.Exit(2 if report.is_exact is None else 1)

"""``stateful-gpu-loader verify``: shows what ``verify_resume`` finds out about a user's loader."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from stateful_gpu_loader.cli.output import JsonOption, console, print_json, progress
from stateful_gpu_loader.cli.target import ArgOption, FactoryArgument, factory_of
from stateful_gpu_loader.tools.verify import verify_resume


def verify(
    target: FactoryArgument,
    arg: ArgOption = None,
    batches: Annotated[
        int,
        typer.Option(
            min=2,
            help="Number of batches of the undisturbed run, with which resumed ones are compared; "
            "it goes on into the next epochs. Example: with 8 batches an epoch, 20 are two epochs "
            "and a half. To check the end of an epoch, it has to be more than one epoch.",
        ),
    ] = 12,
    as_json: JsonOption = False,
) -> None:
    """Prove that a loader resumes exactly, or show the first sample that differs and why.

    The loader is run undisturbed, then interrupted and resumed at several places, in new loaders,
    on other numbers and kinds of workers, in a new process, and with a worker that is killed. All
    samples are compared bit for bit. Exit status: 0 nothing differs, 1 something does, 2 the loader
    or one of the checks cannot be run.
    """
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

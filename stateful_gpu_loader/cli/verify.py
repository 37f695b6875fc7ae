"""``stateful-gpu-loader verify``: shows what ``verify_resume`` finds out about a user's loader."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from stateful_gpu_loader.cli.output import JsonOption, console, print_json
from stateful_gpu_loader.cli.target import ArgOption, FactoryArgument, factory_of
from stateful_gpu_loader.tools.verify import verify_resume
from stateful_gpu_loader.tools.verify_report import Report

_COLOURS = {"exact": "green", "differs": "red", "skipped": "yellow", "could not run": "magenta"}


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
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    errors = Console(stderr=True)
    with Progress(
        *columns, console=errors, transient=True, disable=not errors.is_terminal
    ) as progress:
        bar = progress.add_task("the undisturbed run", total=None)

        def show(number: int, total: int, name: str) -> None:
            progress.update(bar, completed=number, total=total, description=name)

        report = verify_resume(make_loader, batches=batches, on_check=show)
    if as_json:
        print_json(asdict(report) | {"is_exact": report.is_exact, "verdict": report.verdict})
    else:
        _show(report)
    if not report.is_exact:
        raise typer.Exit(2 if report.is_exact is None else 1)


def _show(report: Report) -> None:
    """Show a table on a terminal, and lines of text, which nothing breaks, elsewhere."""
    out = console()
    if not out.is_terminal:
        out.print(str(report), markup=False)
        return
    table = Table("check", "after", "outcome", "difference, or reason", title=report.loader)
    for check in report.checks:
        outcome = f"[{_COLOURS[check.outcome]}]{check.outcome}[/]"
        more = (check.difference or check.reason or "").replace("[", r"\[")
        table.add_row(check.name, check.place, outcome, more)
    for note in report.notes:
        out.print(f"Note: {note}", markup=False)
    out.print(table)
    if report.findings:
        out.print(report.findings, markup=False)
    out.print(report.verdict, style="green" if report.is_exact else "red", markup=False)

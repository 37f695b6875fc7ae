"""The command ``bench``: the bottleneck of a loader, and how many workers are enough."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stateful_gpu_loader.cli.output import JsonOption, check_output, console, print_json, progress
from stateful_gpu_loader.cli.target import ArgOption, FactoryArgument, factory_of

if TYPE_CHECKING:
    from rich.table import Table

    from stateful_gpu_loader.tools.bench import BenchReport

_BUSY = 0.5
"""Share of the cores that other programs may use before the figures are doubtful."""


class Against(str, Enum):
    """Other loaders that can be measured in turns with the user's loader."""

    torch = "torch"


def bench_command(
    factory: FactoryArgument,
    arg: ArgOption = None,
    workers: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of workers to measure. Example: 0,8,16")
    ] = "0,1,2,4",
    seconds: Annotated[
        float, typer.Option(help="Seconds of measuring for each number of workers.")
    ] = 5.0,
    against: Annotated[
        Against | None,
        typer.Option(help="Also measure torch's DataLoader over the same dataset, in turns."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="FILE", help="Also draw a picture into this .png or .svg file."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Find the bottleneck of a loader, and how many workers are enough.

    Batches are taken as fast as they come. The numbers of workers are measured in turns.
    """
    from stateful_gpu_loader.tools.bench import ROUNDS, bench
    from stateful_gpu_loader.tools.bench_picture import draw

    numbers = _numbers(workers)
    if output is not None:
        check_output(output)
    loader = factory_of(factory, arg)()
    with progress() as bar:
        task = bar.add_task("", total=ROUNDS * len(numbers))
        report = bench(
            loader,
            workers=numbers,
            seconds=seconds,
            against_torch=against is not None,
            progress=lambda label, done, total: bar.update(
                task, description=label, completed=done, total=total
            ),
        )
    if output is not None:
        draw(report, output)
    if json:
        print_json(asdict(report))
    else:
        _show(report)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        from stateful_gpu_loader.tools.bench import BenchError

        raise BenchError(
            f"--workers {text!r} is not a list of numbers. Remedy: for example --workers 0,1,2,4"
        ) from None


def _show(report: BenchReport) -> None:
    from stateful_gpu_loader.tools.bench import analysed

    out = console()
    rates = _table("Samples per second", "loader", "workers", "samples/s")
    for rate in report.rates:
        rates.add_row(rate.loader, str(rate.num_workers), f"{rate.samples_per_second:,.0f}")
    out.print(rates)
    ours = analysed(report.rates)
    workers = [f"{rate.num_workers} workers" for rate in ours]
    spent = _table("Microseconds per sample, added up over all workers", "stage", *workers)
    for stage in [ceiling.stage for ceiling in report.ceilings]:
        spent.add_row(stage, *[f"{1e6 * rate.stages.get(stage, 0.0):,.1f}" for rate in ours])
    spent.add_row("idle", *[f"{1e6 * rate.idle:,.1f}" for rate in ours])
    out.print(spent)
    headings = "stage", "us alone", "us together", "at most samples/s"
    ceilings = _table(f"Each stage as if it were alone on {report.cores} cores", *headings)
    for one in report.ceilings:
        ceilings.add_row(
            one.stage,
            f"{1e6 * one.alone:,.1f}",
            f"{1e6 * one.together:,.1f}",
            f"{one.samples_per_second:,.0f}",
        )
    out.print(ceilings)
    if report.load_average is not None and report.load_average > _BUSY * report.cores:
        out.print(
            f"This machine was busy (load average {report.load_average:.1f} on {report.cores} "
            "cores before the measurement). Measure again when it is idle."
        )
    if report.peer is not None:
        out.print(f"Compared with: {report.peer}.")
    if report.conversion is not None:
        out.print(f"{report.conversion}.")
    out.print(report.recommendation)


def _table(title: str, first: str, *numbers: str) -> Table:
    """Return a table of names and numbers; text too long for the terminal is wrapped, not cut."""
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, title=title)
    table.add_column(first)
    for heading in numbers:
        table.add_column(heading, justify="right", overflow="fold")
    return table

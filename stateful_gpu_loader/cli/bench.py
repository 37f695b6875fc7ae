"""The command ``bench``: what bounds a loader's speed, and how many workers are enough."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.table import Table

from stateful_gpu_loader.cli.output import JsonOption, console, print_json, progress
from stateful_gpu_loader.cli.target import ArgOption, FactoryArgument, factory_of
from stateful_gpu_loader.tools.bench import OURS, ROUNDS, BenchError, BenchReport, bench
from stateful_gpu_loader.tools.bench_picture import draw

_BUSY = 0.5
"""Share of the cores that others may use before the figures are doubtful."""


class Against(str, Enum):
    """Other loaders that can be measured in turns with the user's."""

    torch = "torch"


def bench_command(
    factory: FactoryArgument,
    arg: ArgOption = None,
    workers: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of workers to measure: 0,8,16")
    ] = "0,1,2,4",
    seconds: Annotated[
        float, typer.Option(help="Seconds of measuring for each number of workers.")
    ] = 5.0,
    against: Annotated[
        Against | None,
        typer.Option(help="Measure torch's DataLoader over the same dataset in turns with yours."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Draw a picture: a .png or .svg file."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Measure what bounds your loader's speed, and how many workers are enough.

    Batches are taken as fast as they come, with each number of workers in turns.
    """
    numbers = _numbers(workers)
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
        raise BenchError(f"--workers {text!r} is no list of numbers such as 0,1,2,4") from None


def _show(report: BenchReport) -> None:
    out = console()
    stages = [ceiling.stage for ceiling in report.ceilings]
    rates = Table(box=SIMPLE, title="Samples per second, and microseconds per sample in each stage")
    for heading in ("loader", "workers", "samples/s", *stages, "idle"):
        rates.add_column(heading, justify="left" if heading == "loader" else "right", no_wrap=True)
    for rate in report.rates:
        of_stages = [f"{1e6 * rate.stages.get(name, 0.0):,.1f}" for name in stages]
        rates.add_row(
            rate.loader,
            str(rate.num_workers),
            f"{rate.samples_per_second:,.0f}",
            *([*of_stages, f"{1e6 * rate.idle:,.1f}"] if rate.loader == OURS else []),
        )
    out.print(rates)
    ceilings = Table(box=SIMPLE, title=f"Each stage as if it were alone on {report.cores} cores")
    for heading in ("stage", "us alone", "us together", "at most samples/s"):
        ceilings.add_column(heading, justify="left" if heading == "stage" else "right")
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
            "cores before the measurement): measure again when it is not."
        )
    if report.peer is not None:
        out.print(f"Compared with: {report.peer}.")
    out.print(report.recommendation)

"""The command ``prepare``: fills the directory of a loader's PreparedSource."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from stateful_gpu_loader.cli.output import JsonOption, console, print_json, progress, visible
from stateful_gpu_loader.cli.target import ArgOption, FactoryArgument, FactoryError, factory_of

if TYPE_CHECKING:
    from rich.progress import TaskID

    from stateful_gpu_loader.tools.prepare import PrepareReport

_MOST_BAD = 5
"""Number of bad images that are listed."""


def prepare(
    factory: FactoryArgument,
    arg: ArgOption = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Number of processes that decode; by default one for each core."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Also check the images in the directory, and replace damaged ones."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Decode the images of a PreparedSource once, ahead of training.

    The loader's dataset must be a PreparedSource, or a Subset, concatenation or mixture of such
    sources. You may stop and restart the command at any time, and run it on several machines. Exit
    status: 0 all images that can be decoded are kept, 1 there was no room for all, 2 the command
    failed.

    --json prints a list with an object for each source: "directory", "num_images", "num_kept",
    "num_made" (now), "num_bytes", "bad" (reasons by index) and "is_full".
    """
    from rich.progress import TimeRemainingColumn

    from stateful_gpu_loader.tools.prepare import prepare as fill
    from stateful_gpu_loader.tools.prepare import prepared_sources

    sources = list(prepared_sources(factory_of(factory, arg)().dataset))
    if not sources:
        raise FactoryError(
            f"the dataset of {factory} is not a PreparedSource and contains none. Remedy: "
            "StatefulGPULoader(PreparedSource(dataset, directory, recipes), ...)"
        )
    reports = []
    with progress(TimeRemainingColumn()) as bar:
        for source in sources:
            task = bar.add_task(source.directory, total=None)

            def show(done: int, total: int, task: TaskID = task) -> None:
                bar.update(task, completed=done, total=total)

            reports.append(fill(source, num_workers=workers, check=check, on_progress=show))
    if as_json:
        print_json([asdict(report) for report in reports])
    else:
        for report in reports:
            _show(report)
    if any(report.is_full for report in reports):
        raise typer.Exit(1)


def _show(report: PrepareReport) -> None:
    out = console()
    out.print(
        f"{report.directory}: {report.num_kept:,} of {report.num_images:,} images, "
        f"{report.num_made:,} of them made now; {report.num_bytes / 2**20:,.1f} MiB",
        markup=False,
    )
    for index, reason in list(report.bad.items())[:_MOST_BAD]:
        out.print(visible(f"  {index} cannot be decoded: {reason}"), markup=False)
    if len(report.bad) > _MOST_BAD:
        out.print(f"  and {len(report.bad) - _MOST_BAD:,} more")
    if report.is_full:
        out.print("  There is no room for more. Other images are decoded during training.")

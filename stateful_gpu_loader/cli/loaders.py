"""The commands on a loader: ``verify``, ``preview``, ``prepare`` and ``bench``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stateful_gpu_loader.cli.output import (
    JsonOption,
    check_output,
    console,
    print_json,
    progress,
    visible,
)
from stateful_gpu_loader.cli.target import ArgOption, FactoryArgument, FactoryError, factory_of
from stateful_gpu_loader.errors import LoaderError

if TYPE_CHECKING:
    from rich.progress import TaskID
    from rich.table import Table

    from stateful_gpu_loader.loader import StatefulGPULoader
    from stateful_gpu_loader.tools.bench import BenchReport
    from stateful_gpu_loader.tools.prepare import PrepareReport
    from stateful_gpu_loader.tools.preview import PreviewedSample


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


def preview(
    factory: FactoryArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The PNG file to write.")],
    state: Annotated[
        Path | None,
        typer.Option(help="A checkpoint with the loader's state; the batch after it is shown."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--html",
            help="Also write an HTML page that shows, on hover, the numbers that each recipe drew.",
        ),
    ] = None,
    batches: Annotated[int, typer.Option(min=1, help="Number of batches to show.")] = 1,
    arg: ArgOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw the coming batch: images, labels and crops.

    Each image is shown beside its original. The loader does not change.

    --json prints an object with "sheet", "page" and "samples". Each sample has "batch", "label",
    "boxes" and "notes". Its place is "name", "index" and "position", or in a sharded dataset
    "lane", "lane_sample" and "stored".

    The sizes "size" and "original_size" are [width, height]. The "crop" is [left, top, right,
    bottom] in pixels of the original, like "corners" and "flips". The list "drawn" holds the
    numbers of each recipe. The "picture" names the "file" and the "box" in it that shows the
    sample. Unknown values are null.
    """
    from stateful_gpu_loader.loader import StatefulGPULoader
    from stateful_gpu_loader.tools.preview import NoPreview
    from stateful_gpu_loader.tools.preview import preview as samples_of

    try:
        # Pillow is needed here alone.
        from stateful_gpu_loader.tools.preview_pictures import write_html, write_png
    except ModuleNotFoundError as error:
        raise NoPreview(
            f"preview needs the package {error.name!r}, which is not installed. "
            "Remedy: pip install 'stateful_gpu_loader[cli]'"
        ) from error
    for path in [out] if page is None else [out, page]:
        check_output(path)
    loader = factory_of(factory, arg)()
    if state is not None and isinstance(loader, StatefulGPULoader):
        _load(loader, state)
    samples = samples_of(loader, batches)
    boxes = write_png(out, samples)
    if page is not None:
        write_html(page, samples)
    if as_json:
        pictures = [{"picture": {"file": str(out), "box": list(box)}} for box in boxes]
        described = [
            sample.to_dict() | picture for sample, picture in zip(samples, pictures, strict=True)
        ]
        written = None if page is None else str(page)
        print_json({"sheet": str(out), "page": written, "samples": described})
        return
    files = str(out) if page is None else f"{out} and {page}"
    console().print(visible(f"{files}: {len(samples)} samples{_places(samples)}"), markup=False)


def _places(samples: list[PreviewedSample]) -> str:
    """Return the places of the samples in the epoch, as far as they are known."""
    lanes = sorted({each.place.lane for each in samples if each.place.lane is not None})
    if lanes:
        return f", lane{'s' * (len(lanes) > 1)} {', '.join(map(str, lanes))}"
    numbers = [each.place.position for each in samples if each.place.position is not None]
    return f", positions {min(numbers)} to {max(numbers)}" if numbers else ""


def _load(loader: StatefulGPULoader[object], path: Path) -> None:
    """Load the only state in a file or folder, or all ranks' common state."""
    from stateful_gpu_loader.tools.state_files import find_states

    found = find_states(path)
    if any(each.state != found[0].state for each in found):
        places = ", ".join(f"{each.path} {each.where}".strip() for each in found[:8])
        raise LoaderError(
            f"{str(path)!r} holds {len(found)} different states of loaders: {places}. Remedy: pass "
            "a file that holds only the state of this loader"
        )
    loader.load_state_dict(found[0].state)


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
            _show_prepared(report)
    if any(report.is_full for report in reports):
        raise typer.Exit(1)


def _show_prepared(report: PrepareReport) -> None:
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


_BUSY = 0.5
"""Share of cores used by other programs that makes figures doubtful."""


def bench_command(
    factory: FactoryArgument,
    arg: ArgOption = None,
    workers: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of workers to measure. Example: 0,8,16")
    ] = "0,1,2,4",
    seconds: Annotated[
        float, typer.Option(help="Seconds of measuring for each number of workers.")
    ] = 5.0,
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
            progress=lambda label, done, total: bar.update(
                task, description=label, completed=done, total=total
            ),
        )
    if output is not None:
        draw(report, output)
    if json:
        print_json(asdict(report))
    else:
        _show_bench(report)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        from stateful_gpu_loader.tools.bench import BenchError

        raise BenchError(
            f"--workers {text!r} is not a list of numbers. Remedy: for example --workers 0,1,2,4"
        ) from None


def _show_bench(report: BenchReport) -> None:
    from stateful_gpu_loader.tools.bench import analysed, fastest_of

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
    counts = [f"us with {rate.num_workers} workers" for rate in (ours[0], fastest_of(ours))]
    ceilings = _table(
        f"Each stage as if it were alone on {report.cores} cores",
        *("stage", *counts, "at most samples/s"),
    )
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
    if report.conversion is not None:
        out.print(f"{report.conversion}.")
    out.print(report.recommendation)


def _table(title: str, first: str, *numbers: str) -> Table:
    """Return a table of names and numbers; long text is wrapped, not cut."""
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, title=title)
    table.add_column(first)
    for heading in numbers:
        table.add_column(heading, justify="right", overflow="fold")
    return table

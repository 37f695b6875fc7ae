"""The commands, and how their errors are reported."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import stateful_gpu_loader
from stateful_gpu_loader.cli.loaders import bench_command, prepare, preview, verify
from stateful_gpu_loader.cli.output import complain, said
from stateful_gpu_loader.cli.states import diff, inspect, seek, which
from stateful_gpu_loader.errors import LoaderError

app = typer.Typer(
    name="stateful-gpu-loader",
    help="Inspect the state of a data loader, verify that the loader resumes exactly, see its "
    "data, find its bottleneck, and prepare its images.",
    epilog="Exit status: 0 all is well, 1 something differs, 2 the command failed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Rich takes text in brackets, such as [width, height], for markup
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"stateful-gpu-loader {stateful_gpu_loader.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Declare the options that come before a command."""


for _command in (inspect, diff, seek, which, verify, preview, prepare):
    app.command()(_command)
app.command("bench")(bench_command)


def run() -> None:
    """Run one command; a user's mistake prints one message, and failures have status 2."""
    try:
        app()
    except (LoaderError, OSError) as error:
        complain(said(error))
        sys.exit(2)
    except Exception:
        # Python itself would exit with status 1.
        sys.excepthook(*sys.exc_info())
        sys.exit(2)

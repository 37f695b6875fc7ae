"""The commands, and what becomes of their errors."""

from __future__ import annotations

import sys

import typer

from stateful_gpu_loader.cli.bench import bench_command
from stateful_gpu_loader.cli.diff import diff
from stateful_gpu_loader.cli.inspect import inspect
from stateful_gpu_loader.cli.output import complain
from stateful_gpu_loader.cli.prepare import prepare
from stateful_gpu_loader.cli.preview import preview
from stateful_gpu_loader.cli.seek import seek
from stateful_gpu_loader.cli.verify import verify
from stateful_gpu_loader.cli.which import which
from stateful_gpu_loader.errors import LoaderError

app = typer.Typer(
    name="stateful-gpu-loader",
    help="Look into the state of a data loader, prove that it resumes exactly, see its data, find "
    "what bounds its speed, and prepare its images.",
    epilog="Exit status: 0 all is well, 1 something differs, 2 it cannot be done.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _commands() -> None:
    """Without a callback, Typer would make an app of one command that command itself."""


for _command in (inspect, diff, seek, which, verify, preview, prepare):
    app.command()(_command)
app.command("bench")(bench_command)


def run() -> None:
    """Run one command; a user's mistake is one sentence on stderr, and any failure status 2."""
    try:
        app()
    except (LoaderError, OSError) as error:
        complain(str(error))
        sys.exit(2)
    except Exception:
        # Status 1, which Python itself would give, says that something differs.
        sys.excepthook(*sys.exc_info())
        sys.exit(2)

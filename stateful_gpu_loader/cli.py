"""The command line: ``python -m stateful_gpu_loader`` and ``stateful-gpu-loader``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from stateful_gpu_loader import __version__
from stateful_gpu_loader.errors import LoaderError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Args:
        argv: its arguments; None takes those of the process.

    Returns:
        The exit status: 0 if all is well, 1 if something differs or failed, 2 for arguments that
        cannot be used, 130 after Ctrl-C.
    """
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except (LoaderError, OSError) as error:
        print(f"stateful-gpu-loader {arguments.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"stateful-gpu-loader {arguments.command}: interrupted", file=sys.stderr)
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stateful-gpu-loader",
        description="A DataLoader that brings back exactly the stream that was interrupted.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="train, be killed, resume on other workers, and compare bit for bit",
        description="Trains a small network on real JPEG files: undisturbed, and killed twice with "
        "SIGKILL and resumed on other workers; then the same with torchdata's StatefulDataLoader. "
        "Writes pictures and report.json. The exit status is 0 only if nothing differs. Takes a "
        "minute or two, needs no GPU and no network.",
    )
    demo.add_argument(
        "--output",
        type=Path,
        default=Path("demo-output"),
        metavar="DIR",
        help="folder for the pictures and the report (default: %(default)s)",
    )
    demo.set_defaults(run=_demo)
    return parser


def _demo(arguments: argparse.Namespace) -> int:
    from stateful_gpu_loader.demo.command import run_demo

    return run_demo(arguments.output)

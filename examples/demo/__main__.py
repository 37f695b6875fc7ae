"""``python -m examples.demo``: the command line of the demo."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.demo import command
from stateful_gpu_loader.errors import LoaderError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo.

    Args:
        argv: arguments; None takes those of the process.

    Returns:
        Exit status: 0 if nothing differs, 1 if something differs or failed, 2 for invalid
        arguments, 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Trains a small network on real JPEG files: undisturbed, and killed twice with "
        "SIGKILL and resumed on other workers; then the same with torchdata's StatefulDataLoader. "
        "Writes pictures and report.json. The exit status is 0 only if nothing differs. Takes a "
        "minute or two, needs no GPU and no network.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-output"),
        metavar="DIR",
        help="folder for the pictures and the report (default: %(default)s)",
    )
    arguments = parser.parse_args(argv)
    try:
        return command.run_demo(arguments.output)
    except (LoaderError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())

"""The command line: each command shows what a function of ``tools/`` returns."""

from __future__ import annotations

import sys


def main() -> None:
    """Run ``stateful-gpu-loader`` with the arguments of this process.

    The exit status is 0 if all is well, 1 if something differs, and 2 if the command failed.
    """
    try:
        from stateful_gpu_loader.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "click", "rich"}:
            raise
        print(
            f"The command line needs the package {error.name!r}, which is not installed. "
            "Remedy: pip install 'stateful_gpu_loader[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    run()

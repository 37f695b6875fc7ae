"""Runs the command line in this process: a new one would import torch for seconds."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from stateful_gpu_loader.cli import main


@dataclass(frozen=True)
class Done:
    """Output and exit status of a command."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def words(self) -> str:
        """Return the output with one blank between words, however it was wrapped."""
        return " ".join(self.stdout.split())


def command(*arguments: object, cwd: Path | None = None) -> Done:
    """Run ``stateful-gpu-loader`` with these arguments; modules of ``cwd`` are forgotten."""
    out, err = io.StringIO(), io.StringIO()
    here, paths, known = os.getcwd(), list(sys.path), set(sys.modules)
    status = 0
    try:
        os.chdir(cwd or here)
        with (
            mock.patch.object(sys, "argv", ["stateful-gpu-loader", *map(str, arguments)]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            main()
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        os.chdir(here)
        sys.path[:] = paths
        for name in set(sys.modules) - known:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(f"{cwd}{os.sep}"):
                del sys.modules[name]
    return Done(status, out.getvalue(), err.getvalue())

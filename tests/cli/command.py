"""Runs the command line as a user does: in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def command(
    *arguments: object, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``stateful-gpu-loader`` with these arguments."""
    return subprocess.run(
        [sys.executable, "-m", "stateful_gpu_loader", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=env,
        timeout=600,
        check=False,
    )

"""Processes forked from a server that has imported torch and the trainers' packages already.

A new interpreter takes seconds of processor time to import them; a forked one is there at once. The
server starts with the first of them, once a test process.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

from tests.patience import seconds

PRELOADED = [
    "stateful_gpu_loader",
    "tests.trainer_data",
    "lightning.pytorch",
    "accelerate",
    "transformers",
    "torch.distributed.checkpoint",
]
"""What is not installed is left out."""

CONTEXT = multiprocessing.get_context("forkserver")
"""Python has one such server a process: ``multiprocessing_context="forkserver"`` uses it, too. What
its processes are given is pickled, as for spawned ones: they inherit nothing from the test's."""
CONTEXT.set_forkserver_preload(PRELOADED)


def run_script(
    script: Path | str, *arguments: str, folder: Path, before: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a script in ``folder`` as ``python -W ignore`` does; what it printed, and how it ended.

    Args:
        script: its path, or the name of a module, as behind ``python -m``.
        arguments: its ``sys.argv[1:]``.
        folder: where it runs.
        before: statements to execute first.
    """
    output, errors = (folder / f"standard_{name}.txt" for name in ("output", "error"))
    given = (script, arguments, folder, before, (output, errors))
    process = CONTEXT.Process(target=_run, args=given)
    process.start()
    process.join(limit := seconds(100))
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"{script} had not ended after {limit:.0f} s: {errors.read_text()}")
    return subprocess.CompletedProcess(
        [str(script), *arguments], process.exitcode, output.read_text(), errors.read_text()
    )


def _run(
    script: Path | str,
    arguments: tuple[str, ...],
    folder: Path,
    before: str,
    files: tuple[Path, Path],
) -> None:
    for descriptor, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.chdir(folder)
    warnings.simplefilter("ignore")
    sys.argv = [str(script), *arguments]
    try:
        exec(before, {})
        if isinstance(script, Path):
            runpy.run_path(str(script), run_name="__main__")
        else:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

"""Processes forked from a server that has already imported torch and the trainers' packages.

A new interpreter needs seconds of processor time for these imports; a forked one needs none. The
server starts with the first process, once in each test process. Lightning takes longer to import
than everything else, so the server imports it only for tests marked ``trainers``.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
import warnings
import weakref
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType

from torch.utils.data import _utils as torch_data

from stateful_gpu_loader.engine.workers import processes
from tests.patience import seconds

ROOT = Path(__file__).parent.parent
"""Folder in which examples find their photographs, and started programs find the examples."""

PRELOADED = [
    "stateful_gpu_loader.tools.verify",
    "tests.trainer_data",
    "torch.distributed.checkpoint",
]
TRAINERS = ["lightning.pytorch", "accelerate", "transformers"]
"""Packages that the server imports; packages that are not installed are left out."""

CONTEXT = multiprocessing.get_context("forkserver")
"""Context of the server, which Python shares with ``multiprocessing_context="forkserver"``.

Arguments are pickled as for spawned processes, which inherit nothing from the test's process.
"""
CONTEXT.set_forkserver_preload(PRELOADED)


@functools.cache
def preload_trainers() -> None:
    """Let the server import the trainers too. A server that runs without them is ended."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    CONTEXT.set_forkserver_preload([*PRELOADED, *TRAINERS])


def run_script(
    script: Path | str, *arguments: str, folder: Path, before: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a script in ``folder`` like ``python -W ignore``; return its output and how it ended.

    Args:
        script: path of the script, or name of a module, as after ``python -m``.
        arguments: its ``sys.argv[1:]``.
        folder: its working directory.
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


def run_until_exit(
    statements: str, context: multiprocessing.context.BaseContext = CONTEXT
) -> tuple[int, str]:
    """Run statements as a script of ``python -W ignore``, until the interpreter ends.

    The script leads its own process group. The call also waits for processes that outlive the
    script, as long as they hold its standard error.

    Args:
        statements: text of the script.
        context: context that starts the process.

    Returns:
        Its exit code, and what the script and its processes wrote to standard error.
    """
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_run_until_exit, args=(statements, writer))  # type: ignore[attr-defined]
    process.start()
    writer.close()
    written, deadline = b"", time.monotonic() + (limit := seconds(10))
    while wait([reader], max(0.0, deadline - time.monotonic())):
        part = os.read(reader.fileno(), 1 << 16)
        written += part
        if not part:
            process.join()
            reader.close()
            return process.exitcode or 0, written.decode()
    with suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    raise AssertionError(f"something was left after {limit:.0f} s; {written.decode()}")


def _run_until_exit(statements: str, errors: Connection) -> None:
    os.setpgid(0, 0)
    os.dup2(errors.fileno(), 2)
    errors.close()
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # pytest's, if it forked this process
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    warnings.simplefilter("ignore")
    multiprocessing.set_start_method("fork", force=True)  # no other server
    # Since Python 3.13, a process of multiprocessing forgets what was registered before its fork.
    atexit.register(weakref.finalize._exitfunc)
    atexit.register(torch_data._set_python_exit_flag)
    atexit.register(processes._note_exit)
    main = sys.modules["__main__"] = ModuleType("__main__")
    code = 0
    try:
        exec(compile(statements, "script.py", "exec"), main.__dict__)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        # The interpreter, too, keeps the script's frames until its end.
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        code = 1
    del main
    # A process of multiprocessing ends by os._exit, and cleans up nothing.
    ctypes.pythonapi.Py_Exit(code)


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
    os.environ["PYTHONPATH"] = str(ROOT)
    sys.path.insert(0, str(folder))
    warnings.simplefilter("ignore")
    sys.argv = [str(script), *arguments]
    try:
        exec(before, {})
        if isinstance(script, Path):
            runpy.run_path(str(script), run_name="__main__")
        else:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        _exit(int(end.code or 0))
    except BaseException:
        traceback.print_exc()
        _exit(1)


def _exit(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

"""Passes of loaders, each in a new Python process, watched from here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import COMPILED
from benchmarks.peers.process import Order
from benchmarks.peers.tree import memory_bytes, processes

LONGEST_SECONDS = 600.0
"""Limit for anything without its own limit."""
_STEP_SECONDS = 0.05


class PassFailed(Exception):
    """The loader's process ended with an error."""


class PassTooLong(Exception):
    """The loader's process was ended because it exceeded its limit."""


def carry_out(
    order: Order, *, limit: float | None = None, watch_memory: bool = False
) -> dict[str, Any]:
    """Run a pass and return the report of its process.

    Args:
        order: without ``report``, which is chosen here.
        limit: seconds from the import of the loader's modules; the rest has
            :data:`LONGEST_SECONDS`.
        watch_memory: add ``peak_bytes``, the largest observed sum over all its processes. It is
            sampled after the timed part, if there is one, because sampling takes time.

    Returns:
        Report, and ``process_started_at``, on the clock of ``time.monotonic``.

    Raises:
        PassFailed: the process ended with an error; the message is its last line of output.
        PassTooLong: the process was ended at its limit.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "benchmarks.peers.process"]
        started = time.monotonic()
        with (Path(folder) / "errors").open("w+b") as errors:
            process = subprocess.Popen(
                [*command, replace(order, report=str(report)).to_json()],
                env={**os.environ, **COMPILED},
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
            try:
                timed = report.with_suffix(".timed") if order.timed else None
                peak = _wait(process, report.with_suffix(".ready"), limit, watch_memory, timed)
            finally:
                _end(process)
            if process.returncode != 0 or not report.is_file():
                errors.seek(0)
                raise PassFailed(_last_line(errors.read().decode(errors="replace")))
        content: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    content["process_started_at"] = started
    if watch_memory:
        content["peak_bytes"] = peak
    return content


def _wait(
    process: subprocess.Popen[bytes],
    ready: Path,
    limit: float | None,
    watch_memory: bool,
    timed: Path | None,
) -> int:
    peak, deadline = 0, time.monotonic() + LONGEST_SECONDS
    is_limited = limit is None
    while True:
        try:
            process.wait(_STEP_SECONDS)
            return peak
        except subprocess.TimeoutExpired:
            pass
        if not is_limited and limit is not None and ready.exists():
            is_limited, deadline = True, time.monotonic() + limit
        if time.monotonic() > deadline:
            raise PassTooLong("it took longer than it may")
        if watch_memory and (timed is None or timed.exists()):
            peak = max(peak, memory_bytes(process.pid))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the remaining processes of the session, which is the loader's own."""
    for number in processes(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    process.wait()


def _last_line(text: str) -> str:
    """Return the last line of a traceback, without the folders in file names.

    >>> _last_line("Traceback:\\nOSError: no /somewhere/on/this/disk.bin")
    'OSError: no disk.bin'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r"/(?:[^\s/'\"]+/)+", "", lines[-1]) if lines else "no reason was given"

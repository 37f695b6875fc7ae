"""A part of a check: a program with a time budget, whose output goes to a file."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GRACE_SECONDS = 8.0
"""Seconds between a request to end and the kill of a program and its children."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A program to run."""

    name: str
    command: Sequence[str]
    seconds: float
    """Budget: a program that takes longer is ended."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a program."""

    code: int
    """Exit code of the program; minus the signal's number if a signal ended it."""
    seconds: float
    timed_out: bool

    @property
    def is_good(self) -> bool:
        """Whether the program reports success."""
        return self.code == 0 and not self.timed_out


def run_part(part: Part, log: Path, variables: Mapping[str, str], folder: Path) -> Outcome:
    """Run a part to its end, or to the end of its budget.

    Args:
        part: the program.
        log: file for all its output.
        variables: environment variables in addition to this process's.
        folder: working directory.
    """
    started = time.monotonic()
    timed_out = False
    alive, inherited = os.pipe()  # readable once all holders of the other end have ended
    try:
        with log.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(
                part.command,
                cwd=folder,
                env={**os.environ, **variables, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(inherited,),
            )
        os.close(inherited)
        try:
            process.wait(part.seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
            _end(process, alive)
    finally:
        os.close(alive)
    return Outcome(
        code=process.returncode,
        seconds=round(time.monotonic() - started, 1),
        timed_out=timed_out,
    )


def _end(process: subprocess.Popen[bytes], alive: int) -> None:
    """End the whole session, because worker processes would keep the GPU's memory."""
    for kind in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
        except ProcessLookupError:
            break
        ended, _, _ = select.select([alive], [], [], GRACE_SECONDS)
        if ended:
            break
    process.wait()

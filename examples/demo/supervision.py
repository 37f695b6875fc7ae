"""One training process: started, watched through a pipe, killed with SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from examples.demo.events import Event, Launched, Step, from_line
from examples.demo.training import Job
from stateful_gpu_loader.errors import LoaderError

_Kind = TypeVar("_Kind")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Result of one process."""

    num_workers: int
    killed_at: int | None
    """Step whose report triggered the kill; None if the process ended by itself."""
    returncode: int
    """Return code as in :mod:`subprocess`: -9 after SIGKILL."""
    events: tuple[Event, ...]
    """All events of the process, in order."""

    def of(self, kind: type[_Kind]) -> list[_Kind]:
        return [event for event in self.events if isinstance(event, kind)]


def attempt(
    job: Job, *, kill_at: int | None = None, watch: Callable[[Event], None] = lambda event: None
) -> Attempt:
    """Run a job in a separate process; kill it and its workers as soon as it reports a step.

    The job's process leads its own group, as a scheduler's jobs do, and SIGKILL goes to the whole
    group: the job gets no chance to notice, save or clean up.

    Args:
        job: the task.
        kill_at: step of the kill; None lets the process end by itself.
        watch: called with every event when it arrives.

    Raises:
        LoaderError: the process failed by itself; the text has its last output.
    """
    errors = Path(job.folder, "errors.txt")
    events: list[Event] = []
    killed = False
    watch(Launched(num_workers=job.num_workers))
    with errors.open("w") as error_file:
        process = subprocess.Popen(
            [sys.executable, "-m", "examples.demo.training", job.to_text()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=error_file,
            text=True,
            start_new_session=True,
        )
    try:
        for line in process.stdout or ():
            if not line.endswith("\n"):
                break
            event = from_line(line)
            events.append(event)
            watch(event)
            if isinstance(event, Step) and event.step == kill_at:
                _kill(process)
                killed = True
            elif isinstance(event, Step):
                _let_go_on(process)
        returncode = process.wait()
    finally:
        _kill(process)
        process.communicate()
    if returncode != 0 and not killed:
        last_words = "\n".join(errors.read_text().splitlines()[-15:])
        raise LoaderError(
            f"the training process of {job.loader} on {job.num_workers} workers failed, "
            f"{returncode = }, {len(events)} events reported. Its last words:\n{last_words}"
        )
    return Attempt(
        num_workers=job.num_workers,
        killed_at=kill_at if killed else None,
        returncode=returncode,
        events=tuple(events),
    )


def _let_go_on(process: subprocess.Popen[str]) -> None:
    """Let the job continue: it waits at every step, so a kill hits it on any machine."""
    if process.stdin is not None:
        with suppress(BrokenPipeError):  # the process has ended by itself
            process.stdin.write("\n")
            process.stdin.flush()


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)

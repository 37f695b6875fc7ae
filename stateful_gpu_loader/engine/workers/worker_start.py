"""The start of worker processes: how far each came, and what to do where one ended before that.

What ends a process while it starts ends every other one in the same way: a script that starts
processes when it is imported, a class that cannot be unpickled, a ``worker_init_fn`` that exits. So
such a process is not started again, unless something else must have ended it. Only public names of
multiprocessing are used here.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from stateful_gpu_loader.engine.pipeline import WorkersDied
from stateful_gpu_loader.records import Request, Turn

CREATED = "created"
"""A worker process that has reported nothing yet."""
UNPICKLING = "unpickling"
REFUSED = "refused"
INITIALISING = "initialising"
READY = "ready"

BEING_STARTED = (
    "this process was started by another one and imports the main script, which starts processes "
    "of its own"
)

_MOST_BYTES = 2000
"""Size of a report, below that up to which the system writes to a pipe at once."""
_FROM_OUTSIDE = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}
"""Exit codes of processes that something else has ended."""

GUARD = (
    'keep the main script in a file, and its code under `if __name__ == "__main__":`, as each '
    "process that is started imports the script; define the classes and functions that the loader "
    "uses in a module that can be imported, or at the script's top level"
)
_IMPORTABLE = (
    "define the classes and functions that the loader uses in a module that worker processes can "
    "import, not in a notebook, in the interpreter or under `python -c`; or pass "
    "multiprocessing_context='fork', where the workers may be forked"
)
_ENDED: dict[str, tuple[str, str]] = {
    CREATED: ("It ended while it imported the main script", GUARD),
    UNPICKLING: (
        "It ended while it unpickled the loader's dataset",
        "look for what ends a process there: memory, __setstate__ of the dataset, or a library "
        "that its module imports",
    ),
    REFUSED: ("It could not unpickle what the loader uses", _IMPORTABLE),
    INITIALISING: ("It ended in worker_init_fn", "let worker_init_fn return"),
}
"""Activity of a worker process when it ended, and the remedy."""

_REMEDIES = {
    errno.EAGAIN: "raise the limit of processes (`ulimit -u`, pids.max of a container), or use "
    "fewer workers",
    errno.ENOMEM: "free memory, or use fewer workers",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`), or use fewer workers",
    errno.ENFILE: "close files that other processes hold open, or use fewer workers",
    errno.ENOSPC: "free space in /dev/shm, or give it more (`docker run --shm-size`)",
}


class StartReport:
    """The worker's side of the pipe through which it reports how its start goes on."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def say(self, stage: str, text: str = "") -> None:
        """Report a stage of this process's start; the last one is :data:`READY`."""
        report = f"{os.getpid()} {stage} {text}".encode(errors="replace")[:_MOST_BYTES]
        with suppress(OSError):  # the main process has given up
            self._pipe.send_bytes(report)
        if stage == READY:
            self._pipe.close()


class StartReports:
    """The main process's side of the pipe, with what was reported."""

    def __init__(self) -> None:
        self._reader, self._writer = Pipe(duplex=False)
        self.workers_side = StartReport(self._writer)
        self._found: dict[int, tuple[str, str]] = {}
        """Last stage of each process that has reported, by its pid, with a text."""

    def of(self, pid: int | None) -> tuple[str, str]:
        """Return the stage that a process has reported last, and its text."""
        self._receive()
        return self._found.get(pid or 0, (CREATED, ""))

    def any_is_ready(self) -> bool:
        """Whether one of the processes has reported that it is ready."""
        self._receive()
        return any(stage == READY for stage, _ in self._found.values())

    def _receive(self) -> None:
        with suppress(EOFError, OSError):
            while self._reader.poll():
                report = self._reader.recv_bytes().decode(errors="replace")
                reporter, stage, text = report.split(" ", 2)
                self._found[int(reporter)] = stage, text

    def close_writer(self) -> None:
        """Leave the pipe's other end to the workers, once all are started."""
        self._writer.close()

    def close(self) -> None:
        self._writer.close()
        self._reader.close()


def loss(
    what: str,
    died: Sequence[BaseProcess],
    reports: StartReports,
    *,
    oldest: Request | Turn | None,
    is_forked: bool,
    has_delivered: bool,
) -> WorkersDied:
    """Return the loss of workers, with a remedy if others would be lost in the same way.

    Args:
        what: description of how they ended.
        died: the processes that ended by themselves or were killed.
        reports: what the processes reported while they started.
        oldest: the oldest unanswered request, if it is known.
        is_forked: whether the processes were forked from this one.
        has_delivered: whether the loader has delivered a batch. Its workers can start then, as
            they can if one of them is ready, and those that were killed are replaced at any time.
    """
    can_start = has_delivered or reports.any_is_ready()
    for process in died:
        stage, text = reports.of(process.pid)
        # A process that was just forked has run no code of the user's that could end it. Ctrl-C
        # ends it with exit code 0 there, as torch catches KeyboardInterrupt.
        is_new = is_forked and stage == CREATED
        if stage == READY or is_new or (can_start and process.exitcode in _FROM_OUTSIDE):
            continue
        ended, remedy = _ENDED[stage]
        shown = f": {text}" if text else ", before it was ready"
        return WorkersDied(f"{what}. {ended}{shown}", None, remedy=remedy)
    return WorkersDied(what, oldest)


def loss_of_the_server(*, has_delivered: bool) -> WorkersDied:
    """Return the loss of workers that the process which starts them did not survive."""
    what = "DataLoader worker exited unexpectedly during its start"
    return WorkersDied(what, None, remedy=None if has_delivered else GUARD)


def is_of_a_start(error: BaseException) -> bool:
    """Return whether an error says that processes could not be started, or lacked memory or files.

    Such an error says nothing about the batches that they would have made.
    """
    cause = error.__cause__
    return (
        (isinstance(cause, WorkersDied) and cause.remedy is not None)
        or (isinstance(error, OSError) and error.errno in _REMEDIES)
        or isinstance(error, MemoryError)
    )


def explained(error: BaseException) -> BaseException:
    """Return the error of a start, with a remedy if the system lacks what processes need."""
    what = "worker processes cannot be started"
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        return OSError(error.errno, f"{error.strerror}: {what}. Remedy: {_REMEDIES[error.errno]}")
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return RuntimeError(f"{error}: {what}. Remedy: {_REMEDIES[errno.EAGAIN]}")
    return error

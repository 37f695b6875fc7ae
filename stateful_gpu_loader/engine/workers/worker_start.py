"""Start of worker processes: the start method, the progress reports, and the reasons of failures.

A cause that ends one process during its start would end every other: a script that starts processes
when it is imported, a class that cannot be unpickled, a ``worker_init_fn`` that exits. So such a
process is not started again, unless something outside must have ended it.
"""

from __future__ import annotations

import errno
import multiprocessing
import signal
import struct
import sys
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from stateful_gpu_loader.engine.pipeline import WorkersDied
from stateful_gpu_loader.engine.workers.channel import Channel

CREATED = "created"
"""A worker process that has reported nothing yet."""
UNPICKLING = "unpickling"
REFUSED = "refused"
INITIALISING = "initialising"
READY = "ready"

BEING_STARTED = (
    "this process was started by another process and imports the main script, which starts "
    "processes itself"
)

_MAX_BYTES = 2000
"""Size limit of a report, which a pipe takes at once."""
NUMBER = struct.Struct("=q")
"""Head of a worker's message: the number of the request that it answers."""
_NO_REQUEST = -1
_FROM_OUTSIDE = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}
"""Exit codes of processes that another process has ended."""

GUARD = (
    'keep the main script in a file, and its code under `if __name__ == "__main__":`, because '
    "each started process imports the script; define the classes and functions that the loader "
    "uses in a module that can be imported, or at the script's top level"
)
_IMPORTABLE = (
    "define the classes and functions that the loader uses in a module that worker processes can "
    "import, not in a notebook, in the interpreter or under `python -c`; or pass "
    "multiprocessing_context='fork' if the workers may be forked"
)
_ENDED: dict[str, tuple[str, str]] = {
    CREATED: ("It ended while it imported the main script", GUARD),
    UNPICKLING: (
        "It ended while it unpickled the loader's dataset",
        "find out what ends a process there: memory, __setstate__ of the dataset, or a library "
        "that its module imports",
    ),
    REFUSED: ("It could not unpickle the loader's objects", _IMPORTABLE),
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
    """The worker's side of the connection, through which it reports the progress of its start.

    Args:
        channel: the connection, which also carries its answers.
        worker: number that identifies it in the main process.
    """

    def __init__(self, channel: Channel, worker: int) -> None:
        self.channel = channel
        self.worker = worker

    def send(self, stage: str, text: str = "") -> None:
        """Report a stage of this process's start; the last one is :data:`READY`."""
        report = f"{stage} {text}".encode(errors="replace")[:_MAX_BYTES]
        self.channel.send(NUMBER.pack(_NO_REQUEST) + report)


def explain_failed_start(
    reason: str,
    process: BaseProcess,
    *,
    stage: str,
    report: str,
    is_forked: bool,
    can_start: bool,
) -> tuple[str, str | None]:
    """Return why a worker ended before it was ready, and a remedy if others would end as well.

    Args:
        reason: description of how it ended.
        stage, report: its last report.
        is_forked: whether it was forked from this process.
        can_start: whether another worker was ready before; killed workers are then replaced.
    """
    # A newly forked process has not run any user code.
    is_new = is_forked and stage == CREATED
    if is_new or (can_start and process.exitcode in _FROM_OUTSIDE):
        return reason, None
    ended, remedy = _ENDED[stage]
    shown = f": {report}" if report else ", before it was ready"
    return f"{reason}. {ended}{shown}", remedy


def loss_of_the_server(*, has_delivered: bool) -> WorkersDied:
    """Return the loss of workers whose fork server has ended."""
    message = "DataLoader worker exited unexpectedly during its start"
    return WorkersDied(message, None, remedy=None if has_delivered else GUARD)


def is_of_a_start(error: BaseException) -> bool:
    """Return whether processes could not be started, or lacked memory or files."""
    cause = error.__cause__
    return (
        (isinstance(cause, WorkersDied) and cause.remedy is not None)
        or (isinstance(error, OSError) and error.errno in _REMEDIES)
        or isinstance(error, MemoryError)
    )


def explained(error: BaseException) -> BaseException:
    """Return the error of a start, with a remedy if the system lacks resources for processes."""
    message = "worker processes cannot be started"
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        return OSError(
            error.errno, f"{error.strerror}: {message}. Remedy: {_REMEDIES[error.errno]}"
        )
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return RuntimeError(f"{error}: {message}. Remedy: {_REMEDIES[errno.EAGAIN]}")
    return error


_THREADS = Path("/proc/self/task")
_NAME_OF_DALI = "[DALI]"
"""Prefix of the names of DALI's own threads, both of pipelines and of dynamic mode's pool."""

FORK_AVOIDED = (
    "DALI is live in this process, so worker processes are started by a fork server instead of "
    "being forked: they import the main script again, without the values that it has set since. "
    "Pass multiprocessing_context='forkserver' if that is intended, or 'fork' if neither the "
    "workers nor the dataset hold DALI objects"
)

NOT_FORKED = (
    "worker processes are not forked here, because DALI is live in this process and they would "
    "lack its threads; but the objects that they need cannot be pickled: {}. Remedy: make them of "
    "objects that pickle supports, or, if neither the workers nor the dataset hold DALI objects, "
    "pass multiprocessing_context='fork'"
)


def default_context() -> str | None:
    """Return the start method if torch would fork a process in which DALI is live.

    A forked child lacks DALI's threads, and hangs even if it only frees an inherited reader or
    pipeline.

    Returns:
        "forkserver" in that case; None leaves the choice to torch.

    >>> default_context() is None
    True
    """
    return "forkserver" if _default_method() == "fork" and dali_is_live() else None


def method_of(multiprocessing_context: Any) -> str:
    """Return the start method for workers of a loader with this argument.

    >>> method_of("spawn"), method_of(multiprocessing.get_context("fork"))
    ('spawn', 'fork')
    """
    if isinstance(multiprocessing_context, BaseContext):
        return multiprocessing_context.get_start_method()
    return multiprocessing_context or default_context() or _default_method()


def dali_is_live() -> bool:
    """Whether DALI's threads run in this process; this does not import DALI.

    They run from dynamic mode's first operator on, and while a pipeline exists that has run.
    Detected only on Linux, which forks by default.
    """
    if "nvidia.dali" not in sys.modules or not _THREADS.is_dir():
        return False
    return any(_name(thread).startswith(_NAME_OF_DALI) for thread in _THREADS.iterdir())


def _default_method() -> str:
    # Asking for the context would fix the method, and set_start_method() would fail.
    method = multiprocessing.get_start_method(allow_none=True)
    return method or multiprocessing.get_all_start_methods()[0]


def _name(thread: Path) -> str:
    try:
        return (thread / "comm").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # the thread has ended

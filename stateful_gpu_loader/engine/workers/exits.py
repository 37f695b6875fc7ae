"""The end of worker processes: to wait for it, to bring it about, to describe it.

Only public names of multiprocessing are used here.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

_SECONDS_TO_DIE = 5.0
"""Seconds that a process may take to end after SIGKILL; more only if the kernel hangs in it."""
_SECONDS_TO_BE_REAPED = 1.0


class Exit:
    """A descriptor that becomes readable when a process has ended; ``close()`` it.

    A process's own sentinel is a pipe, which stays open as long as a child of the process holds it,
    even when the process is dead.

    Raises:
        OSError: no descriptor is free.
    """

    _fd = -1

    def __init__(self, process: BaseProcess) -> None:
        try:
            self._fd = os.pidfd_open(process.pid or 0)
        except ProcessLookupError:
            self._fd = _readable()  # it has ended, and its parent has collected it
        except (AttributeError, OSError):
            self._fd = os.dup(process.sentinel)

    def __del__(self) -> None:
        self.close()

    def fileno(self) -> int:
        return self._fd

    def has_come(self, seconds: float) -> bool:
        """Wait at most so many seconds for the end; return whether it has come."""
        return bool(wait([self._fd], seconds))

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def describe_exit(process: BaseProcess) -> str:
    """Describe how a process ended in torch's words, without a full stop at the end."""
    reap(process)
    code = process.exitcode
    if code is None or code >= 0:
        how = "" if code is None else f" with exit code {code}"
        return f"DataLoader worker (pid(s) {process.pid}) exited unexpectedly{how}"
    hint = ""
    if -code == signal.SIGBUS:
        hint = (
            ". It is possible that dataloader's workers are out of shared memory. "
            "Please try to raise your shared memory limit"
        )
    name = signal.strsignal(-code) or f"signal {-code}"
    return f"DataLoader worker (pid {process.pid}) is killed by signal: {name}{hint}"


def have_ended(processes: Iterable[BaseProcess], seconds: float) -> bool:
    """Wait at most so many seconds for all processes to end; return whether they have."""
    exits: list[Exit] = []
    try:
        exits.extend(map(Exit, processes))
        deadline = time.monotonic() + seconds
        pending = {one.fileno() for one in exits}
        while pending:
            ended = wait(pending, max(0.0, deadline - time.monotonic()))
            if not ended:
                return False
            pending.difference_update(fd for fd in ended if isinstance(fd, int))
        return True
    finally:
        for one in exits:
            one.close()


def kill(processes: Iterable[BaseProcess]) -> None:
    """Kill processes and collect their exit codes."""
    processes = list(processes)
    for process in processes:
        if process.exitcode is None:
            process.kill()
    with suppress(OSError):  # no descriptor is free to wait for them
        have_ended(processes, _SECONDS_TO_DIE)
    for process in processes:
        reap(process)


def reap(process: BaseProcess) -> None:
    """Collect the exit code of a process that has ended."""
    if process.exitcode is None:  # with a forkserver it is known a little later
        process.join(_SECONDS_TO_BE_REAPED)
    process.join(0)


def _readable() -> int:
    reader, writer = os.pipe()
    os.close(writer)
    return reader

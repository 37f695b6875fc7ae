"""WorkerMonitor: watches worker processes and ends all of them when one is lost.

A killed worker may hold a lock that others need, or leave half a message in a pipe. After a death
the other workers may therefore hang, and so may a process that reads from them. Only public names
of multiprocessing are used here.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

_SECONDS_TO_DIE = 5.0
"""Seconds that a process may take to end after SIGKILL; more only if the kernel hangs in it."""
_SECONDS_TO_BE_REAPED = 1.0
_LONGEST_PERIOD = 1.0
_SHORTEST_PERIOD = 0.02
_FOR_EVER = nullcontext()


class WorkerMonitor:
    """Ends all workers when one of them ends, or when the main process waits too long.

    A daemon thread does this. It refers neither to the workers' pipeline nor to this object, so
    that both can be garbage collected.

    Args:
        processes: the started workers.
        timeout: seconds that the main process may wait, see :meth:`waiting`; 0 means no limit.
    """

    def __init__(self, processes: Sequence[BaseProcess], timeout: float) -> None:
        self._processes = list(processes)
        self._timeout = timeout
        self._state = _State()
        self._owner = os.getpid()
        exits = _exits_of(processes)
        try:
            self._ours, theirs = socket.socketpair()
        except OSError:
            _close_all(exits)
            raise
        # The thread ends with its other end. Garbage is collected in any order: the socket would
        # warn, if its turn came before that of the workers, which stop this monitor.
        self._close = weakref.finalize(self, self._ours.close)
        self._close.atexit = False
        self._thread = threading.Thread(
            target=_watch,
            args=(self._state, exits, theirs, timeout),
            name="stateful_gpu_loader watch",
            daemon=True,
        )
        self._thread.start()

    def fileno(self) -> int:
        """Return the descriptor of a socket that becomes readable when all workers were ended."""
        return self._ours.fileno()

    def waiting(self) -> AbstractContextManager[None]:
        """Limit the main process's wait for workers to the timeout, while the context is open."""
        return self._until_the_deadline() if self._timeout > 0 else _FOR_EVER

    @contextmanager
    def _until_the_deadline(self) -> Iterator[None]:
        self._state.deadline = time.monotonic() + self._timeout
        try:
            yield
        finally:
            self._state.deadline = None

    def has_lost(self, seconds: float = 0.0) -> bool:
        """Whether the workers are lost, or get lost within so many seconds."""
        return self._state.lost.is_set() or (seconds > 0 and self._state.lost.wait(seconds))

    @property
    def died(self) -> list[BaseProcess]:
        """The processes whose end was the first."""
        return [process for process in self._processes if process.pid in self._state.died]

    def verdict(self) -> str:
        """Describe what happened in torch's words, without a full stop at the end."""
        if self._state.timed_out:
            return f"DataLoader timed out after {self._timeout} seconds"
        return ". ".join(map(describe_exit, self.died)) or "DataLoader worker is lost"

    def stop(self) -> None:
        """End the thread; workers may end from now on."""
        if os.getpid() != self._owner or self._ours.fileno() < 0:
            return  # a forked child has the object, but not the thread
        with suppress(OSError):  # it has ended already
            self._ours.send(b"s")
        # garbage may be collected in that thread, too
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._close()


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
    """Wait at most so many seconds for all processes to end; return whether they have.

    ``join`` is not used: its sentinel is a pipe, which stays open as long as a child of the worker
    holds it, even when the worker is dead.
    """
    exits = _exits_of(processes)
    try:
        return _wait_for_all(exits, seconds)
    finally:
        _close_all(exits)


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


@dataclass
class _State:
    """The state that the thread and the :class:`WorkerMonitor` share."""

    lost: threading.Event = field(default_factory=threading.Event)
    died: frozenset[int] = frozenset()
    timed_out: bool = False
    deadline: float | None = None


class _Exit:
    """The end of one process, to wait for or to bring about; safe if its pid is used again."""

    def __init__(self, process: BaseProcess) -> None:
        self.pid = process.pid or 0
        self._is_pidfd = True
        try:
            self.fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self.fd = _readable()  # it has ended, and its parent has collected it
        except (AttributeError, OSError):
            self._is_pidfd = False
            self.fd = os.dup(process.sentinel)

    def kill(self) -> None:
        with suppress(OSError):
            if self._is_pidfd:
                signal.pidfd_send_signal(self.fd, signal.SIGKILL)
            elif not wait([self.fd], 0):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        os.close(self.fd)


def _exits_of(processes: Iterable[BaseProcess]) -> list[_Exit]:
    exits: list[_Exit] = []
    try:
        exits.extend(map(_Exit, processes))
    except OSError:
        _close_all(exits)
        raise
    return exits


def _close_all(exits: Iterable[_Exit]) -> None:
    for one in exits:
        one.close()


def _readable() -> int:
    reader, writer = os.pipe()
    os.close(writer)
    return reader


def _wait_for_all(exits: Iterable[_Exit], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    pending = {one.fd for one in exits}
    while pending:
        ended = wait(pending, max(0.0, deadline - time.monotonic()))
        if not ended:
            return False
        pending.difference_update(fd for fd in ended if isinstance(fd, int))
    return True


def _watch(state: _State, exits: list[_Exit], stop: socket.socket, timeout: float) -> None:
    try:
        if not _something_is_wrong(state, exits, stop, timeout):
            return
        for one in exits:
            one.kill()
        _wait_for_all(exits, _SECONDS_TO_DIE)
        state.lost.set()
        with suppress(OSError):
            stop.send(b"l")
    finally:
        stop.close()
        _close_all(exits)


def _something_is_wrong(
    state: _State, exits: list[_Exit], stop: socket.socket, timeout: float
) -> bool:
    """Wait until a worker is lost (True) or the monitor is stopped (False)."""
    period = min(max(timeout / 10, _SHORTEST_PERIOD), _LONGEST_PERIOD) if timeout > 0 else None
    while True:
        ready = wait([stop, *(one.fd for one in exits)], period)
        if stop in ready:
            return False
        if ready:
            state.died = frozenset(one.pid for one in exits if one.fd in ready)
            return True
        deadline = state.deadline
        if deadline is not None and time.monotonic() > deadline:
            state.timed_out = True
            return True

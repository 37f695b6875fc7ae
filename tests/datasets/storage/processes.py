"""Forks and open descriptors, for the tests of storage."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def in_a_fork(work: Callable[[], bool]) -> int:
    """Return a forked child's exit status: 0 if ``work`` is true, 2 if not, 1 if it raises."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_a_fork_while_held(lock: AbstractContextManager[Any], work: Callable[[], bool]) -> int:
    """Call :func:`in_a_fork` while another thread of this process holds a lock."""
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            let_go.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    try:
        return in_a_fork(work)
    finally:
        let_go.set()
        holder.join()

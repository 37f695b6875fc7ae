"""Forks and open descriptors, for the tests of storage."""

from __future__ import annotations

import os
from collections.abc import Callable


def open_descriptors() -> int:
    """How many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


def in_a_fork(work: Callable[[], bool]) -> int:
    """The exit status of a forked child: 0 if ``work`` is true there, 2 if not, 1 if it raises."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

"""How worker processes are started if the user has not chosen a method."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

_THREADS = Path("/proc/self/task")
_NAME_OF_DALI = "[DALI]"
"""Prefix of the names of DALI's own threads, both of pipelines and of dynamic mode's pool."""

FORK_AVOIDED = (
    "DALI is live in this process, so worker processes are started by a fork server instead of "
    "being forked: they import the main script anew, and what it has set since is missing in them. "
    "Pass multiprocessing_context='forkserver' if that is meant, or 'fork' if neither the workers "
    "nor the dataset hold anything of DALI"
)

NOT_FORKED = (
    "worker processes are not forked here, because DALI is live in this process and its threads "
    "would be missing in them; and what they need cannot be pickled: {}. Remedy: make it of what "
    "pickle knows, or, if neither the workers nor the dataset hold anything of DALI, pass "
    "multiprocessing_context='fork'"
)


def default_context() -> str | None:
    """Return the start method where torch would fork a process in which DALI is live.

    A forked child lacks DALI's threads. If it uses dynamic mode it waits for them for ever, and so
    it does if it only frees a reader or a pipeline that it inherited.

    Returns:
        "forkserver" in that case; None leaves the choice to torch.

    >>> default_context() is None
    True
    """
    return "forkserver" if _default_method() == "fork" and dali_is_live() else None


def method_of(multiprocessing_context: Any) -> str:
    """Return how workers of a loader with this argument are started now.

    >>> method_of("spawn"), method_of(multiprocessing.get_context("fork"))
    ('spawn', 'fork')
    """
    if isinstance(multiprocessing_context, BaseContext):
        return multiprocessing_context.get_start_method()
    return multiprocessing_context or default_context() or _default_method()


def dali_is_live() -> bool:
    """Whether threads of DALI run in this process; DALI is not imported to find out.

    They run from the first operator of dynamic mode on, for the rest of the process, and as long as
    a pipeline exists that has run. Detected on Linux only, the one system that forks by default.
    """
    if "nvidia.dali" not in sys.modules or not _THREADS.is_dir():
        return False
    return any(_name(thread).startswith(_NAME_OF_DALI) for thread in _THREADS.iterdir())


def _default_method() -> str:
    # Asking for the context itself would fix the method, and set_start_method() would then fail.
    settled = multiprocessing.get_start_method(allow_none=True)
    return settled or multiprocessing.get_all_start_methods()[0]


def _name(thread: Path) -> str:
    try:
        return (thread / "comm").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # the thread has ended

"""Locks that a forked child can take even if a parent's thread held them at the fork."""

from __future__ import annotations

import os
import weakref
from typing import Any, TypeVar

Lock = TypeVar("Lock", bound=Any)

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def fork_safe(lock: Lock) -> Lock:
    """Return the lock, which every forked child of this process then finds released.

    Only the forking thread survives in a child, so another thread's lock would stay locked forever.
    The guarded data must be usable at any moment.

    Args:
        lock: a ``threading.Lock`` or ``threading.RLock``.

    >>> import threading
    >>> lock = fork_safe(threading.Lock())
    >>> lock.acquire()
    True
    """
    _locks.add(lock)
    return lock


def _release_all() -> None:
    for lock in _locks:
        # The forking thread releases its own lock in the child.
        if not (hasattr(lock, "_is_owned") and lock._is_owned()):
            lock._at_fork_reinit()


os.register_at_fork(after_in_child=_release_all)

"""Locks and memory that a forked child inherits."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
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


_kept: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""Things that no child may free, by their ``id``."""

_inherited: list[Any] = []
"""Such things of this process's parent."""


def keep_in_children(thing: object) -> None:
    """Keep an object alive in every child that is forked while it is alive here."""
    _kept[id(thing)] = thing


def _keep() -> None:
    _inherited.extend(_kept.values())


os.register_at_fork(after_in_child=_keep)


LONGEST_WAIT = 5.0
"""Maximum seconds that a fork and work in other threads wait for each other."""


class ForkGate:
    """Delays a fork while another thread works with a library whose locks are not fork-safe.

    Such a lock, held at the fork, would stay locked in the child for ever. A gate is made once for
    a module, because hooks of forks cannot be removed.

    If a signal handler raises in such a hook, the interpreter drops the exception and leaves the
    hook in the middle. So hooks keep no lock, and work waits at most ``LONGEST_WAIT`` for a fork.
    """

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork,
            after_in_child=self._begin,
        )

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._working: set[int] = set()
        """Identifiers of the threads inside :meth:`work`."""
        self._forks: dict[int, float] = {}
        """Time of ``monotonic`` in seconds until which work waits, by the thread that forks."""

    @contextmanager
    def work(self) -> Iterator[None]:
        """Let no other thread fork inside the context, which must not be nested."""
        with self._lock:
            while (seconds := max(self._forks.values(), default=0.0) - monotonic()) > 0:
                self._changed.wait(seconds)
            self._working.add(threading.get_ident())
        try:
            yield
        finally:
            with self._lock:
                self._working.discard(threading.get_ident())
                self._changed.notify_all()

    def _before_fork(self) -> None:
        here, deadline = threading.get_ident(), monotonic() + LONGEST_WAIT
        with self._lock:
            self._forks[here] = deadline
            while self._working - {here}:
                seconds = deadline - monotonic()
                if seconds <= 0:
                    self._working.clear()  # they hang, so later forks do not wait for them
                    return
                self._changed.wait(seconds)

    def _after_fork(self) -> None:
        self._forks.pop(threading.get_ident(), None)
        with self._lock:
            self._changed.notify_all()

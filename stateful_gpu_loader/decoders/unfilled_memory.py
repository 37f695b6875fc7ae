"""unfilled_memory: decoders get new memory that torch does not write to."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_SETTING: Any = torch.utils.deterministic


class _Unfilled:
    """Threads that must not be given filled memory, and the setting before the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: list[int] = []
        """Identifier of each thread that is inside, once for each time it entered."""
        self._filled_before = False
        """Whether the setting has to become True again."""

    def enter(self) -> None:
        with self._lock:
            if not self._threads:
                self._filled_before = _SETTING.fill_uninitialized_memory
            self._threads.append(threading.get_ident())
            _SETTING.fill_uninitialized_memory = False

    def leave(self) -> None:
        with self._lock:
            if threading.get_ident() in self._threads:  # an interrupt may come before it entered
                self._threads.remove(threading.get_ident())
                self._restore()

    def forget_other_threads(self) -> None:
        """Leave on behalf of the parent's threads, which do not exist in a forked child."""
        self._lock = threading.Lock()
        here = threading.get_ident()
        self._threads = [thread for thread in self._threads if thread == here]
        self._restore()

    def _restore(self) -> None:
        # A True that the user set meanwhile stays.
        if not self._threads and self._filled_before:
            _SETTING.fill_uninitialized_memory = True
            self._filled_before = False


_unfilled = _Unfilled()
os.register_at_fork(after_in_child=_unfilled.forget_other_threads)


@contextmanager
def unfilled_memory() -> Iterator[None]:
    """Keep torch from filling new memory, whatever torch.use_deterministic_algorithms says.

    The stream would fill it, perhaps after nvJPEG's engines have written their pixels there, as the
    engines do not wait for the stream. The setting belongs to the process: meanwhile no thread's
    ``torch.empty`` is filled. The first thread that enters saves the setting, and the last one that
    leaves restores it.

    >>> import torch
    >>> with unfilled_memory():
    ...     torch.utils.deterministic.fill_uninitialized_memory
    False
    >>> torch.utils.deterministic.fill_uninitialized_memory
    True
    """
    try:
        _unfilled.enter()
        yield
    finally:
        _unfilled.leave()

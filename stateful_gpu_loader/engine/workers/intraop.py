"""One intra-op thread while a request runs.

Sums over an image differ in their last bits between one thread and two, so that a batch made
inline would differ from one made in a worker (law 1).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import torch


@contextmanager
def single_threaded() -> Iterator[None]:
    """Set the process to one intra-op thread and back; for the user's own thread only."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def limit_this_thread() -> None:
    """Give the calling thread one OpenMP thread and leave all others alone.

    ``torch.set_num_threads`` would change the default of every thread that starts later
    (ENGINE.md, pitfall 11); OpenMP's own call sets a value of the calling thread. Where torch
    was built without OpenMP this does nothing: workers are then slower, and results are the
    same because no recipe's depend on it.
    """
    openmp = _openmp()
    if openmp is not None:
        torch.get_num_threads()  # torch sets a new thread's default at its first use: have it over
        openmp.omp_set_num_threads(1)


@lru_cache(maxsize=1)
def _openmp() -> ctypes.CDLL | None:
    for path in sorted((Path(torch.__file__).parent / "lib").glob("lib*omp*")):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        if hasattr(library, "omp_set_num_threads"):
            return library
    return None

"""Isolates a batch from the caller's settings: threads, autocast, default device, generators.

A batch is a pure function of its request, but settings of the user's loop would change batches made
inline.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch

from stateful_gpu_loader.engine.torch_names import has_modes
from stateful_gpu_loader.randomness.global_generators import (
    caller_generators_restored,
    one_at_a_time,
)
from stateful_gpu_loader.state.forks import fork_safe

_T = TypeVar("_T")

fork_safe(one_at_a_time())


def isolated(call: Callable[..., _T], *arguments: Any, draws: bool) -> _T:
    """Call with one intra-op thread, no autocast and no default device; then restore all three.

    The last bits of sums depend on the number of threads, and workers have one. Only for the user's
    thread.

    Args:
        call: function that is called with ``arguments``.
        draws: whether the global CPU generators may be seeded and drawn from; the caller's are then
            restored as well.
    """
    with one_at_a_time():
        num_threads = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            if not (draws or has_modes()):
                return call(*arguments)
            with _without_modes(), caller_generators_restored() if draws else nullcontext():
                return call(*arguments)
        finally:
            torch.set_num_threads(num_threads)


@contextmanager
def _without_modes() -> Iterator[None]:
    with ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


def limit_this_thread() -> None:
    """Limit the calling thread to one OpenMP thread, without changing other threads.

    ``torch.set_num_threads`` would change the default of later threads. If torch was built without
    OpenMP, this does nothing: workers are slower, but no recipe's result depends on it.
    """
    openmp = _openmp()
    if openmp is not None:
        torch.get_num_threads()  # torch sets a thread's default at first use
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

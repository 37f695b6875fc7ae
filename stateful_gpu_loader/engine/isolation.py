"""The surroundings of a worker, in the user's own thread.

What the user's loop has switched on would change a batch, and no worker has it (law 1).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from stateful_gpu_loader.engine.workers.intraop import single_threaded
from stateful_gpu_loader.randomness.philox import caller_generators_restored

_ONE_AT_A_TIME = threading.RLock()
"""The global generators and the number of threads belong to the whole process."""


@contextmanager
def workers_surroundings(*, draws: bool) -> Iterator[None]:
    """One intra-op thread, no autocast, no other default device; all as before on exit.

    Args:
        draws: whether the global CPU generators may be seeded and drawn from: the caller's are
            put back.
    """
    with _ONE_AT_A_TIME, ExitStack() as stack:
        stack.enter_context(single_threaded())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        if draws:
            stack.enter_context(caller_generators_restored())
        yield

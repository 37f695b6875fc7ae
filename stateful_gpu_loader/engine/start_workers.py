"""start_workers: starts the worker processes of several loaders before the GPU is first used."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader.engine.workers.choice import runs_in_processes
from stateful_gpu_loader.engine.workers.worker_start import method_of
from stateful_gpu_loader.errors import LoaderError


class HasPyWorkers(Protocol):
    """An object that starts worker processes itself: a ``DALILoader`` or a DALI pipeline."""

    def start_py_workers(self) -> None: ...


def start_workers(*loaders: StatefulDataLoader[Any] | HasPyWorkers) -> None:
    """Start the worker processes of the loaders' next passes.

    By default a loader starts them at its first ``next()``. Forked children cannot use a GPU driver
    that their parent has used. If your workers use the GPU, or a library that does, start the
    workers of all loaders first.

    Loaders whose workers are threads, or are started already, are left unchanged. No order is drawn
    and no generator is advanced.

    Args:
        loaders: any number of loaders, DALILoaders and DALI pipelines with parallel external
            sources. DALI's are started last.

    Raises:
        LoaderError: workers would be forked, and CUDA has been initialised in this process.
        WorkerLost: workers died while they started.

    >>> from stateful_gpu_loader import StatefulGPULoader
    >>> loader = StatefulGPULoader(range(4), num_workers=1)
    >>> start_workers(loader)
    >>> [int(batch) for batch in loader]
    [0, 1, 2, 3]
    """
    ours = [loader for loader in loaders if isinstance(loader, StatefulDataLoader)]
    if torch.cuda.is_initialized() and any(map(_would_fork, ours)):
        raise LoaderError(
            "start_workers() forks worker processes, but CUDA has already been initialised in this "
            "process. Remedy: call it before the first use of the GPU (model.cuda(), a batch of a "
            "loader with device='cuda'), or build the loaders with "
            "multiprocessing_context='forkserver' or 'spawn'"
        )
    for loader in ours:
        loader._engine.launch_workers()
    for other in loaders:
        if not isinstance(other, StatefulDataLoader):
            other.start_py_workers()


def _would_fork(loader: StatefulDataLoader[Any]) -> bool:
    engine = loader._engine
    waits = engine.workers.idle is not None
    if waits or not runs_in_processes(engine.plan):
        return False
    return method_of(loader.multiprocessing_context) == "fork"

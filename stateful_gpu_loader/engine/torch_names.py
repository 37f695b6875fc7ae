"""Private names of torch and of multiprocessing; this process's rank."""

from __future__ import annotations

import functools
import multiprocessing
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.autograd.profiler as torch_profiler
import torch.distributed
from torch._C import (
    _is_any_autocast_enabled,
    _len_torch_function_stack,
    _set_worker_signal_handlers,
)
from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils import pin_memory as torch_pin_memory
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.dataloader import _sharding_worker_init_fn

from stateful_gpu_loader.state.tensors import is_plain


def become_worker(worker: int, dataset: Any, *, num_workers: int, base_seed: int) -> None:
    """Make this process a worker of a loader, as torch's worker loop does.

    Args:
        worker: its number, which ``get_worker_info()`` returns.
        dataset: the dataset that ``get_worker_info().dataset`` returns.
    """
    seed = base_seed + worker
    # An inherited signal handler could ignore SIGTERM.
    _set_worker_signal_handlers()
    torch.set_num_threads(1)
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(torch_worker._generate_state(base_seed, worker))
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=worker, num_workers=num_workers, seed=seed, dataset=dataset
    )


def with_sharding(
    dataset: Any, worker_init_fn: Callable[[int], None] | None
) -> Callable[[int], None] | None:
    """Return a worker's initialising function, which divides torch's data pipes among workers."""
    if not isinstance(dataset, (IterDataPipe, MapDataPipe)):
        return worker_init_fn
    return functools.partial(_sharding_worker_init_fn, worker_init_fn, *size_and_rank())


def stack_into(allocate: Callable[[tuple[int, ...], torch.dtype], torch.Tensor]) -> None:
    """Let torch's default_collate, in this process, stack tensors into memory from ``allocate``.

    In a worker process it would otherwise make shared memory for each batch. A program's own
    function for tensors is kept.
    """
    default_stack: Callable[..., torch.Tensor] = torch_collate.collate_tensor_fn

    def stack(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
        first = batch[0]
        if type(first) is not torch.Tensor or not is_plain(first):
            return default_stack(batch, collate_fn_map=collate_fn_map)
        if any(tensor.dtype is not first.dtype for tensor in batch):
            return torch.stack(batch)  # finds a common dtype, as in the user's thread
        return torch.stack(batch, out=allocate((len(batch), *first.shape), first.dtype))

    functions: Any = torch_collate.default_collate_fn_map
    if functions.get(torch.Tensor) is default_stack:
        functions[torch.Tensor] = stack


def pin(batch: Any) -> Any:
    """Copy the batch's tensors to page-locked memory, as DataLoader's ``pin_memory`` does."""
    return torch_pin_memory.pin_memory(batch)


def is_profiling() -> bool:
    """Return whether one of torch's profilers is running in this process."""
    return torch_profiler._is_profiler_enabled


def has_modes() -> bool:
    """Return whether autocast or a torch function mode, such as a default device, is on.

    ``torch.get_default_device()`` takes 20 times as long.
    """
    return _is_any_autocast_enabled() or _len_torch_function_stack() > 0


def is_being_started() -> bool:
    """Return whether multiprocessing started this process, which is importing the main script."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def leave_to_the_parent(processes: Any) -> None:
    """Let a forked child forget its parent's processes, which multiprocessing would end at exit."""
    children: Any = multiprocessing.process
    children._children.difference_update(processes)


def size_and_rank(otherwise: tuple[int, int] = (1, 0)) -> tuple[int, int]:
    """Return world size and rank, or ``otherwise`` without a process group.

    >>> size_and_rank()
    (1, 0)
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size(), torch.distributed.get_rank()
    return otherwise

"""All private names of torch and of multiprocessing that this package uses; its rank in torch."""

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
    """Make this process a worker of a loader, as torch's own loop of a worker process begins.

    Args:
        worker: its number, which ``get_worker_info()`` gives.
        dataset: what ``get_worker_info().dataset`` gives.
    """
    seed = base_seed + worker
    # A handler that a forked worker has from the user's program would keep SIGTERM from ending it.
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
    """Return what initialises a worker; torch's data pipes are divided among the workers."""
    if not isinstance(dataset, (IterDataPipe, MapDataPipe)):
        return worker_init_fn
    return functools.partial(_sharding_worker_init_fn, worker_init_fn, *size_and_rank())


def stack_into(allocate: Callable[[tuple[int, ...], torch.dtype], torch.Tensor]) -> None:
    """Let torch's default_collate, in this process, stack tensors into memory of this kind.

    In a worker process it would otherwise make shared memory for each batch. A program that has
    registered a function of its own for tensors keeps it.
    """
    stack_anew: Callable[..., torch.Tensor] = torch_collate.collate_tensor_fn

    def stack(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
        first = batch[0]
        if type(first) is not torch.Tensor or not is_plain(first):
            return stack_anew(batch, collate_fn_map=collate_fn_map)
        if any(each.dtype is not first.dtype for each in batch):
            return torch.stack(batch)  # which finds a dtype for all, as in the user's own thread
        return torch.stack(batch, out=allocate((len(batch), *first.shape), first.dtype))

    functions: Any = torch_collate.default_collate_fn_map
    if functions.get(torch.Tensor) is stack_anew:
        functions[torch.Tensor] = stack


def pin(batch: Any) -> Any:
    """Copy the batch's tensors to page-locked memory, as DataLoader's ``pin_memory`` does."""
    return torch_pin_memory.pin_memory(batch)


def is_profiling() -> bool:
    """Return whether one of torch's profilers is running in this process."""
    return torch_profiler._is_profiler_enabled


def has_modes() -> bool:
    """Return whether autocast or a mode of torch's functions, as a default device is, is on.

    It takes a twentieth of the time of ``torch.get_default_device()``.
    """
    return _is_any_autocast_enabled() or _len_torch_function_stack() > 0


def is_being_started() -> bool:
    """Return whether this process was started by multiprocessing, and imports the main script."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def leave_to_the_parent(processes: Any) -> None:
    """Let a forked child forget its parent's processes, which multiprocessing would end at exit."""
    children: Any = multiprocessing.process
    children._children.difference_update(processes)


def size_and_rank(otherwise: tuple[int, int] = (1, 0)) -> tuple[int, int]:
    """World size and rank, or ``otherwise`` where there is no process group.

    >>> size_and_rank()
    (1, 0)
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size(), torch.distributed.get_rank()
    return otherwise

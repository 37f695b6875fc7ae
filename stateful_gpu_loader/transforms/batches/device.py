"""Work on the device of the images, without waiting for it.

The samples' numbers are on the CPU. One small copy on the device's stream brings them to the
images, so the host never waits.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray

Operation = Callable[[Tensor, Tensor, IndexArray], Tensor]
"""A function of m images [m, C, H, W], their parameters and their rows in the batch. Parameters are
float64 [m, 1, 1, 1] on the images' device, rows int64 [m] on the CPU. The images are not
changed."""

_logger = logging.getLogger(__name__)


def on_device(numbers: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to the device; on CUDA the copy is queued on the current stream.

    >>> import numpy as np
    >>> on_device(np.array([3, 1]), torch.device("cpu"))
    tensor([3, 1])
    """
    copied = torch.tensor(numbers)
    if device.type == "cpu":
        return copied
    if device.type == "cuda":
        # A copy from pageable memory would wait for the stream.
        copied = copied.pin_memory()
    return copied.to(device, non_blocking=True)


@functools.cache
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return constant numbers, [len(values)]; the host waits only for the first copy to a device.

    The process keeps the tensor, so any stream may read it. Never write to it.

    >>> constant((0.5, 0.25), torch.float32, torch.device("cpu"))
    tensor([0.5000, 0.2500])
    """
    with torch.inference_mode(False):  # the tensor is also used outside inference mode
        return torch.tensor(values, dtype=dtype).to(device)


def apply_by_group(
    images: Tensor,
    groups: IndexArray,
    operations: Mapping[int, Operation],
    parameters: npt.NDArray[np.float64] | None = None,
) -> Tensor:
    """Apply the operation of its group to each image, in one call per group.

    Args:
        images: [n, C, H, W]; they are not changed, the result may be a view of them.
        groups: int64 [n], on the CPU, so that nothing is read back from the device.
        operations: one for each group; all must give results of one size and dtype.
        parameters: float64 [n], one for each image; None for zeros.

    Raises:
        ValueError: the operations gave results of different sizes.

    >>> import torch
    >>> images = torch.tensor([1, 2, 3]).view(3, 1, 1, 1)
    >>> operations = {0: lambda chosen, add, rows: chosen, 1: lambda chosen, add, rows: -chosen}
    >>> apply_by_group(images, np.array([1, 0, 1]), operations).flatten()
    tensor([-1,  2, -3])
    """
    order = np.argsort(groups, kind="stable")
    present, starts = np.unique(groups[order], return_index=True)
    if not len(present):
        return images
    if len(present) == 1 and parameters is None:
        zeros = images.new_zeros((len(order), 1, 1, 1), dtype=torch.float64)
        return operations[int(present[0])](images, zeros, order)
    in_order = np.zeros(len(order)) if parameters is None else parameters[order]
    packed = on_device(np.stack((order, in_order)), images.device)
    places, numbers = packed[0].to(torch.int64), packed[1].view(-1, 1, 1, 1)
    if len(present) == 1:
        return operations[int(present[0])](images, numbers, order)
    ends = [*starts[1:].tolist(), len(groups)]
    made = []
    for group, start, end in zip(present.tolist(), starts.tolist(), ends, strict=True):
        chosen, part = places[start:end], slice(start, end)
        result = operations[group](images.index_select(0, chosen), numbers[part], order[part])
        made.append((chosen, result))
    first = made[0][1]
    results = first.new_empty(len(groups), *first.shape[1:])
    for chosen, result in made:
        if result.shape[1:] != results.shape[1:]:
            raise ValueError(
                f"a batch would have images of {list(results.shape[1:])} and of "
                f"{list(result.shape[1:])}. Remedy: put a recipe that makes one size, such as "
                "Resize, after the one that does not"
            )
        results.index_copy_(0, chosen, result)
    return results


def kernels_that_run(try_out: Callable[[], ModuleType], instead: str) -> ModuleType | None:
    """Return the kernels that ``try_out`` imports and launches; None, with a warning, on failure.

    Triton fails without a C compiler.

    Args:
        try_out: imports a module of kernels, launches them once and returns it.
        instead: the slower alternative, for the warning.

    Raises:
        torch.OutOfMemoryError: memory has run out; load must not decide which code runs.
    """
    try:
        return try_out()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        _logger.warning("triton does not run here, so %s, slower: %s", instead, error)
        return None

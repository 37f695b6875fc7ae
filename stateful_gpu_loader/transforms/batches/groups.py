"""A batch in groups: images that get the same operation get it in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.batches.device_numbers import on_device

Operation = Callable[[Tensor, IndexArray], Tensor]
"""Of m images [m, C, H, W] and their rows in the batch, int64 [m]; it leaves them as they are."""


def apply_by_group(
    images: Tensor, groups: IndexArray, operations: Mapping[int, Operation]
) -> Tensor:
    """Apply to each image its group's operation, as many calls as there are groups.

    Args:
        images: [n, C, H, W], n > 0; they stay as they are, the result may be a view of them.
        groups: int64 [n], known on the CPU, so that nothing is read back from the device.
        operations: one for each group; all that are called give results of one size and dtype.

    Raises:
        ValueError: the operations gave results of several sizes.

    >>> import torch
    >>> images = torch.tensor([1, 2, 3]).view(3, 1, 1, 1)
    >>> operations = {0: lambda chosen, rows: chosen, 1: lambda chosen, rows: -chosen}
    >>> apply_by_group(images, np.array([1, 0, 1]), operations).flatten()
    tensor([-1,  2, -3])
    """
    order = np.argsort(groups, kind="stable")
    present, starts = np.unique(groups[order], return_index=True)
    if len(present) == 1:
        return operations[int(present[0])](images, order)
    order_there = on_device(order, images.device)
    ends = [*starts[1:].tolist(), len(groups)]
    made = []
    for group, start, end in zip(present.tolist(), starts.tolist(), ends, strict=True):
        chosen = order_there[start:end]
        result = operations[group](images.index_select(0, chosen), order[start:end])
        made.append((chosen, result))
    first = made[0][1]
    results = first.new_empty(len(groups), *first.shape[1:])
    for chosen, result in made:
        if result.shape[1:] != results.shape[1:]:
            raise ValueError(
                f"a batch would have images of {list(results.shape[1:])} and of "
                f"{list(result.shape[1:])}. Remedy: put a recipe that makes one size, such as "
                "Resize, behind the one that does not"
            )
        results.index_copy_(0, chosen, result)
    return results

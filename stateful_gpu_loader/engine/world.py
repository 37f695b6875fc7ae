"""World size and rank of this process in torch.distributed."""

from __future__ import annotations

import torch.distributed


def size_and_rank(otherwise: tuple[int, int] = (1, 0)) -> tuple[int, int]:
    """World size and rank, or ``otherwise`` where there is no process group.

    >>> size_and_rank()
    (1, 0)
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size(), torch.distributed.get_rank()
    return otherwise

"""How many processes torch.distributed has joined, and which one this is."""

from __future__ import annotations

import torch.distributed


def size_and_rank() -> tuple[int, int]:
    """World size and rank; (1, 0) before ``init_process_group`` and without it.

    >>> size_and_rank()
    (1, 0)
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size(), torch.distributed.get_rank()
    return 1, 0

"""A pass that is left in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stateful_gpu_loader import StatefulGPULoader


def interrupted(
    loader: StatefulGPULoader[Any], delivered: int = 1
) -> tuple[dict[str, Any], Iterator[Any]]:
    """Return the state after some batches, and the iterator, which delivers the rest."""
    batches = iter(loader)
    for _ in range(delivered):
        next(batches)
    return loader.state_dict(), batches

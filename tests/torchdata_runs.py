"""Passes of torchdata's loader: their states and batches."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch

Batches = list[list[int]]


def plain(batch: Any) -> list[int]:
    indices: list[int] = torch.as_tensor(batch).reshape(-1).tolist()
    return indices


def torchdata_run(loader: Any) -> tuple[list[dict[str, Any]], Batches]:
    """Return one pass: states before the first batch, after each batch and after StopIteration."""
    loader.state_dict()  # makes the iterator
    iterator = iter(loader)
    states, batches = [copy.deepcopy(loader.state_dict())], []
    for batch in iterator:
        batches.append(plain(batch))
        states.append(copy.deepcopy(loader.state_dict()))
    states.append(copy.deepcopy(loader.state_dict()))
    return states, batches


def through_torch(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state as another process reads it from a checkpoint."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    restored: dict[str, Any] = torch.load(file, weights_only=False)
    return restored

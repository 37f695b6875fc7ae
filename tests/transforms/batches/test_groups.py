"""Groups of a batch: one call for each, and every result in its place."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from stateful_gpu_loader.transforms.batches.device import apply_by_group

IMAGES = torch.arange(6).view(6, 1, 1, 1)


def test_each_image_gets_its_groups_operation_in_one_call() -> None:
    calls = []

    def times(factor: int, chosen: Tensor, added: Tensor, rows: np.ndarray) -> Tensor:
        calls.append((factor, rows.tolist()))
        assert chosen.flatten().tolist() == rows.tolist()
        return chosen * factor + added

    operations = {group: partial(times, group) for group in (-1, 2, 3)}
    groups, parameters = np.array([2, -1, 2, -1, 2, 2]), np.arange(6) / 10
    made = apply_by_group(IMAGES, groups, operations, parameters)
    assert made.flatten().tolist() == pytest.approx([0, -0.9, 4.2, -2.7, 8.4, 10.5])
    assert calls == [(-1, [1, 3]), (2, [0, 2, 4, 5])]


def test_dtype_and_size_are_those_of_the_results() -> None:
    """One group is not copied; results of several sizes are refused."""
    assert apply_by_group(IMAGES, np.full(6, 5), {5: lambda chosen, _, rows: chosen}) is IMAGES
    groups = np.array([0, 1, 0, 1, 1, 0])
    operations = {
        0: lambda chosen, _, rows: chosen.float().expand(-1, -1, 2, 2),
        1: lambda chosen, _, rows: torch.zeros(len(rows), 1, 2, 2),
    }
    made = apply_by_group(IMAGES, groups, operations)
    assert made.dtype is torch.float32
    assert made[:, 0, 1, 1].tolist() == [0, 0, 2, 0, 0, 5]
    operations[1] = lambda chosen, _, rows: chosen.repeat(1, 1, 2, 1)
    with pytest.raises(ValueError, match=r"\[1, 2, 2\] and of \[1, 2, 1\]"):
        apply_by_group(IMAGES, groups, operations)

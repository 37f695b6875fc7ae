"""A StopIteration out of the user's code is an error of one batch, not the epoch's end (G3)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stateful_gpu_loader import StatefulGPULoader
from tests.map_datasets import Indices


class StopsAt(Indices):
    """Raises what ends iterators, where a sample is asked for."""

    def __getitem__(self, index: int) -> int:
        return stop_at_five(super().__getitem__(index))


def stop_at_five(value: Any) -> Any:
    if 5 in torch.as_tensor(value):
        raise StopIteration
    return value


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "arguments",
    [
        {"dataset": StopsAt(8)},
        {"transform": stop_at_five},
        {"collate_fn": stop_at_five},
        {"batch_transform": stop_at_five},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_a_stop_iteration_of_the_users_ends_no_epoch(
    arguments: dict[str, Any], num_workers: int
) -> None:
    """G3: in silence the rest of the epoch would be missing."""
    given = {"dataset": Indices(8), "batch_size": 2, "num_workers": num_workers, **arguments}
    batches = iter(StatefulGPULoader(**given))
    assert indices([next(batches), next(batches)]) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="StopIteration was raised where a batch was made"):
        next(batches)
    assert indices(batches) == [6, 7]


def indices(batches: Any) -> list[int]:
    return [int(index) for batch in batches for index in batch]

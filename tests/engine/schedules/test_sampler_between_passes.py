"""States contain settings that the user gives a sampler between two passes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DistributedSampler, Sampler

from stateful_gpu_loader import StatefulGPULoader
from tests.map_datasets import Indices

N = 20


class Counting(Sampler[int]):
    """Its state is its progress, without the epoch that decides its order."""

    def __init__(self) -> None:
        self.epoch = self.given = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = random.Random(self.epoch).sample(range(N), N)
        while self.given < N:
            self.given += 1
            yield order[self.given - 1]
        self.given = 0

    def __len__(self) -> int:
        return N

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


SAMPLERS: dict[str, Any] = {
    "with state": Counting,
    "distributed": lambda: DistributedSampler(Indices(N), 1, 0),
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("given", [{}, {"num_workers": 1, "snapshot_every_n_steps": 4}])
def test_an_epoch_that_is_set_between_two_passes_is_in_their_states(
    name: str, given: dict[str, Any]
) -> None:
    """Before the pass begins, before its first snapshot, and after the snapshot."""

    def make() -> StatefulGPULoader[Any]:
        sampler = SAMPLERS[name]()
        return StatefulGPULoader(Indices(N), batch_size=2, sampler=sampler, seed=1, **given)

    loader = make()
    first = [batch.tolist() for batch in loader]
    loader.set_epoch(7)
    states, batches = [loader.state_dict()], []
    for batch in loader:
        batches.append(batch.tolist())
        states.append(loader.state_dict())
    assert batches != first
    for delivered in (0, 1, 2, 7):
        resumed = make()
        resumed.load_state_dict(states[delivered])
        assert [batch.tolist() for batch in resumed] == batches[delivered:], delivered

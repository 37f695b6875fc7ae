"""``get_worker_info().seed``: a function of the loader's seed, the epoch and the worker."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset, get_worker_info

from stateful_gpu_loader import StatefulGPULoader
from tests.conformance import through_json
from tests.fake_cluster import FakeWorkers
from tests.map_datasets import Indices

pytestmark = pytest.mark.filterwarnings("ignore:.*are read again")


class Resampled(IterableDataset[Any]):
    """Draws shards by the worker's seed, as OpenCLIP's ``ResampledShards2(deterministic=True)``."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        generator = random.Random(11 if worker is None else worker.seed)
        for _ in range(self.length):
            yield generator.randrange(10**6)


def loader_of(**arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(Resampled(12), batch_size=3, seed=5, **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 2, "worker_type": FakeWorkers()},
    ],
    ids=["inline", "processes", "persistent", "remote"],
)
def test_an_iterable_that_seeds_by_it_resumes_anywhere(arguments: dict[str, Any]) -> None:
    """A14, A5: at several places of two epochs, and in the following epoch."""
    loader = loader_of(**arguments)
    epochs: list[list[Any]] = []
    states: list[tuple[int, int, Any]] = []
    for epoch in range(3):
        epochs.append([])
        for step, batch in enumerate(loader):
            epochs[epoch].append(batch.tolist())
            if (epoch, step) in {(0, 0), (0, 5), (1, 3)}:
                states.append((epoch, step + 1, loader.state_dict()))
    for epoch, step, state in states:
        resumed = loader_of(**arguments)
        resumed.load_state_dict(through_json(state))
        assert [batch.tolist() for batch in resumed] == epochs[epoch][step:]
        assert [batch.tolist() for batch in resumed] == epochs[epoch + 1]
    if arguments:
        assert epochs[0] != epochs[1]


class Seeds(Indices):
    """Each sample is the seed of the worker that makes it."""

    def __getitem__(self, index: int) -> int:
        worker: Any = get_worker_info()  # an assert would lead the search for generators to pytest
        return int(worker.seed)


def test_it_is_the_same_from_every_place_and_another_in_every_epoch_and_worker() -> None:
    """A5: for map-style datasets, too."""

    def make_loader() -> StatefulGPULoader[Any]:
        return StatefulGPULoader(
            Seeds(4), batch_size=None, num_workers=2, seed=5, persistent_workers=True
        )

    loader = make_loader()
    batches = iter(loader)
    first = [int(next(batches)), int(next(batches))]
    state = loader.state_dict()
    assert [int(seed) for seed in batches] == first
    second = [int(seed) for seed in loader]
    assert len({*first, *second}) == 4
    resumed = make_loader()
    resumed.load_state_dict(state)
    assert [int(seed) for seed in resumed] == first
    assert [int(seed) for seed in resumed] == second

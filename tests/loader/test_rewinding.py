"""A used loader, with user objects, returns to any of its states as a fresh one would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, RandomSampler
from torchdata.nodes import Loader, SamplerWrapper

from stateful_gpu_loader import StatefulGPULoader
from tests.conformance import copy_of, loaded, refusal, same
from tests.map_datasets import Failing
from tests.user_objects import InBatches

EPOCHS = 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_epochs_after_a_resume_of_hugging_faces_dataset_are_complete(num_workers: int) -> None:
    """Hugging Face's IterableDataset keeps its loaded state (issue 7447 there)."""
    import datasets

    def make() -> StatefulGPULoader[Any]:
        rows = datasets.Dataset.from_dict({"row": list(range(24))})
        return StatefulGPULoader(
            rows.to_iterable_dataset(num_shards=4).with_format("torch"),
            batch_size=3,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
        )

    reference = make()
    expected = [[copy_of(batch) for batch in reference] for _ in range(EPOCHS)]
    assert [len(epoch) for epoch in expected] == [8, 8, 8]
    loader = make()
    start, batches = loader.state_dict(), iter(loader)
    for _ in range(5):
        next(batches)
    middle = loader.state_dict()
    assert len(list(batches)) == 3
    for delivered, state in ((5, middle), (0, start), (5, middle)):
        for resumed in (loader, make()):
            resumed.load_state_dict(state)
            found = [[copy_of(batch) for batch in resumed] for _ in range(EPOCHS)]
            assert same(found, [expected[0][delivered:], *expected[1:]]), (delivered, found)


class Unknown(Dataset[int]):
    """Has a state only after a read."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        self.reads = getattr(self, "reads", 0) + 1
        return index * 10 + self.reads

    def state_dict(self) -> dict[str, Any]:
        return {"reads": self.reads}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.reads = state_dict["reads"]


class OneWay(IterableDataset[int]):
    """Its own iterator, without state."""

    def __init__(self) -> None:
        self.i = 0

    def __iter__(self) -> OneWay:
        return self

    def __next__(self) -> int:
        self.i += 1
        return self.i


@pytest.mark.parametrize("dataset", [Unknown, OneWay])
def test_a_dataset_that_cannot_be_rewound_refuses_a_load(dataset: Any) -> None:
    """The error names the dataset, and nothing changes."""
    loader = StatefulGPULoader(dataset(), batch_size=1)
    start = loader.state_dict()
    batches = iter(loader)
    first = int(next(batches))
    assert dataset.__name__ in str(refusal(loader, start, "dataset's state"))
    assert int(next(batches)) != first


@pytest.mark.parametrize("own_class", [True, False])
@pytest.mark.parametrize("has_generator", [True, False])
def test_batches_ago_does_not_count_failed_batches(own_class: bool, has_generator: bool) -> None:
    """``batches_ago`` counts delivered batches, also under a user's batch sampler."""
    dataset = Failing(16, {3, 11})

    def make() -> StatefulGPULoader[Any]:
        generator = torch.Generator().manual_seed(9) if has_generator else None
        sampler = RandomSampler(dataset, generator=generator)
        batches: Any = InBatches(sampler, (1,)) if own_class else BatchSampler(sampler, 1, True)
        return StatefulGPULoader(dataset, batch_sampler=batches, seed=5)

    def rest(batches: Iterator[Any]) -> list[int]:
        found = []
        while True:
            try:
                found.append(int(next(batches)))
            except StopIteration:
                return found
            except KeyError:
                continue

    expected = rest(iter(make()))
    assert len(expected) == 14
    for stop in (1, 3, 8, 14):
        for ago in {0, 1, stop - 1} & {*range(stop)}:
            loader = make()
            batches, delivered = iter(loader), 0
            while delivered < stop:
                try:
                    next(batches)
                except KeyError:
                    continue
                delivered += 1
            resumed = loaded(make(), loader.state_dict(batches_ago=ago))
            assert rest(iter(resumed)) == expected[stop - ago :], (stop, ago)


class Interrupting(IterableDataset[int]):
    """Has a state, and is interrupted once during a read."""

    def __init__(self, at: int) -> None:
        self.i, self.at = 0, at

    def __iter__(self) -> Iterator[int]:
        while self.i < 12:
            self.i += 1
            if self.i == self.at:
                self.at = 0
                raise KeyboardInterrupt
            yield self.i
        self.i = 0

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.i = state_dict["i"]


@pytest.mark.parametrize("at", [1, 3, 6, 11])
@pytest.mark.parametrize("goes_on_with", ["the iterator", "a new iterator", "a new loader"])
def test_an_interrupt_in_a_batch_loses_no_sample(at: int, goes_on_with: str) -> None:
    """The samples that were read for it come again."""
    loader = StatefulGPULoader(Interrupting(at), batch_size=4)
    batches, delivered = iter(loader), []
    with pytest.raises(KeyboardInterrupt):
        delivered.extend(batch.tolist() for batch in batches)
    if goes_on_with == "a new iterator":
        if delivered:
            return  # after a break: another pass
        batches = iter(loader)
    if goes_on_with == "a new loader":
        state = loader.state_dict()
        loader = loaded(StatefulGPULoader(Interrupting(0), batch_size=4), state)
        batches = iter(loader)
    delivered += [batch.tolist() for batch in batches]
    assert delivered == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]


def test_nodes_of_torchdata_that_were_asked_for_their_state_take_a_load() -> None:
    """torch.distributed.checkpoint asks a loader for its state before it loads one."""

    class Graph(IterableDataset[int]):
        def __init__(self) -> None:
            self.nodes = Loader(SamplerWrapper(range(8)))

        def __iter__(self) -> Iterator[int]:
            return iter(self.nodes)

        def state_dict(self) -> dict[str, Any]:
            return self.nodes.state_dict()

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.nodes.load_state_dict(state_dict)

    loader = StatefulGPULoader(Graph(), batch_size=2)
    batches = iter(loader)
    next(batches)
    resumed = StatefulGPULoader(Graph(), batch_size=2)
    resumed.state_dict()
    resumed.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in resumed] == [[2, 3], [4, 5], [6, 7]]


def test_a_rest_of_only_failed_batches_is_not_empty() -> None:
    """``on_epoch_boundary="next_epoch"``: the pass that raised ends before the next one."""

    def make() -> StatefulGPULoader[Any]:
        dataset = Failing(4, {2, 3})
        return StatefulGPULoader(dataset, batch_size=2, on_epoch_boundary="next_epoch")

    loader = make()
    next(iter(loader))
    resumed = loaded(make(), loader.state_dict())
    batches = iter(resumed)
    with pytest.raises(KeyError, match="no sample 2"):
        next(batches)
    assert next(batches, None) is None

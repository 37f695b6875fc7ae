"""``from_dataloader`` keeps the order: its samplers, batch samplers and batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader import sampler as torchdata

from stateful_gpu_loader import StatefulGPULoader
from tests.conformance import same
from tests.loader.test_from_dataloader import TRAINING, N, cifar, convert, labels_of


def samplers(dataset: Any) -> Iterator[Any]:
    yield WeightedRandomSampler([1.0] * N, N)
    yield RandomSampler(dataset, replacement=True)
    yield RandomSampler(dataset, num_samples=5)
    yield RandomSampler(dataset, generator=torch.Generator())
    yield DistributedSampler(dataset, num_replicas=2, rank=1, seed=4)
    yield [3, 1, 2]


def test_samplers_are_carried_over() -> None:
    for sampler in samplers(cifar()):
        assert convert(DataLoader(cifar(), 4, sampler=sampler)).sampler is sampler
    batches = BatchSampler(SequentialSampler(cifar()), 5, False)
    made = convert(DataLoader(cifar(), batch_sampler=batches))
    assert made.batch_sampler is batches
    assert [len(targets) for _, targets in made] == [5, 5, 2]


def test_a_changed_batch_size_leaves_the_order_alone() -> None:
    for changes in ({"batch_size": 6}, {"drop_last": True}):
        made = convert(DataLoader(cifar(), 5, shuffle=True, drop_last=True), seed=3, **changes)
        assert (made.shuffle, made.drop_last) == (True, True)
        made = convert(DataLoader(cifar(), 5, sampler=[3, 1, 2]), **changes)
        assert made.sampler == [3, 1, 2]
    batches = BatchSampler(SequentialSampler(cifar()), 5, False)
    assert convert(DataLoader(cifar(), 5), batch_sampler=batches).batch_sampler is batches
    assert labels_of(convert(DataLoader(cifar(), 5), sampler=[3, 1, 2])) == [[3, 1, 2]]
    with pytest.raises(ValueError, match="batch_sampler"):
        convert(DataLoader(cifar(), batch_sampler=batches), shuffle=True)


@pytest.mark.parametrize("kind", [SequentialSampler, RandomSampler])
def test_a_sampler_of_a_part_of_the_dataset_is_carried_over(kind: Any) -> None:
    sampler = kind(range(5))
    made = convert(DataLoader(cifar(), 2, sampler=sampler))
    assert made.sampler is sampler
    assert sorted(label for labels in labels_of(made) for label in labels) == [0, 1, 2, 3, 4]


def torchdatas(**arguments: Any) -> StatefulDataLoader[Any]:
    torch.manual_seed(3)
    return StatefulDataLoader(cifar(TRAINING), 5, **arguments)


def test_a_shuffled_loader_of_torchdata_has_this_classs_order() -> None:
    """So it resumes in constant time, and its batch size and ranks may change."""
    made = convert(torchdatas(shuffle=True), batch_size=4, num_replicas=2, rank=0)
    assert (made.shuffle, made.batch_size, len(made)) == (True, 4, 2)
    assert same(list(convert(torchdatas(shuffle=True))), list(convert(torchdatas(shuffle=True))))
    assert convert(torchdatas(), batch_size=4).batch_size == 4

    given = torchdatas(shuffle=True)
    state = next_state(given)
    resumed = convert(torchdatas(shuffle=True))
    resumed.load_state_dict(state)
    assert labels_of(resumed) == labels_of(given)

    own = torchdata.RandomSampler(cifar(), num_samples=5)
    assert convert(torchdatas(sampler=own)).sampler is own
    own = torchdata.RandomSampler(cifar())
    assert convert(torchdatas(sampler=own, generator=torch.Generator())).sampler is own


def next_state(loader: StatefulDataLoader[Any]) -> dict[str, Any]:
    """Return the state after a batch, in which the loader resumes, too."""
    next(iter(loader))
    state: dict[str, Any] = loader.state_dict()
    loader.load_state_dict(state)
    return state


def with_batches(change: Callable[[Any], None]) -> DataLoader[Any]:
    loader = DataLoader(cifar(), batch_size=5)
    change(loader)
    return loader


def put(name: str, value: Any) -> Callable[[Any], None]:
    """Return a function that sets an attribute of a loader's batch sampler."""
    return lambda loader: setattr(loader.batch_sampler, name, value)


CHANGED_BATCHES: dict[str, Callable[[Any], None]] = {
    "batch size": put("batch_size", 4),
    "drop last": put("drop_last", True),
    "sampler": put("sampler", [3, 1, 4, 1, 5, 9, 2]),
    "all": lambda loader: object.__setattr__(
        loader, "batch_sampler", BatchSampler([3, 1, 4], 2, drop_last=False)
    ),
}


@pytest.mark.parametrize("name", CHANGED_BATCHES)
def test_a_batch_sampler_that_was_changed_decides_the_batches(name: str) -> None:
    theirs = with_batches(CHANGED_BATCHES[name])
    assert [targets.tolist() for _, targets in convert(theirs)] == [
        targets.tolist() for _, targets in theirs
    ]


def test_a_sampler_put_into_a_shuffled_loader_of_this_class_stays() -> None:
    given = StatefulGPULoader(cifar(), batch_size=2, shuffle=True, seed=3)
    object.__setattr__(given, "batch_sampler", BatchSampler([3, 1, 4], 2, drop_last=False))
    assert [targets.tolist() for _, targets in convert(given)] == [[3, 1], [4]]

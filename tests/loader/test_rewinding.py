"""A used loader goes back to any of its states as a fresh one would, user objects included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, RandomSampler
from torchdata.nodes import Loader, SamplerWrapper

from stateful_gpu_loader import CallableSource, StatefulGPULoader, StateMismatch
from tests.conformance import copy_of, same
from tests.user_objects import OwnIterator, StatefulDataset, StatefulIterable, StatefulSampler

EPOCHS = 3


class Endless(Iterator[int]):
    """Its own iterator: it never begins anew by itself, and its passes are as long as it says."""

    def __init__(self, length: int = 7) -> None:
        self.i, self.length = 0, length

    def __next__(self) -> int:
        self.i += 1
        if self.i % self.length == 0:
            raise StopIteration
        return self.i

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.i = state_dict["i"]


class Exhausted(Endless):
    """Has one pass, and nothing after it."""

    def __next__(self) -> int:
        if self.i == self.length:
            raise StopIteration
        self.i += 1
        return self.i


class KeepsWhatItLoaded(IterableDataset[int]):
    """As Hugging Face's IterableDataset: each pass begins from the loaded place (issue 7447)."""

    def __init__(self, length: int = 9) -> None:
        self.length = length
        self._starting_state_dict: dict[str, Any] | None = None
        self._state_dict: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[int]:
        start = self._starting_state_dict or {"i": 0}
        for i in range(start["i"], self.length):
            self._state_dict = {"i": i + 1}
            yield i

    def state_dict(self) -> dict[str, Any] | None:
        return self._state_dict

    def load_state_dict(self, state_dict: dict[str, Any] | None) -> None:
        self._starting_state_dict = state_dict


def with_state(**arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(StatefulDataset(9), shuffle=True, **arguments)


def with_stateful_sampler(**arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(StatefulDataset(9), sampler=StatefulSampler(9), **arguments)


KINDS: dict[str, Callable[..., StatefulGPULoader[Any]]] = {
    "an iterator in a CallableSource": lambda **a: StatefulGPULoader(
        CallableSource(Endless()), **a
    ),
    "one that ends": lambda **a: StatefulGPULoader(CallableSource(Exhausted()), **a),
    "an iterable that is its own iterator": lambda **a: StatefulGPULoader(OwnIterator([9]), **a),
    "an iterable with state": lambda **a: StatefulGPULoader(StatefulIterable([9]), **a),
    "an iterable that keeps what it loaded": lambda **a: StatefulGPULoader(
        KeepsWhatItLoaded(), **a
    ),
    "a map-style dataset": with_state,
    "a map-style dataset and a sampler": with_stateful_sampler,
}


def lives(make: Callable[[], StatefulGPULoader[Any]]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Every state of ``EPOCHS`` - 1 epochs, and the batch of the epoch that comes next."""
    loader = make()
    for epoch in range(EPOCHS - 1):
        yield epoch, 0, loader.state_dict()
        for delivered, _ in enumerate(loader, 1):
            yield epoch, delivered, loader.state_dict()
            for ago in {1, delivered}:
                yield epoch, delivered - ago, loader.state_dict(batches_ago=ago)


def assert_goes_back(make: Callable[[], StatefulGPULoader[Any]]) -> None:
    """From every state, in a loader that was used further in the meantime, and in a fresh one."""
    undisturbed = make()
    expected = [[copy_of(batch) for batch in undisturbed] for _ in range(EPOCHS)]
    for epoch, delivered, state in lives(make):
        used = make()
        for batches in (iter(used), iter(used)):
            next(batches, None)
            next(batches, None)
        for loader in (used, make(), used):
            loader.load_state_dict(state)
            for number in range(epoch, EPOCHS):
                wanted = expected[number][delivered if number == epoch else 0 :]
                found = [copy_of(batch) for batch in loader]
                assert same(found, wanted), (epoch, delivered, number, found, wanted)


@pytest.mark.parametrize("batch_size", [2, None])
@pytest.mark.parametrize("kind", KINDS)
def test_a_used_loader_goes_back_to_every_state(kind: str, batch_size: int | None) -> None:
    """Places before the first batch, between epochs and batches ago among them."""
    assert_goes_back(lambda: KINDS[kind](batch_size=batch_size, seed=3))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_epochs_behind_a_resume_of_hugging_faces_dataset_are_whole(num_workers: int) -> None:
    """Their IterableDataset keeps what it loaded (issue 7447 there)."""
    import datasets

    def make() -> StatefulGPULoader[Any]:
        rows = datasets.Dataset.from_dict({"row": list(range(24))})
        return StatefulGPULoader(
            rows.to_iterable_dataset(num_shards=4).with_format("torch"),
            batch_size=3,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
        )

    undisturbed = make()
    expected = [[copy_of(batch) for batch in undisturbed] for _ in range(EPOCHS)]
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


@pytest.mark.processes
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("kind", [*KINDS][:-1])
def test_with_workers_too(kind: str, persistent: bool) -> None:
    """Each pass, or each load, has workers with objects of their own."""
    arguments = {"num_workers": 1, "persistent_workers": persistent}
    make = KINDS[kind]
    undisturbed = make(batch_size=2, seed=3, **arguments)
    start = undisturbed.state_dict()
    expected = [[copy_of(batch) for batch in undisturbed] for _ in range(2)]
    between = undisturbed.state_dict()
    expected.append([copy_of(batch) for batch in undisturbed])
    for state, wanted in ((between, expected[2:]), (start, expected)):
        undisturbed.load_state_dict(state)
        for epoch in wanted:
            assert same([copy_of(batch) for batch in undisturbed], epoch)


class Unknown(Dataset[int]):
    """Has a state only once something was read."""

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
def test_where_nobody_knows_the_way_back_the_load_is_refused(dataset: Any) -> None:
    """By the dataset's name, and nothing has changed."""
    loader = StatefulGPULoader(dataset(), batch_size=1)
    start = loader.state_dict()
    batches = iter(loader)
    first = int(next(batches))
    with pytest.raises(StateMismatch, match=f"dataset's state differs.*{dataset.__name__}"):
        loader.load_state_dict(start)
    assert int(next(batches)) != first


@pytest.mark.parametrize("own_class", [True, False])
@pytest.mark.parametrize("has_generator", [True, False])
def test_a_failed_batch_is_no_batch_ago(own_class: bool, has_generator: bool) -> None:
    """``batches_ago`` counts what was delivered, under a batch sampler of the user's, too."""

    class Fails(Dataset[int]):
        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> int:
            if index in (3, 11):
                raise RuntimeError(f"sample {index}")
            return index

    def make() -> StatefulGPULoader[Any]:
        generator = torch.Generator().manual_seed(9) if has_generator else None
        batches: Any = BatchSampler(RandomSampler(Fails(), generator=generator), 1, drop_last=True)
        if own_class:
            batches = Wrapped(batches)
        return StatefulGPULoader(Fails(), batch_sampler=batches, seed=5)

    def rest(batches: Iterator[Any]) -> list[int]:
        found = []
        while True:
            try:
                found.append(int(next(batches)))
            except StopIteration:
                return found
            except RuntimeError:
                continue

    expected = rest(iter(make()))
    assert len(expected) == 14
    for stop in range(1, 15):
        for ago in range(stop):
            loader = make()
            batches, delivered = iter(loader), 0
            while delivered < stop:
                try:
                    next(batches)
                except RuntimeError:
                    continue
                delivered += 1
            resumed = make()
            resumed.load_state_dict(loader.state_dict(batches_ago=ago))
            assert rest(iter(resumed)) == expected[stop - ago :], (stop, ago)


class Wrapped:
    """A batch sampler that is not torch's own."""

    def __init__(self, batches: BatchSampler) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class Interrupting(IterableDataset[int]):
    """Has a state, and is interrupted once while it is read."""

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
        loader = StatefulGPULoader(Interrupting(0), batch_size=4)
        loader.load_state_dict(state)
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


def test_a_rest_of_failed_batches_is_not_empty() -> None:
    """``on_epoch_boundary="next_epoch"``: the pass that raised them ends before the next one."""

    class Fails(Dataset[int]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            if index > 1:
                raise RuntimeError(f"sample {index}")
            return index

    def make() -> StatefulGPULoader[Any]:
        return StatefulGPULoader(Fails(), batch_size=2, on_epoch_boundary="next_epoch")

    loader = make()
    next(iter(loader))
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    batches = iter(resumed)
    with pytest.raises(RuntimeError, match="sample 2"):
        next(batches)
    assert next(batches, None) is None

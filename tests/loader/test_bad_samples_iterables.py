"""Bad samples of iterable datasets: dropped, recorded, and dropped again after a resume."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from stateful_gpu_loader import BadSample, StatefulGPULoader
from stateful_gpu_loader.engine.makers.bad_sample_policy import MAX_BAD_IN_A_ROW
from tests.conformance import loaded
from tests.stream_kinds import LOADERS
from tests.user_objects import BAD, IterableWithBrokenIterator, PlainIterable

UNEVEN = [5, 17, 9, 0, 6]
"""37 samples; with two workers 20 and 17."""
Loader = StatefulGPULoader[Any]
pytestmark = pytest.mark.filterwarnings("ignore:.*samples of the iterable dataset are read again")


def make(dataset: Any, **arguments: Any) -> Loader:
    return StatefulGPULoader(
        dataset(UNEVEN) if isinstance(dataset, type) else dataset,
        **{"batch_size": 4, "seed": 3, "on_bad_sample": "drop", **arguments},
    )


@pytest.mark.parametrize("name", ["broken iterator", "broken iterable"])
def test_batches_are_filled_with_the_next_samples(name: str) -> None:
    """An epoch has fewer samples, but its batches are full."""
    loader = LOADERS[name]()
    indices = [batch[0].tolist() for batch in loader]
    assert sorted(itertools.chain(*indices)) == sorted(set(range(37)) - BAD)
    assert [*map(len, indices)] == [4] * 8


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_record_has_the_number_within_the_worker(num_workers: int) -> None:
    """In delivery order, with each worker's own numbers."""
    loader = make(IterableWithBrokenIterator, num_workers=num_workers)
    list(loader)
    found = {(bad.index, bad.position, bad.epoch, bad.reason) for bad in loader.bad_samples.samples}
    parts = [list(range(37))]
    if num_workers:
        parts = [[*range(5), *range(22, 31), *range(31, 37)], list(range(5, 22))]
    wanted = set()
    for worker, part in enumerate(parts):
        for number, index in enumerate(part):
            if index in BAD:
                name = f"sample {number} of worker {worker}" if num_workers else f"sample {number}"
                position = worker + len(parts) * number
                wanted.add((name, position, 0, f"ValueError: no label {index}"))
    assert found == wanted
    assert loader.bad_samples.total == len(BAD)
    assert loader.bad_samples.known == {}


# Errors that cannot be dropped.


class Yielding(IterableDataset[int]):
    """Its iterator, a generator or ``map`` over a generator, is finished once it has raised."""

    def __init__(self, wrap: Any) -> None:
        self.wrap = wrap

    def __iter__(self) -> Any:
        return self.wrap(self.numbers())

    def numbers(self) -> Iterator[int]:
        yield from range(5)
        raise ValueError("the archive is damaged")


@pytest.mark.parametrize("wrap", [iter, partial(map, abs)], ids=["generator", "map"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_iterator_that_its_exception_ended_is_not_dropped(wrap: Any, num_workers: int) -> None:
    """Dropping the sample would silently lose the rest of the epoch."""
    loader = make(Yielding(wrap), batch_size=2, num_workers=num_workers)
    batches = iter(loader)
    assert [next(batches).tolist(), next(batches).tolist()] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="the archive is damaged"):
        next(batches)
    assert loader.bad_samples.total == 0
    state = loader.state_dict()
    assert list(batches) == []
    resumed = loaded(make(Yielding(wrap), batch_size=2, num_workers=num_workers), state)
    assert list(resumed) == []


class Surviving(IterableDataset[int]):
    """Raises the given exceptions at their numbers, and continues."""

    def __init__(self, errors: dict[int, Exception], length: int = 12) -> None:
        self.errors, self.length = errors, length

    def __iter__(self) -> Any:
        return map(self.give, range(self.length))

    def give(self, index: int) -> int:
        if index in self.errors:
            raise self.errors[index]
        return index


def test_a_raised_sample_does_not_stop_a_resume() -> None:
    """Its exception was raised when the sample was first met, and is not raised again."""
    build = partial(make, Surviving({5: ValueError("no label")}), on_bad_sample="raise")
    loader = build()
    batches = iter(loader)
    next(batches)
    with pytest.raises(ValueError, match="no label"):
        next(batches)
    assert next(batches).tolist() == [6, 7, 8, 9]
    resumed = loaded(build(), loader.state_dict())
    assert [batch.tolist() for batch in resumed] == [[10, 11]]


def test_an_iterator_that_only_raises_is_given_up() -> None:
    length = 2 * MAX_BAD_IN_A_ROW + 40
    bad: dict[int, Exception] = {i: ValueError("closed file") for i in range(2, length)}
    del bad[MAX_BAD_IN_A_ROW + 1]
    loader = make(Surviving(bad, length), batch_size=3)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1, MAX_BAD_IN_A_ROW + 1]
    assert loader.bad_samples.total == MAX_BAD_IN_A_ROW - 1
    with pytest.raises(BadSample, match=f"the {MAX_BAD_IN_A_ROW - 1} samples before it"):
        next(batches)
    assert loader.bad_samples.total == MAX_BAD_IN_A_ROW - 1


def test_prefetched_bad_samples_are_not_recorded() -> None:
    """The state speaks of delivered batches."""
    loader = make(IterableWithBrokenIterator, num_workers=2, prefetch_factor=4)
    next(iter(loader))
    assert [bad.index for bad in loader.bad_samples.samples] == ["sample 2 of worker 0"]


def test_a_replacement_is_refused() -> None:
    """An iterable has no other position to take a sample from."""
    with pytest.raises(ValueError, match="on_bad_sample = 'replace' takes another sample by its"):
        make(PlainIterable, on_bad_sample="replace")
    make(PlainIterable, on_bad_sample="drop")
    StatefulGPULoader(range(3), on_bad_sample="replace")

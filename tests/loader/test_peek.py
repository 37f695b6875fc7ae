"""``loader.peek()``: the next batch, made without moving anything.

A run that peeks before every batch is compared with a run that never peeks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, RandomSampler, Sampler

from stateful_gpu_loader import FolderSource, LoaderError, ShuffledSampler, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from tests import device_loaders
from tests.conformance import copy_of, loaded, same
from tests.damaged import make as make_bad
from tests.device_loaders import photos
from tests.fake_gpu import FakeDecoder, FakeGpu, fake_gpu
from tests.generators import generators
from tests.makers import MAKERS
from tests.map_datasets import Indices, Noisy
from tests.stream_kinds import KINDS

__all__ = ["fake_gpu", "photos"]
Loader = StatefulGPULoader[Any]
END = "the end of the pass"
pytestmark = pytest.mark.filterwarnings("ignore:.*samples of the iterable dataset are read again")


def peeked(loader: Loader) -> Any:
    try:
        return copy_of(loader.peek())
    except StopIteration:
        return END


def delivered(batches: Iterator[Any]) -> Any:
    return copy_of(next(batches, END))


def assert_peeks(make: Callable[[], Loader], *, epochs: int = 2, every: int = 1) -> None:
    """Peek before, in and after each pass, and in fresh loaders of those states."""
    alone, loader = make(), make()
    for epoch in range(epochs):
        expected, batches = iter(alone), iter(loader)
        wanted, i = None, 0
        while wanted != END:
            state = loader.state_dict()
            wanted = delivered(expected)
            if i % every == 0 or wanted == END:
                assert same(peeked(loader), wanted), (epoch, i)
                assert (loader.epoch, loader.batches_done) == (epoch, i)
                assert repr(loader.state_dict()) == repr(state)
                resumed = loaded(make(), loader.state_dict())
                assert same(peeked(resumed), wanted), (epoch, i)
                if loader.num_workers == 0:
                    assert same(delivered(iter(resumed)), wanted), (epoch, i)
            assert same(delivered(batches), wanted), (epoch, i)
            i += 1
    assert same(peeked(loader), delivered(iter(alone)))


@pytest.mark.parametrize("name", KINDS)
def test_peek_returns_the_next_batch(name: str) -> None:
    """For every kind of dataset, sampler and shards, between passes and within them."""
    assert_peeks(KINDS[name], every=3)


@pytest.mark.processes
@pytest.mark.parametrize("name", MAKERS)
def test_worker_processes_have_a_copy(name: str) -> None:
    """Other workers make the batch, as many as the states belong to."""
    make = partial(MAKERS[name], num_workers=2, persistent_workers=True)
    assert_peeks(make, every=6)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pixels_are_those_of_the_next_batch(num_workers: int, photos: Path) -> None:
    """Decoded and augmented images, with worker threads."""

    def make() -> Loader:
        return StatefulGPULoader(
            FolderSource(photos),
            batch_size=6,
            shuffle=True,
            seed=42,
            num_workers=num_workers,
            transform=[T.RandomResizedCrop(32), T.Normalize([0.5] * 3, [0.25] * 3)],
            batch_transform=T.MixUp(num_classes=2),
        )

    assert_peeks(make)


def test_on_a_device_peek_has_its_own_stage(
    photos: Path, fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage that works ahead is not used, and the separate stage ends."""
    decoders: list[FakeDecoder] = []

    def make_batch_decoder(*arguments: Any) -> FakeDecoder:
        decoders.append(FakeDecoder())
        return decoders[-1]

    monkeypatch.setattr("stateful_gpu_loader.engine.plan.make_batch_decoder", make_batch_decoder)
    of_other_tests = set(threading.enumerate())
    loader = device_loaders.make(photos, num_workers=2)
    batches = iter(loader)
    for _ in range(3):
        wanted = copy_of(loader.peek())
        assert same(next(batches), wanted)
    assert len(decoders) == len(fake_gpu.places) == 4, "the loader's, and one each time"
    names = [thread.name for thread in set(threading.enumerate()) - of_other_tests]
    assert sum("device stage" in name for name in names) == 2, "of one stage"


@pytest.mark.parametrize("name", KINDS)
def test_peek_leaves_the_callers_generators_unchanged(name: str) -> None:
    """Peeking does not settle the seed, and later draws are unchanged."""
    loader = KINDS[name](seed=None)
    before = generators()
    loader.peek()
    batches = iter(loader)
    assert generators() == before
    wanted = loader.peek()
    assert same(next(batches), wanted)


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_given_generator_does_not_move(is_shared: bool) -> None:
    """Even if the seed is still to be drawn from it, or a sampler shares it."""

    def make(generator: torch.Generator) -> Loader:
        sampler = RandomSampler(range(20), generator=generator) if is_shared else None
        return StatefulGPULoader(
            Noisy(20), batch_size=4, sampler=sampler, shuffle=not is_shared, generator=generator
        )

    generator, other = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    loader, alone = make(generator), make(other)
    for _ in range(2):
        wanted = copy_of(next(iter(alone)))
        before = generator.get_state()
        assert same(loader.peek(), wanted)
        assert torch.equal(generator.get_state(), before)
        assert same(next(iter(loader)), wanted)


def test_a_sampler_of_this_package_does_not_move() -> None:
    """Only a copy of it begins the pass."""
    sampler = ShuffledSampler(range(20))
    loader: Loader = StatefulGPULoader(Noisy(20), batch_size=4, sampler=sampler)
    loader.set_epoch(3)
    loader.state_dict()
    before = dict(vars(sampler))
    loader.peek()
    assert vars(sampler) == before


def test_an_epoch_set_within_a_pass_is_for_the_next() -> None:
    """Trainers call set_epoch then. No warning speaks of a load."""
    loader, alone = KINDS["a sampler without state"](), KINDS["a sampler without state"]()
    expected, batches = iter(alone), iter(loader)
    assert same(next(batches), next(expected))
    loader.sampler.set_epoch(4)
    wanted = copy_of(next(expected))
    assert same(loader.peek(), wanted)
    assert loader.sampler.epoch == 4
    assert same(next(batches), wanted)


class Opened(Dataset[int]):
    """Opens its data at the first read, like datasets of LMDB and HDF5 files."""

    def __init__(self) -> None:
        self.file: object | None = None

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        self.file = self.file or object()
        return index


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_dataset_of_worker_processes_is_not_touched_here(num_workers: int) -> None:
    """Workers would inherit by fork whatever it opened here."""
    loader: Loader = StatefulGPULoader(Opened(), batch_size=4, num_workers=num_workers)
    assert loader.peek().tolist() == [0, 1, 2, 3]
    assert loader.dataset.file is None


def test_the_next_pass_has_the_requested_epoch() -> None:
    """A loaded place comes before the epoch that was set."""
    loader, other = KINDS["order"](), KINDS["order"]()
    loader.set_epoch(4)
    other.set_epoch(4)
    assert same(loader.peek(), next(iter(other)))
    batches = iter(loader)
    next(batches)
    state, second = loader.state_dict(), copy_of(next(batches))
    loader.load_state_dict(state)
    assert same(loader.peek(), second)
    assert same(next(iter(loader)), second)


@pytest.mark.parametrize("boundary", ["empty", "next_epoch"])
def test_between_the_last_batch_and_the_end(boundary: str) -> None:
    """The iterator of the pass ends; a resumed one goes to the next epoch if so configured."""
    loader = KINDS["order"](on_epoch_boundary=boundary)
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    with pytest.raises(StopIteration):
        loader.peek()
    resumed = loaded(KINDS["order"](on_epoch_boundary=boundary), loader.state_dict())
    assert list(batches) == []
    following = copy_of(loader.peek())
    assert same(peeked(resumed), END if boundary == "empty" else following)
    assert same(delivered(iter(resumed)), END if boundary == "empty" else following)


def test_after_a_break_it_is_the_next_pass() -> None:
    """``next(iter(loader))`` is a pass that is broken off; peek() is no pass."""
    alone, loader = KINDS["order"](), KINDS["order"]()
    epochs = [[copy_of(batch) for batch in alone] for _ in range(2)]
    assert same(loader.peek(), epochs[0][0])
    assert same(next(iter(loader)), epochs[0][0])
    assert same(loader.peek(), epochs[1][0])
    assert same([copy_of(batch) for batch in loader], epochs[1])


def test_bad_samples_are_recorded_when_they_are_met() -> None:
    loader = make_bad()
    while loader.bad_samples.total == 0:
        loader.set_epoch(loader.epoch)
        batches = iter(loader)
        for _ in range(len(loader)):
            total, state = loader.bad_samples.total, loader.state_dict()
            wanted = peeked(loader)
            assert loader.bad_samples.total == total
            assert loader.state_dict() == state
            assert same(delivered(batches), wanted)


class HoldsAGenerator(IterableDataset[int]):
    """An iterable that holds a generator, which cannot be copied."""

    def __init__(self) -> None:
        self.numbers = iter(number for number in range(20))

    def __iter__(self) -> Iterator[int]:
        return self.numbers


class SamplerOfAGenerator(Sampler[int]):
    def __init__(self) -> None:
        self.numbers = iter(number for number in range(20))

    def __iter__(self) -> Iterator[int]:
        return self.numbers


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: StatefulGPULoader(HoldsAGenerator(), batch_size=4), "HoldsAGenerator"),
        (
            lambda: StatefulGPULoader(Indices(20), batch_size=4, sampler=SamplerOfAGenerator()),
            "SamplerOfAGenerator",
        ),
    ],
)
def test_objects_that_cannot_be_copied_are_refused_and_not_moved(
    make: Callable[[], Loader], name: str
) -> None:
    """The error has its name and a remedy; the stream is unchanged."""
    loader = make()
    batches = iter(loader)
    for first in range(0, 20, 4):
        with pytest.raises(LoaderError, match=f"{name}.*cannot pickle 'generator'.*Remedy"):
            loader.peek()
        assert next(batches).tolist() == list(range(first, first + 4))

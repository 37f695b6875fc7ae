"""Sharded datasets: every sample once, what is shuffled, lost workers, and what a resume costs."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader import transforms as T
from tests.conformance import copy_of, loaded, same, uninterrupted
from tests.datasets.shards import (
    CountingShards,
    Loader,
    LosesItself,
    NoisyShards,
    Numbers,
    PhotoShards,
    indices_of,
)
from tests.lost_workers import lives, uninterrupted_batches
from tests.patience import seconds

SIZES = (5, 0, 3, 8, 1)


def make(dataset: Any = None, **arguments: Any) -> Loader:
    dataset = NoisyShards(SIZES, lanes=3, buffer=9) if dataset is None else dataset
    return StatefulGPULoader(dataset, **{"batch_size": 4, "seed": 3, "shuffle": True, **arguments})


@pytest.mark.parametrize(
    "arguments", [{}, {"shuffle": False}, {"batch_size": None}, {"drop_last": True}], ids=str
)
def test_every_sample_comes_once(arguments: dict[str, Any]) -> None:
    """In each epoch; if shuffled, each epoch has another order."""
    loader = make(**arguments)
    epochs = [indices_of(loader) for _ in range(3)]
    for found in epochs:
        assert len(set(found)) == len(found)
        if not loader.drop_last:
            assert sorted(found) == Numbers(SIZES).all()
    assert (epochs[0] == epochs[1]) is not loader.shuffle


def test_shuffle_permutes_shards_and_windows() -> None:
    """The epoch shuffles shards, and a window shuffles samples within a lane."""
    dataset = Numbers([40] * 6, lanes=2, buffer=16)
    loader = make(dataset, batch_size=8)
    first, second = indices_of(loader), indices_of(loader)
    assert [i // 1000 for i in first[::8]] != [i // 1000 for i in second[::8]]
    for start in range(0, 240, 8):
        window = first[start : start + 8]
        assert max(window) - min(window) == 7, "a window is 8 neighbours of a shard"
        assert window != sorted(window)


def test_set_epoch() -> None:
    """A pass has the epoch that was set; a resumed pass keeps its own."""
    expected, states = uninterrupted(make(), 4)
    loader = make()
    loader.set_epoch(3)
    assert same([copy_of(batch) for batch in loader], expected[3])
    loader.load_state_dict(states[1, 2])
    loader.set_epoch(3)
    with pytest.warns(UserWarning, match="stays in epoch 1"):
        assert same([copy_of(batch) for batch in loader], expected[1][2:])


@pytest.mark.fuzz
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_another_batch_size_in_the_middle(shuffle: bool, counted: bool) -> None:
    dataset = NoisyShards(lanes=4, buffer=12, counted=counted)
    expected, states = uninterrupted(make(dataset, shuffle=shuffle), 1)
    for (epoch, delivered), state in states.items():
        for size in (1, 3, 7, 100):
            if epoch:
                continue
            loader = loaded(make(dataset, shuffle=shuffle, batch_size=size), state)
            found = indices_of(expected[0][:delivered]) + indices_of(loader)
            assert sorted(found) == dataset.all(), (delivered, size)


def test_the_length_is_that_of_the_epoch() -> None:
    """If the numbers of samples of all shards are known."""
    loader = make(NoisyShards(SIZES, lanes=3, counted=True))
    for _ in range(3):
        assert len(loader) == len(list(loader)) == 5
    with pytest.raises(TypeError):
        len(make())


def test_without_a_loader_of_this_package(tmp_path: Path) -> None:
    """It is an iterable dataset, whose workers divide the shards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for num_workers in (0, 2):
            plain = torch.utils.data.DataLoader(
                Numbers(SIZES), batch_size=None, num_workers=num_workers
            )
            assert sorted(plain) == Numbers(SIZES).all()
        photos = PhotoShards()
        assert [target for _, target in photos] == photos.all()


# Workers are killed, hang or are interrupted, and the stream stays unchanged.


@pytest.mark.processes
@pytest.mark.parametrize("at", [2002, 3007])
def test_a_worker_that_dies_in_a_shard(tmp_path: Path, at: int) -> None:
    """While ``next()`` waits, twice."""
    dataset = LosesItself(at, lives(tmp_path / "lives", 2), "kill", SIZES, lanes=3, buffer=9)
    loader = make(dataset, num_workers=2)
    with pytest.warns(RuntimeWarning, match="is killed by signal"):
        assert same([[copy_of(batch) for batch in loader]], uninterrupted_batches(make, 1))


@pytest.mark.processes
def test_a_process_that_hangs_in_a_shard(tmp_path: Path) -> None:
    dataset = LosesItself(3002, lives(tmp_path / "lives", 1), "hang", SIZES, lanes=3, buffer=9)
    limit = seconds(0.3)
    loader = make(dataset, num_workers=2, timeout=limit)
    with pytest.warns(RuntimeWarning, match=re.escape(f"timed out after {limit} seconds")):
        assert same([[copy_of(batch) for batch in loader]], uninterrupted_batches(make, 1))


@pytest.mark.processes
def test_a_thread_that_hangs_in_a_shard(tmp_path: Path) -> None:
    def build(**arguments: Any) -> Loader:
        dataset = PhotoShards(lives=arguments.pop("lives", None))
        return make(dataset, transform=[T.Resize((8, 8))], **arguments)

    expected = uninterrupted_batches(build, 1)
    limit = seconds(0.3)
    loader = build(lives=lives(tmp_path / "lives", 1), num_workers=2, timeout=limit)
    with pytest.warns(RuntimeWarning, match=re.escape(f"timed out after {limit} seconds")):
        assert same([[copy_of(batch) for batch in loader]], expected)


class Interrupted(NoisyShards):
    """A user's interrupt comes once, at one sample."""

    at: int | None = None

    def sample(self, shard: int, number: int) -> Any:
        if 1000 * shard + number == self.at:
            self.at = None
            raise KeyboardInterrupt
        return super().sample(shard, number)


@pytest.mark.parametrize(("at", "shuffle"), [(0, True), (2001, False), (3007, True)])
def test_an_interrupt_in_the_users_thread_loses_nothing(at: int, shuffle: bool) -> None:
    """The batch is made again from its lane's cursor."""
    expected = uninterrupted_batches(make, 1, shuffle=shuffle)
    dataset = Interrupted(SIZES, lanes=3, buffer=9)
    dataset.at = at
    batches, found = iter(make(dataset, shuffle=shuffle)), []
    interrupts = 0
    while len(found) < len(expected[0]):
        try:
            found.append(copy_of(next(batches)))
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts == 1
    assert same([found], expected)


# Reads at a resume, open shards, size of the state.


LARGER = (30, 0, 41, 25, 60, 7)


def make_counting(folder: Path, **arguments: Any) -> Loader:
    dataset = CountingShards(folder, LARGER, lanes=2, buffer=20)
    return StatefulGPULoader(dataset, **{"batch_size": 4, "seed": 3, **arguments})


@pytest.mark.processes
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_shard_is_opened_and_read_once(
    tmp_path: Path, num_workers: int, shuffle: bool
) -> None:
    """Except the rests of lanes, each smaller than a batch. All opened shards are closed."""
    loader = make_counting(tmp_path, shuffle=shuffle, num_workers=num_workers)
    for _ in range(2):
        assert len(indices_of(loader)) == sum(LARGER)
        lanes = 2
        assert sum(LARGER) <= loader.dataset.count("read") < sum(LARGER) + lanes * (4 + 10)
        opened = loader.dataset.count("opened")
        assert len(LARGER) <= opened <= len(LARGER) + 2 * lanes
        assert loader.dataset.count("closed") == opened


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_resume_reads_at_most_a_window_of_each_lane_again(tmp_path: Path, shuffle: bool) -> None:
    """However far the epoch is. Reads are counted until two batches come, one of each lane."""
    _, states = uninterrupted(make_counting(tmp_path, shuffle=shuffle), 1)
    for (epoch, delivered), state in states.items():
        if epoch or delivered >= 36:
            continue
        loader = make_counting(tmp_path, shuffle=shuffle)
        loader.dataset.count("read")
        loader.load_state_dict(state)
        assert loader.dataset.count("read") == 0, "nothing is read before it is asked for"
        batches = iter(loader)
        next(batches)
        next(batches)
        window = 10 if shuffle else 0
        assert loader.dataset.count("read") <= 2 * (4 + 2 * window), delivered


def test_shards_are_closed_when_an_epoch_is_abandoned(tmp_path: Path) -> None:
    """Without workers."""
    loader = make_counting(tmp_path)
    batches = iter(loader)
    next(batches)
    next(batches)
    # One of the three is empty.
    assert (loader.dataset.count("opened"), loader.dataset.count("closed")) == (3, 1)
    del batches
    assert loader.dataset.count("closed") == 2


@pytest.mark.fuzz
@pytest.mark.parametrize("lanes", [64, 10_000])
def test_ten_thousand_shards(lanes: int) -> None:
    """The state has tens of bytes for each lane, and is exact from the middle."""
    sizes = [3] * 10_000

    def build() -> Loader:
        dataset = Numbers(sizes, lanes=lanes, counted=True)
        return StatefulGPULoader(dataset, batch_size=50, seed=3, shuffle=True)

    loader = build()
    assert len(loader) == 600
    batches = iter(loader)
    start = [next(batches).tolist() for _ in range(5)]
    state = loader.state_dict()
    cursors = [text for key, text in state.items() if key.startswith("lane_")]
    assert len(cursors) == lanes
    assert max(map(len, cursors)) < 40
    resumed = loaded(build(), state)
    rest = iter(resumed)
    assert [next(rest).tolist() for _ in range(3)] == [next(batches).tolist() for _ in range(3)]
    assert len({i for batch in start for i in batch}) == 250

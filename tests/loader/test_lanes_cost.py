"""Costs of lanes: reads at a resume, open shards, size of the state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader import StatefulGPULoader
from tests.conformance import loaded, uninterrupted
from tests.datasets.shards import CountingShards, Loader, Numbers, indices_of

SIZES = (30, 0, 41, 25, 60, 7)


def make(folder: Path, **arguments: Any) -> Loader:
    dataset = CountingShards(folder, SIZES, lanes=2, buffer=20)
    return StatefulGPULoader(dataset, **{"batch_size": 4, "seed": 3, **arguments})


@pytest.mark.processes
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_shard_is_opened_and_read_once(
    tmp_path: Path, num_workers: int, shuffle: bool
) -> None:
    """Except the rests of lanes, each smaller than a batch. All opened shards are closed."""
    loader = make(tmp_path, shuffle=shuffle, num_workers=num_workers)
    for _ in range(2):
        assert len(indices_of(loader)) == sum(SIZES)
        lanes = 2
        assert sum(SIZES) <= loader.dataset.count("read") < sum(SIZES) + lanes * (4 + 10)
        opened = loader.dataset.count("opened")
        assert len(SIZES) <= opened <= len(SIZES) + 2 * lanes
        assert loader.dataset.count("closed") == opened


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_resume_reads_at_most_a_window_of_each_lane_again(tmp_path: Path, shuffle: bool) -> None:
    """However far the epoch is. Reads are counted until two batches come, one of each lane."""
    _, states = uninterrupted(make(tmp_path, shuffle=shuffle), 1)
    for (epoch, delivered), state in states.items():
        if epoch or delivered >= 36:
            continue
        loader = make(tmp_path, shuffle=shuffle)
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
    loader = make(tmp_path)
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

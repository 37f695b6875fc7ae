"""Killed, hanging and interrupted workers of lanes: the stream goes on unchanged."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader import transforms as T
from tests.conformance import copy_of, same
from tests.datasets.shards import Loader, LosesItself, NoisyShards, PhotoShards
from tests.lost_workers import lives, undisturbed, with_kills
from tests.patience import seconds

SIZES = (5, 0, 3, 8, 1)
LANES: dict[str, Any] = {"lanes": 3, "buffer": 9}


def make(dataset: Any = None, **arguments: Any) -> Loader:
    dataset = NoisyShards(SIZES, **LANES) if dataset is None else dataset
    return StatefulGPULoader(dataset, **{"batch_size": 3, "seed": 3, "shuffle": True, **arguments})


@pytest.mark.processes
@pytest.mark.parametrize("number", range(1, 7))
def test_a_kill_behind_every_batch(number: int) -> None:
    """In two epochs, with workers that persist."""
    expected = undisturbed(make, 2)
    assert len(expected[0]) == 6
    loader = make(num_workers=2, prefetch_factor=1, persistent_workers=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert same(with_kills(loader, 2, {number: (number,)}), expected)
    if number < 3:
        assert loader.worker_restarts == 2


@pytest.mark.processes
@pytest.mark.parametrize("at", [0, 2002, 3007])
def test_a_worker_that_dies_in_a_shard(tmp_path: Path, at: int) -> None:
    """While ``next()`` waits, twice."""
    dataset = LosesItself(at, lives(tmp_path / "lives", 2), "kill", SIZES, **LANES)
    loader = make(dataset, num_workers=2)
    with pytest.warns(RuntimeWarning, match="is killed by signal"):
        assert same([[copy_of(batch) for batch in loader]], undisturbed(make, 1))


@pytest.mark.processes
def test_a_process_that_hangs_in_a_shard(tmp_path: Path) -> None:
    dataset = LosesItself(3002, lives(tmp_path / "lives", 1), "hang", SIZES, **LANES)
    limit = seconds(0.3)
    loader = make(dataset, num_workers=2, timeout=limit)
    with pytest.warns(RuntimeWarning, match=re.escape(f"timed out after {limit} seconds")):
        assert same([[copy_of(batch) for batch in loader]], undisturbed(make, 1))


@pytest.mark.processes
def test_a_thread_that_hangs_in_a_shard(tmp_path: Path) -> None:
    """It is abandoned, and the lane is opened anew by another."""

    def build(**arguments: Any) -> Loader:
        dataset = PhotoShards(lives=arguments.pop("lives", None))
        return make(dataset, transform=[T.Resize((8, 8))], **arguments)

    expected = undisturbed(build, 1)
    limit = seconds(0.3)
    loader = build(lives=lives(tmp_path / "lives", 1), num_workers=2, timeout=limit)
    with pytest.warns(RuntimeWarning, match=re.escape(f"timed out after {limit} seconds")):
        assert same([[copy_of(batch) for batch in loader]], expected)


class Interrupted(NoisyShards):
    """An interrupt of the user comes at one sample, once."""

    at: int | None = None

    def sample(self, shard: int, number: int) -> Any:
        if 1000 * shard + number == self.at:
            self.at = None
            raise KeyboardInterrupt
        return super().sample(shard, number)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("at", [0, 2, 2001, 3005, 3007, 4000])
def test_an_interrupt_in_the_users_thread_loses_nothing(at: int, shuffle: bool) -> None:
    """The batch is made again, from where its lane stood."""
    expected = undisturbed(make, 1, shuffle=shuffle)
    dataset = Interrupted(SIZES, **LANES)
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


class Clumsy:
    """A collate function that an interrupt of the user meets once."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, samples: list[Any]) -> list[Any]:
        self.calls += 1
        if self.calls == 3:
            raise KeyboardInterrupt
        return samples


def test_an_interrupt_behind_the_reading_loses_nothing() -> None:
    """The lane has moved, and goes back."""
    expected = undisturbed(make, 1, collate_fn=list)
    batches, found = iter(make(collate_fn=Clumsy())), []
    while len(found) < len(expected[0]):
        try:
            found.append(copy_of(next(batches)))
        except KeyboardInterrupt:
            assert len(found) == 2
    assert same([found], expected)

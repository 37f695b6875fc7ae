"""Workers of lanes are killed, hang or are interrupted, and the stream stays unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader import transforms as T
from tests.conformance import copy_of, same
from tests.datasets.shards import Loader, LosesItself, NoisyShards, PhotoShards
from tests.lost_workers import lives, uninterrupted_batches
from tests.patience import seconds

SIZES = (5, 0, 3, 8, 1)
LANES: dict[str, Any] = {"lanes": 3, "buffer": 9}


def make(dataset: Any = None, **arguments: Any) -> Loader:
    dataset = NoisyShards(SIZES, **LANES) if dataset is None else dataset
    return StatefulGPULoader(dataset, **{"batch_size": 3, "seed": 3, "shuffle": True, **arguments})


@pytest.mark.processes
@pytest.mark.parametrize("at", [2002, 3007])
def test_a_worker_that_dies_in_a_shard(tmp_path: Path, at: int) -> None:
    """While ``next()`` waits, twice."""
    dataset = LosesItself(at, lives(tmp_path / "lives", 2), "kill", SIZES, **LANES)
    loader = make(dataset, num_workers=2)
    with pytest.warns(RuntimeWarning, match="is killed by signal"):
        assert same([[copy_of(batch) for batch in loader]], uninterrupted_batches(make, 1))


@pytest.mark.processes
def test_a_process_that_hangs_in_a_shard(tmp_path: Path) -> None:
    dataset = LosesItself(3002, lives(tmp_path / "lives", 1), "hang", SIZES, **LANES)
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

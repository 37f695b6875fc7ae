"""Samples of lanes are those of a reader that seeds all, whether or not one has drawn."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader import ShardedDataset, StatefulGPULoader
from stateful_gpu_loader.engine.makers import own_generators
from stateful_gpu_loader.randomness import draw_rule, global_generators
from tests.generators import generators
from tests.patience import seconds

DRAWING, SHARDS, SAMPLES = 31, 6, 9
DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "numpy": lambda: float(np.random.standard_normal()),
    "torch": lambda: float(torch.rand(())),
}


class Rarely(ShardedDataset):
    """One sample draws, once or at every place where it is read."""

    num_lanes = 2
    shuffle_buffer = 8

    def __init__(self, draw: Callable[[], float], draws: bool | None = None) -> None:
        self.draw, self.opened = draw, list[tuple[str, int]]()
        if draws is not None:
            self.draws = draws

    def shards(self) -> list[str]:
        return [str(number) for number in range(SHARDS)]

    def read_shard(self, shard: str, cursor: int) -> Iterator[tuple[Any, int]]:
        self.opened.append((shard, cursor))
        for number in range(cursor, SAMPLES):
            sample = int(shard) * SAMPLES + number
            yield (sample, self.draw() if sample == DRAWING else 0.0), number + 1


def loader_of(draw: Callable[[], float], **given: Any) -> StatefulGPULoader[Any]:
    dataset = Rarely(draw, given.pop("draws", None))
    return StatefulGPULoader(dataset, **{"batch_size": 4, "seed": 5, **given})


def seen(loader: Any) -> list[Any]:
    return [[part.tolist() for part in batch] for batch in loader]


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_sample_that_draws_is_that_of_a_loader_that_seeds_all(draw: Any, shuffle: bool) -> None:
    """In every epoch, and from every place."""
    always, loader = loader_of(draw, draws=True, shuffle=shuffle), loader_of(draw, shuffle=shuffle)
    expected = [seen(always) for _ in range(2)]
    before = generators()
    found, states = [], []
    for _ in range(2):
        found.append([])
        for batch in loader:
            found[-1].append([part.tolist() for part in batch])
            states.append(loader.state_dict())
    assert found == expected
    assert generators() == before
    assert any(drawn for batch in expected[0] for drawn in batch[1])
    flat = [batch for epoch in expected for batch in epoch]
    for place, state in enumerate(states[:-1]):
        resumed = loader_of(draw, shuffle=shuffle)
        resumed.load_state_dict(state)
        rest = seen(resumed) or seen(resumed)
        assert rest == flat[place + 1 :][: len(rest)]


def test_workers_read_what_the_callers_thread_reads() -> None:
    expected = loader_of(random.random, draws=True)
    loader = loader_of(random.random, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        assert seen(loader) == seen(expected)


def test_nothing_is_read_twice_where_an_early_sample_draws() -> None:
    opened = []
    for draws in (True, None):
        loader = loader_of(random.random, draws=draws)
        seen(loader)
        dataset: Any = loader.dataset
        opened.append(dataset.opened)
    assert opened[0] == opened[1]


def test_a_late_turn_that_draws_is_read_again_with_seeds_and_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the lane's cursor, as a resume reads it; afterwards nothing is."""
    monkeypatch.setattr(draw_rule, "EVIDENCE", 8)
    monkeypatch.setattr(global_generators, "others_alive", lambda: False)
    expected, loader = loader_of(random.random, draws=True), loader_of(random.random)
    batches = seen(expected)
    with pytest.warns(UserWarning, match="Rarely drew .*draws = True") as reported:
        assert seen(loader) == batches
    assert len(reported) == 1
    of_all: Any = expected.dataset
    dataset: Any = loader.dataset
    assert Counter(dataset.opened) - Counter(of_all.opened) == Counter([("3", 3)])


class Keeping(Rarely):
    """A table of noise that the first sample makes, and a cache of augmented samples."""

    def __init__(self) -> None:
        super().__init__(random.random)
        self.table: Any = None
        self.kept: dict[int, float] = {}

    def read_shard(self, shard: str, cursor: int) -> Iterator[tuple[Any, int]]:
        for number in range(cursor, SAMPLES):
            sample = int(shard) * SAMPLES + number
            if self.table is None:
                self.table = torch.rand(SAMPLES)
            yield (
                (sample, self.kept.setdefault(sample, random.random()), self.table[number]),
                number + 1,
            )


def test_what_a_dataset_keeps_from_its_first_call_depends_on_the_samples() -> None:
    """Two runs of one seed are equal, and so is a cache after a resume."""
    found, states = [], []
    for spoil in (1, 2):
        random.seed(spoil)
        torch.manual_seed(spoil)
        loader: Any = StatefulGPULoader(Keeping(), batch_size=4, seed=5)
        found.append([])
        for batch in loader:
            found[-1].append([part.tolist() for part in batch])
            states.append(loader.state_dict())
    assert found[0] == found[1]
    for place in (0, 3, 7):
        random.seed(place)
        resumed: Any = StatefulGPULoader(Keeping(), batch_size=4, seed=5)
        resumed.load_state_dict(states[place])
        rest = seen(resumed)
        assert [batch[:2] for batch in rest] == [batch[:2] for batch in found[0][place + 1 :]]


def test_a_thread_that_reads_quiet_shards_leaves_the_generators_alone() -> None:
    """Though the main thread draws while a turn is read."""
    turn, done, seen_there = threading.Event(), threading.Event(), list[Any]()

    class Quiet(Rarely):
        def read_shard(self, shard: str, cursor: int) -> Iterator[tuple[Any, int]]:
            for sample, following in super().read_shard(shard, cursor):
                if sample[0] == DRAWING:
                    turn.set()
                    done.wait(seconds(10))
                yield sample, following

    def work() -> None:
        loader = StatefulGPULoader(Quiet(lambda: 0.0), batch_size=4, seed=5, drop_last=True)
        with pytest.warns(UserWarning, match="num_workers=1"):
            seen_there.extend(loader)

    random.seed(3)
    expected = [random.random() for _ in range(9)]
    random.seed(3)
    thread = threading.Thread(target=work)
    thread.start()
    turn.wait(seconds(10))
    drawn = [random.random() for _ in range(4)]
    done.set()
    thread.join()
    drawn += [random.random() for _ in range(5)]
    assert drawn == expected
    assert len(seen_there) == SHARDS * SAMPLES // 4


def test_nothing_is_seeded_after_enough_samples_that_draw_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(_: int) -> None:
        raise AssertionError("seeded")

    loader = loader_of(lambda: 0.0, drop_last=True)
    monkeypatch.setattr(draw_rule, "EVIDENCE", 0)
    monkeypatch.setattr(own_generators, "seed_global_generators", never)
    assert len(seen(loader)) == SHARDS * SAMPLES // 4


@pytest.mark.parametrize("mode", ["raise", "drop"])
def test_a_turn_after_one_that_failed_is_not_read_from_before_the_error(mode: str) -> None:
    """What raised is passed, and does not raise again because a later sample draws."""

    class Damaged(Rarely):
        def read_shard(self, shard: str, cursor: int) -> Iterator[tuple[Any, int]]:
            for sample, following in super().read_shard(shard, cursor):
                index = sample[0]
                yield (ValueError("no sample") if index in (24, 30) else sample), following

    found = []
    for draws in (None, True):
        dataset = Damaged(random.random, draws)
        loader = StatefulGPULoader(dataset, batch_size=4, seed=5, on_bad_sample=mode)
        batches, seen_so_far = iter(loader), list[Any]()
        while True:
            try:
                batch = next(batches, None)
            except ValueError as error:
                seen_so_far.append(str(error))
                continue
            if batch is None:
                break
            seen_so_far.append([part.tolist() for part in batch])
        found.append((seen_so_far, loader.bad_samples.to_text()))
    assert found[0] == found[1]

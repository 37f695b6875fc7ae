"""From the first batch with a draw, samples are seeded, and the stream is as if all were."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from stateful_gpu_loader import ShardedDataset, StatefulGPULoader
from stateful_gpu_loader.engine.makers import own_generators
from stateful_gpu_loader.randomness import draw_rule, global_generators
from tests.generators import generators
from tests.map_datasets import Indices
from tests.patience import seconds

LENGTH, DRAWING = 24, 13
SHARDS, SAMPLES = 6, 4
Draw = Callable[[], float]
DRAWS: dict[str, Draw] = {
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "numpy": lambda: float(np.random.standard_normal()),
    "torch": lambda: float(torch.rand(())),
    "torch's initial seed": lambda: float(torch.initial_seed() % 1000),
}


class Rarely(Indices):
    """One sample draws. All reads are noted."""

    def __init__(self, draw: Draw, draws: bool | None = None) -> None:
        super().__init__(LENGTH)
        self.draw, self.asked = draw, list[Any]()
        if draws is not None:
            self.draws = draws

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return self.sample(index)

    def sample(self, index: int) -> Any:
        return index, self.draw() if index == DRAWING else 0.0


class RarelyInShards(ShardedDataset):
    """The same samples, in shards. Opened shards and cursors are noted."""

    num_lanes = 2
    shuffle_buffer = 8
    sample = Rarely.sample

    def __init__(self, draw: Draw, draws: bool | None = None) -> None:
        self.draw, self.asked = draw, list[Any]()
        if draws is not None:
            self.draws = draws

    def shards(self) -> list[str]:
        return [str(number) for number in range(SHARDS)]

    def read_shard(self, shard: str, cursor: int) -> Iterator[tuple[Any, int]]:
        self.asked.append((shard, cursor))
        for number in range(cursor, SAMPLES):
            yield self.sample(int(shard) * SAMPLES + number), number + 1


KINDS: dict[str, Any] = {"map-style": Rarely, "shards": RarelyInShards}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def loader_of(kind: Any, draw: Draw, **given: Any) -> StatefulGPULoader[Any]:
    dataset = kind(draw, given.pop("draws", None))
    return StatefulGPULoader(dataset, **{"batch_size": 4, "seed": 5, **given})


def seen(loader: Any) -> list[Any]:
    return [[part.tolist() for part in batch] for batch in loader]


def asked_of(loader: Any) -> list[Any]:
    found: list[Any] = loader.dataset.asked
    return found


@kinds
@pytest.mark.parametrize("name", DRAWS)
def test_a_sample_that_draws_is_that_of_a_loader_that_seeds_all(kind: Any, name: str) -> None:
    """In every epoch and from every place."""
    draw = DRAWS[name]
    given = {"shuffle": name != "random"}
    always, loader = loader_of(kind, draw, draws=True, **given), loader_of(kind, draw, **given)
    expected = [seen(always) for _ in range(3)]
    before = generators()
    found, states = [], []
    for _ in range(3):
        found.append([])
        for batch in loader:
            found[-1].append([part.tolist() for part in batch])
            states.append(loader.state_dict())
    assert found == expected
    assert any(drawn for batch in expected[0] for drawn in batch[1])
    assert generators() == before
    flat = [batch for epoch in expected for batch in epoch]
    for place, state in enumerate(states[:-6]):
        resumed = loader_of(kind, draw, **given)
        resumed.load_state_dict(state)
        rest = seen(resumed) or seen(resumed)
        assert rest == flat[place + 1 :][: len(rest)]


@kinds
def test_workers_make_the_batches_of_the_callers_thread(kind: Any) -> None:
    """Only one worker meets the sample that draws."""
    expected = loader_of(kind, DRAWS["numpy"], draws=True)
    loader = loader_of(kind, DRAWS["numpy"], num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        assert seen(loader) == seen(expected)


@kinds
def test_no_sample_is_made_twice_where_an_early_one_draws(kind: Any) -> None:
    loaders = [loader_of(kind, random.random, draws=draws) for draws in (True, None)]
    for loader in loaders:
        seen(loader)
    assert asked_of(loaders[0]) == asked_of(loaders[1])


@kinds
def test_a_late_draw_is_made_again_with_seeds_and_reported(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane's turn is read again from its cursor, as in a resume; later nothing is read again."""
    monkeypatch.setattr(draw_rule, "EVIDENCE", 8)
    monkeypatch.setattr(global_generators, "others_alive", lambda: False)
    expected, loader = (loader_of(kind, random.random, draws=draws) for draws in (True, None))
    batches = seen(expected)
    with pytest.warns(UserWarning, match=r"Rarely.*draws = True") as reported:
        assert seen(loader) == batches
    assert len(reported) == 1
    again = Counter(asked_of(loader)) - Counter(asked_of(expected))
    assert again == Counter(range(12, 16) if kind is Rarely else [("1", SAMPLES), ("3", 0)])


class Keeping(Rarely):
    """Its first sample makes a table of noise; it caches augmented samples."""

    table: Any = None

    def sample(self, index: int) -> Any:
        if self.table is None:
            self.table, self.kept = torch.rand(LENGTH), dict[int, float]()
        return index, self.kept.setdefault(index, random.random()), self.table[index]


class KeepingInShards(RarelyInShards):
    table: Any = None
    sample = Keeping.sample  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [Keeping, KeepingInShards])
@pytest.mark.parametrize("shuffle", [False, True])
def test_values_cached_by_the_first_call_depend_on_the_samples(kind: Any, shuffle: bool) -> None:
    """Two runs with one seed are equal, and so is a cache after a resume."""
    found, states = [], []
    for spoil in (1, 2):
        random.seed(spoil)
        torch.manual_seed(spoil)
        loader = loader_of(kind, random.random, shuffle=shuffle)
        found.append([])
        for batch in loader:
            found[-1].append([part.tolist() for part in batch])
            states.append(loader.state_dict())
    assert found[0] == found[1]
    for place in (0, 3):
        random.seed(place)
        resumed = loader_of(kind, random.random, shuffle=shuffle)
        resumed.load_state_dict(states[place])
        rest = seen(resumed)
        assert [batch[:2] for batch in rest] == [batch[:2] for batch in found[0][place + 1 :]]


@kinds
def test_a_thread_that_iterates_a_quiet_dataset_leaves_the_generators_alone(kind: Any) -> None:
    """Even if the main thread draws while a batch is made."""
    turn, done, seen_there = threading.Event(), threading.Event(), list[Any]()

    def wait() -> float:
        turn.set()
        done.wait(seconds(10))
        return 0.0

    def work() -> None:
        with pytest.warns(UserWarning, match="num_workers=1"):
            seen_there.extend(loader_of(kind, wait))

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
    assert len(seen_there) == LENGTH // 4


@kinds
@pytest.mark.parametrize("draws", [None, False])
def test_nothing_is_seeded_where_nothing_draws(
    kind: Any, draws: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = loader_of(kind, lambda: 0.0, draws=draws)
    monkeypatch.setattr(draw_rule, "EVIDENCE", 0)
    monkeypatch.setattr(own_generators, "seed_global_generators", _never)
    if draws is False:
        monkeypatch.setattr(draw_rule, "DrawWatch", _never)
    assert sorted(index for batch in seen(loader) for index in batch[0]) == list(range(LENGTH))


def _never(*_: Any) -> Any:
    raise AssertionError("seeded, or watched")


def test_a_transform_is_watched_or_declares_its_draws() -> None:
    def noise(sample: Any) -> Any:
        return sample[0], torch.rand(()) if sample[0] == DRAWING else torch.zeros(())

    found = []
    for draws in (None, True):
        if draws is not None:
            noise.draws = draws  # type: ignore[attr-defined]
        loader = loader_of(Rarely, lambda: 0.0, draws=False, transform=noise)
        found.append(seen(loader))
        assert asked_of(loader) == list(range(LENGTH)) or draws is None
    assert found[0] == found[1]


def test_a_collate_function_draws_from_its_own_key_whether_or_not_samples_do() -> None:
    def mixing(batch: Any) -> Any:
        return [*default_collate(batch), torch.rand(2)]

    loader = loader_of(Rarely, lambda: 0.0, collate_fn=mixing)
    before = generators()
    assert seen(loader) == seen(loader_of(Rarely, lambda: 0.0, collate_fn=mixing, draws=True))
    assert generators() == before


class Failing(Rarely):
    """Some samples fail; another sample draws."""

    def sample(self, index: int) -> Any:
        if index in (9, 18):
            raise ValueError("no sample")
        return super().sample(index)


class FailingInShards(RarelyInShards):
    def read_shard(self, shard: str, cursor: int) -> Iterator[tuple[Any, int]]:
        for sample, following in super().read_shard(shard, cursor):
            yield (ValueError("no sample") if sample[0] in (9, 18) else sample), following


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *((Failing, mode) for mode in ("replace", "drop", "raise")),
        *((FailingInShards, mode) for mode in ("drop", "raise")),
    ],
)
def test_a_failed_sample_is_handled_as_if_all_were_seeded(kind: Any, mode: str) -> None:
    """It is passed over, and does not raise again when a later sample draws."""
    found = []
    for draws in (None, True):
        loader = loader_of(kind, random.random, draws=draws, on_bad_sample=mode)
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


RESEEDS: dict[str, Callable[[], Any]] = {
    "random.seed()": lambda: random.seed(),
    "np.random.seed()": lambda: np.random.seed(),
    "torch.seed()": lambda: torch.seed(),
}


@pytest.mark.filterwarnings("ignore:.*none of the first 0 samples")
@pytest.mark.parametrize(
    ("name", "evidence"), [*((name, 1024) for name in RESEEDS), ("torch.seed()", 0)]
)
def test_a_seed_from_the_system_is_reported_once(
    name: str, evidence: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report names the call, in samples with and without seeds."""
    monkeypatch.setattr(draw_rule, "EVIDENCE", evidence)
    monkeypatch.setattr(global_generators, "others_alive", lambda: False)

    class Reseeding(Indices):
        def __getitem__(self, index: int) -> int:
            RESEEDS[name]()
            return index

    loader: Any = StatefulGPULoader(Reseeding(LENGTH), batch_size=4, seed=5)
    with pytest.warns(UserWarning, match="seed") as reported:
        assert len(list(loader)) == 6
    texts = [str(each.message) for each in reported]
    assert sum(f"called {name} without" in text for text in texts) == 1


def test_a_seed_by_argument_is_not_reported() -> None:
    class Reseeding(Indices):
        def __getitem__(self, index: int) -> float:
            random.seed(5)
            np.random.seed(5)
            torch.manual_seed(5)
            return index + random.random()

    assert len(list(StatefulGPULoader(Reseeding(LENGTH), batch_size=4, seed=5))) == 6


@pytest.mark.parametrize("draws", [None, False])
def test_a_bad_sample_in_another_thread_leaves_the_generators_alone(
    draws: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing may be seeded there, although the batch is made again sample by sample."""

    def fail() -> float:
        raise ValueError("no sample")

    monkeypatch.setattr(own_generators, "seed_global_generators", _never)
    found: list[Any] = []

    def work() -> None:
        loader = loader_of(Rarely, fail, draws=draws, on_bad_sample="drop")
        found.extend(index for batch in loader for index in batch[0].tolist())

    before = generators()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [index for index in range(LENGTH) if index != DRAWING]
    assert generators() == before


def test_a_late_draw_beside_other_threads_restores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generators continue from there, whichever thread drew."""
    monkeypatch.setattr(draw_rule, "EVIDENCE", 0)
    monkeypatch.setattr(global_generators, "others_alive", lambda: True)
    random.seed(3)
    expected = [random.random() for _ in range(2)]
    random.seed(3)
    loader = loader_of(Rarely, random.random)
    with pytest.warns(UserWarning, match="num_workers=1"):
        batches = seen(loader)
    assert [number for batch in batches for number in batch[1] if number] == expected[:1]
    assert random.random() == expected[1]

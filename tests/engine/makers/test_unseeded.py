"""Samples are seeded from the first batch on in which one draws: the stream is as if all were."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.engine.makers import own_generators
from stateful_gpu_loader.randomness import draw_rule, global_generators
from tests.generators import generators
from tests.map_datasets import Indices
from tests.patience import seconds

LENGTH, DRAWING = 24, 13
DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "numpy": lambda: float(np.random.standard_normal()),
    "torch": lambda: float(torch.rand(())),
    "torch's initial seed": lambda: float(torch.initial_seed() % 1000),
}


class Rarely(Indices):
    """One sample draws; all note that they were asked for."""

    def __init__(self, length: int, draw: Callable[[], float], draws: bool | None = None) -> None:
        super().__init__(length)
        self.draw, self.asked = draw, list[int]()
        if draws is not None:
            self.draws = draws

    def __getitem__(self, index: int) -> tuple[int, float]:
        self.asked.append(index)
        return super().__getitem__(index), self.draw() if index == DRAWING else 0.0


def loader_of(draw: Callable[[], float], **given: Any) -> StatefulGPULoader[Any]:
    dataset = Rarely(LENGTH, draw, given.pop("draws", None))
    return StatefulGPULoader(dataset, **{"batch_size": 4, "seed": 5, **given})


def seen(loader: Any) -> list[Any]:
    return [[part.tolist() for part in batch] for batch in loader]


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_sample_that_draws_is_that_of_a_loader_that_seeds_all(draw: Any, shuffle: bool) -> None:
    """In every epoch, and from every place."""
    given = {"shuffle": shuffle}
    always, loader = loader_of(draw, draws=True, **given), loader_of(draw, **given)
    expected = [seen(always) for _ in range(3)]
    before = generators()
    found, states = [], []
    for _ in range(3):
        found.append([])
        for batch in loader:
            found[-1].append([part.tolist() for part in batch])
            states.append(loader.state_dict())
    assert found == expected
    assert generators() == before
    flat = [batch for epoch in expected for batch in epoch]
    for place, state in enumerate(states[:-6]):
        resumed = loader_of(draw, **given)
        resumed.load_state_dict(state)
        rest = seen(resumed) or seen(resumed)
        assert rest == flat[place + 1 :][: len(rest)]


def test_workers_make_what_the_callers_thread_makes() -> None:
    """One of them meets the sample that draws, the other does not."""
    draw = DRAWS["numpy"]
    expected = loader_of(draw, draws=True)
    loader = loader_of(draw, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        assert seen(loader) == seen(expected)


def test_no_sample_is_made_twice_where_an_early_one_draws() -> None:
    loader = loader_of(random.random)
    for _ in range(2):
        seen(loader)
    dataset: Any = loader.dataset
    assert dataset.asked == [*range(LENGTH)] * 2


def test_a_late_draw_is_made_again_with_seeds_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw_rule, "EVIDENCE", 8)
    monkeypatch.setattr(global_generators, "others_alive", lambda: False)
    loader = loader_of(random.random)
    with pytest.warns(UserWarning, match="Rarely drew .*draws = True"):
        assert seen(loader) == seen(loader_of(random.random, draws=True))
    dataset: Any = loader.dataset
    assert dataset.asked == [*range(16), *range(12, LENGTH)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_what_a_dataset_keeps_from_its_first_call_depends_on_the_sample(shuffle: bool) -> None:
    """A cache of augmented samples, and a table that the first sample makes."""

    class Keeping(Indices):
        def __init__(self, length: int) -> None:
            super().__init__(length)
            self.kept: dict[int, float] = {}

        def __getitem__(self, index: int) -> Any:
            return self.kept.setdefault(index, random.random() + float(torch.rand(())))

    found = []
    for spoil in (1, 2):
        random.seed(spoil)
        torch.manual_seed(spoil)
        loader: Any = StatefulGPULoader(Keeping(LENGTH), batch_size=4, seed=5, shuffle=shuffle)
        found.append([batch.tolist() for _ in range(2) for batch in loader])
    assert found[0] == found[1]


def test_a_thread_that_iterates_a_quiet_dataset_leaves_the_generators_alone() -> None:
    """Though the main thread draws while a batch is made."""
    drawn, turn, done = list[float](), threading.Event(), threading.Event()

    class Quiet(Indices):
        def __getitem__(self, index: int) -> int:
            if index == 3:
                turn.set()
                done.wait(seconds(10))
            return index

    def work() -> None:
        with pytest.warns(UserWarning, match="num_workers=1"):
            seen_there.extend(StatefulGPULoader(Quiet(LENGTH), batch_size=8, seed=5))

    random.seed(3)
    expected = [random.random() for _ in range(9)]
    random.seed(3)
    seen_there: list[Any] = []
    thread = threading.Thread(target=work)
    thread.start()
    turn.wait(seconds(10))
    drawn.extend(random.random() for _ in range(4))
    done.set()
    thread.join()
    drawn.extend(random.random() for _ in range(5))
    assert drawn == expected
    assert len(seen_there) == 3


@pytest.mark.parametrize("draws", [None, False])
def test_nothing_is_seeded_where_nothing_draws(
    draws: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw_rule, "EVIDENCE", 0)
    monkeypatch.setattr(own_generators, "seed_global_generators", _never)
    if draws is False:
        monkeypatch.setattr(draw_rule, "DrawWatch", _never)
    loader = loader_of(lambda: 0.0, draws=draws)
    assert [index for batch in seen(loader) for index in batch[0]] == list(range(LENGTH))
    dataset: Any = loader.dataset
    assert dataset.asked == list(range(LENGTH))


def _never(*_: Any) -> Any:
    raise AssertionError("seeded, or watched")


def test_a_transform_is_watched_and_may_tell_as_well() -> None:
    def noise(sample: Any) -> Any:
        return sample[0], torch.rand(()) if sample[0] == DRAWING else torch.zeros(())

    found = []
    for draws in (None, True):
        dataset = Rarely(LENGTH, lambda: 0.0, draws=False)
        if draws is not None:
            noise.draws = draws  # type: ignore[attr-defined]
        found.append(seen(StatefulGPULoader(dataset, batch_size=4, seed=5, transform=noise)))
        assert dataset.asked == list(range(LENGTH)) or draws is None
    assert found[0] == found[1]


def test_a_collate_function_draws_from_its_own_key_whether_or_not_samples_do() -> None:
    def mixing(batch: Any) -> Any:
        return [*default_collate(batch), torch.rand(2)]

    loader = loader_of(lambda: 0.0, collate_fn=mixing)
    before = generators()
    assert seen(loader) == seen(loader_of(lambda: 0.0, collate_fn=mixing, draws=True))
    assert generators() == before


@pytest.mark.parametrize("mode", ["replace", "drop", "raise"])
def test_a_sample_that_fails_is_dealt_with_as_if_all_were_seeded(mode: str) -> None:
    """Whether or not another one of its batch has drawn before."""

    def fail() -> float:
        raise ValueError("no sample")

    class Both(Rarely):
        def __getitem__(self, index: int) -> tuple[int, float]:
            if index == 6:
                return index, random.random()
            return super().__getitem__(index)

    found = []
    for draws in (None, True):
        dataset = Both(LENGTH, fail, draws)
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
    assert len(found[0][0]) == 6


RESEEDS: dict[str, Callable[[], Any]] = {
    "random.seed()": lambda: random.seed(),
    "np.random.seed()": lambda: np.random.seed(),
    "torch.seed()": lambda: torch.seed(),
}


@pytest.mark.filterwarnings("ignore:.*none of the first 0 samples")
@pytest.mark.parametrize("evidence", [0, 1024])
@pytest.mark.parametrize("name", RESEEDS)
def test_a_seed_from_the_system_is_reported_once(
    name: str, evidence: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is named, in a sample with seeds and in one without."""
    monkeypatch.setattr(draw_rule, "EVIDENCE", evidence)
    monkeypatch.setattr(global_generators, "others_alive", lambda: False)

    class Reseeding(Indices):
        def __getitem__(self, index: int) -> int:
            RESEEDS[name]()
            return index

    loader: Any = StatefulGPULoader(Reseeding(LENGTH), batch_size=4, seed=5)
    with pytest.warns(UserWarning, match="without a seed") as reported:
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
    """Nothing may be seeded there, though the batch is made again, sample by sample."""

    def fail() -> float:
        raise ValueError("no sample")

    monkeypatch.setattr(own_generators, "seed_global_generators", _never)
    found: list[Any] = []

    def work() -> None:
        loader = loader_of(fail, draws=draws, on_bad_sample="drop")
        found.extend(index for batch in loader for index in batch[0].tolist())

    before = generators()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [index for index in range(LENGTH) if index != DRAWING]
    assert generators() == before


def test_a_late_draw_beside_other_threads_restores_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever drew, the generators go on from there."""
    monkeypatch.setattr(draw_rule, "EVIDENCE", 0)
    monkeypatch.setattr(global_generators, "others_alive", lambda: True)
    random.seed(3)
    expected = [random.random() for _ in range(2)]
    random.seed(3)
    loader = loader_of(random.random)
    with pytest.warns(UserWarning, match="num_workers=1"):
        batches = seen(loader)
    assert [number for batch in batches for number in batch[1] if number] == expected[:1]
    assert random.random() == expected[1]

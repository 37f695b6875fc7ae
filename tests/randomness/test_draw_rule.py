"""DrawRule beside other threads: the main thread seeds until it meets a draw of theirs."""

from __future__ import annotations

import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.randomness import draw_rule
from stateful_gpu_loader.randomness.draw_rule import DrawRule
from stateful_gpu_loader.randomness.global_generators import DrawWatch, caller_generators_restored
from tests.patience import seconds


@pytest.fixture(autouse=True)
def _leave_no_trace() -> Iterator[None]:
    with caller_generators_restored():
        yield


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Let threads take turns far more often than every 5 milliseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def another_thread() -> Iterator[None]:
    """Run a thread that draws nothing."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield
    end.set()
    thread.join()


class Samples:
    """Two samples in a block; the places of the draws are given."""

    def __init__(self, rule: DrawRule) -> None:
        self.rule = rule
        self.seeded = 0

    def read(self, *, within: bool = False, between: bool = False) -> None:
        def block() -> None:
            for _ in range(2):
                self.rule.seeded(self.seed, random.random if within else _nothing)
                if between:
                    random.random()  # stands for another thread

        self.rule.watched(block)

    def seed(self) -> None:
        self.seeded += 1
        random.seed(self.seeded)


def _nothing() -> None:
    pass


@pytest.mark.parametrize("within", [False, True])
def test_a_draw_between_two_samples_is_another_threads(another_thread: None, within: bool) -> None:
    samples = Samples(DrawRule("Quiet", None))
    samples.read(within=within)
    assert (samples.rule.draws, samples.seeded) == (None, 2)
    with pytest.warns(UserWarning, match="num_workers=1") as said:
        samples.read(within=within, between=True)
    assert len(said) == 1
    assert (samples.rule.draws, samples.seeded) == (False, 3)
    samples.read(within=within, between=True)
    assert samples.seeded == 3


def test_samples_that_moved_a_generator_draw_if_no_other_thread_is_met(
    another_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw_rule, "EVIDENCE", 4)
    samples = Samples(DrawRule("Noisy", None))
    samples.read(within=True)
    assert samples.rule.draws is None
    samples.read()
    assert (samples.rule.draws, samples.seeded) == (True, 4)


def test_a_draw_behind_the_evidence_in_the_same_block_counts(
    another_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw_rule, "EVIDENCE", 1)
    samples = Samples(DrawRule("Noisy", None))
    places = iter([_nothing, random.random])
    samples.rule.watched(
        lambda: [samples.rule.seeded(samples.seed, next(places)) for _ in range(2)]
    )
    assert (samples.rule.draws, samples.seeded) == (True, 2)


class Unlucky:
    """A draw decides whether a sample is bad."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if random.random() < 0.5:
            raise ValueError("unlucky")
        return index


def test_a_sample_that_was_not_seeded_may_be_good_in_another_epoch(
    another_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DrawWatch, "was_moved_by_others", lambda self: self._at_look is not None)
    loader = StatefulGPULoader(Unlucky(), batch_size=20, seed=1, on_bad_sample="drop")
    with pytest.warns(UserWarning, match="generators"):
        list(loader)
    assert len(loader.bad_samples.samples) > 1
    assert not any(bad.always for bad in loader.bad_samples.samples)


def test_alone_the_first_draw_tells() -> None:
    samples = Samples(DrawRule("Noisy", None))
    samples.read(between=True)
    assert (samples.rule.draws, samples.seeded) == (None, 2)
    samples.read(within=True)
    assert (samples.rule.draws, samples.seeded) == (True, 4)


def test_a_thread_that_draws_beside_the_main_thread_repeats_no_number_once_it_is_met(
    often_switched: None,
) -> None:
    loader = StatefulGPULoader(range(40), batch_size=4, seed=1)
    drawn: list[tuple[float, float]] = []
    stop = threading.Event()
    thread = threading.Thread(target=_draw, args=(drawn, stop.is_set))
    thread.start()
    deadline = time.monotonic() + seconds(30)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        while not said and time.monotonic() < deadline:
            batches = iter(loader)
            for _ in batches:
                if said:
                    break
        assert "num_workers=1" in str(said[0].message)
        met = len(drawn) + 1  # the draw in progress may precede the warning
        for _ in batches:
            pass
    stop.set()
    thread.join()
    assert len(said) == 1
    later = drawn[met:]
    assert [len(set(numbers)) for numbers in zip(*later, strict=True)] in ([], 2 * [len(later)])


def _draw(drawn: list[Any], is_over: Callable[[], bool]) -> None:
    while not is_over():
        drawn.append((torch.rand((), dtype=torch.float64).item(), random.random()))


READS: dict[str, Callable[[], Any]] = {
    "initial_seed": torch.default_generator.initial_seed,
    "clone_state": lambda: torch.default_generator.clone_state().get_state().sum().item(),
    "_rand": lambda: np.random.mtrand._rand.get_state()[1].sum().item(),  # type: ignore[attr-defined]
}
"""Reads of a state that no stand-in can watch, since torch and NumPy check the object's type."""


class Reading:
    """Reads a state from the first sample after the evidence on."""

    draws = True

    def __init__(self, read: Callable[[], Any]) -> None:
        self.read = read

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return self.read()


@pytest.mark.parametrize("name", READS)
def test_a_read_that_the_watch_misses_is_exact_where_the_dataset_says_that_it_draws(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw_rule, "EVIDENCE", 0)
    watch = DrawWatch()
    watch.run(READS[name])
    assert not watch.was_used

    def loader() -> StatefulGPULoader:
        return StatefulGPULoader(Reading(READS[name]), batch_size=4, shuffle=True, seed=1)

    whole, first, resumed = loader(), loader(), loader()
    expected = [batch.tolist() for batch in whole]
    assert len({value for batch in expected for value in batch}) == 24
    for _ in zip(range(2), first, strict=False):
        state = first.state_dict()
    torch.rand(1)
    random.random()
    np.random.rand()
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == expected[2:]

"""The process's global generators: seeded, restored, and watched."""

from __future__ import annotations

import ctypes
import random
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader.randomness import global_generators
from stateful_gpu_loader.randomness.global_generators import (
    DrawWatch,
    GlobalGenerator,
    caller_generators_restored,
    seed_global_generators,
)
from stateful_gpu_loader.randomness.philox import Stream, sample_seeds
from tests.interrupts import interrupt_at, places_of


def spoil_global_generators():
    """Leave each at an odd place, with a cached half of a Box-Muller pair."""
    random.seed(99)
    np.random.seed(98)
    torch.manual_seed(97)
    random.gauss(0, 1)
    np.random.standard_normal()
    torch.randn(1, dtype=torch.float64)


def names_that_are_replaced():
    return (
        random.getstate,
        random.seed,
        random._inst,  # type: ignore[attr-defined]
        np.random.get_state,
        np.random.seed,
        np.random.get_bit_generator,
        torch.random.default_generator,
    )


def draw_from_global_generators():
    return [
        random.random(),
        random.gauss(0, 1),
        random.sample(range(1000), 5),
        np.random.standard_normal(3).tolist(),
        np.random.permutation(10).tolist(),
        np.random.rand(),
        torch.rand(3).tolist(),
        torch.randn(1, dtype=torch.float64).item(),
        torch.randperm(10).tolist(),
    ]


def states_of_global_generators():
    return (
        random.getstate(),
        [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],
        torch.get_rng_state().tolist(),
    )


@pytest.fixture(autouse=True)
def _leave_no_trace():
    states = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def _all_three() -> tuple[GlobalGenerator, ...]:
    return (
        global_generators.python_generator(),
        global_generators.numpy_generator(),
        global_generators.torch_generator(),
    )


@pytest.fixture(params=["in memory", "by functions"])
def _place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return the place at which the states are read."""
    if request.param == "by functions":
        monkeypatch.setattr(global_generators, "_IS_CPYTHON", False)
        generators = _all_three()
        assert [type(each) for each in generators] == [
            global_generators.ByFunctions,
            global_generators.NumpyGenerator,
            global_generators.ByFunctions,
        ]
        for name, generator in zip(("_PYTHON", "_NUMPY", "_TORCH"), generators, strict=True):
            monkeypatch.setattr(global_generators, name, generator)


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="the places are CPython's")
def test_all_three_states_are_found_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil_global_generators()
    of_python, of_numpy, of_torch = _all_three()
    assert isinstance(of_python, global_generators.PythonMemory)
    assert isinstance(of_torch, global_generators.TorchMemory)
    monkeypatch.setattr(of_numpy, "_get_state", None)
    words, normal = of_numpy.read()[1]
    assert len(words) > len(normal) > 0


def test_states_are_equal_whatever_was_left_in_memory_that_nobody_reads() -> None:
    """Normal numbers from before the seed remain in memory that is not read."""
    found = []
    for spoil in (False, True):
        if spoil:
            spoil_global_generators()
            torch.randn(16)
        random.seed(4)
        np.random.seed(4)
        torch.manual_seed(4)
        np.random.standard_normal(2)
        torch.randn(2, dtype=torch.float64)
        found.append(global_generators.global_states())
    assert global_generators.would_draw_alike(*found)
    random.random()
    found.append(global_generators.global_states())
    assert not global_generators.would_draw_alike(*found[1:])


def test_memory_that_holds_other_words_than_numpy_tells_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another version of NumPy may lay them out differently."""
    of_numpy = global_generators.numpy_generator()
    monkeypatch.setattr(
        global_generators, "_memory_at", lambda address, size: (ctypes.c_char * size)()
    )
    state = of_numpy.read()
    drawn = np.random.random()
    of_numpy.put_back(state)
    assert np.random.random() == drawn


def test_seeded_generators_draw_the_same_whatever_came_before():
    """A normal number that was cached before must not come out afterwards."""
    seed = sample_seeds(42, 0, [5], Stream.SAMPLE_GENERATORS)[0]
    seed_global_generators(seed)
    expected = draw_from_global_generators()
    spoil_global_generators()
    seed_global_generators(seed)
    assert draw_from_global_generators() == expected
    seed_global_generators(seed + 1)
    assert random.random() != expected[0]


@pytest.mark.parametrize("changed_bit", [0, 31, 32, 63])
def test_every_half_of_the_seed_matters(changed_bit):
    seed_global_generators(12345)
    before = random.random(), np.random.rand(), torch.rand(()).item()
    seed_global_generators(12345 ^ 1 << changed_bit)
    after = random.random(), np.random.rand(), torch.rand(()).item()
    assert before[0] != after[0]
    assert before[1:] != after[1:]


def test_numpy_and_torch_do_not_draw_the_same_words():
    """Both run MT19937. Seeded by the same 32 bits, one would repeat the other."""
    for seed in sample_seeds(1, 0, np.arange(20), Stream.SAMPLE_GENERATORS):
        seed_global_generators(seed)
        from_numpy = np.random.randint(2**32, size=8, dtype=np.uint32) % 2**24
        from_torch = torch.rand(8).numpy() * 2**24
        assert not (from_numpy == from_torch).any()


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_impossible_sample_seed_is_refused(seed):
    before = states_of_global_generators()
    with pytest.raises(ValueError, match=rf"sample_seed = {seed} .*Remedy"):
        seed_global_generators(seed)
    assert states_of_global_generators() == before


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize("error", [None, KeyError, KeyboardInterrupt, GeneratorExit, StopIteration])
def test_caller_gets_its_generators_back_after_a_block_or_its_exception(error):
    """Including the cached half of a Box-Muller pair."""
    spoil_global_generators()
    before = states_of_global_generators()
    expected = draw_from_global_generators()
    spoil_global_generators()

    def seeded():
        with caller_generators_restored():
            seed_global_generators(7)
            draw_from_global_generators()
            random.gauss(0, 1)
            if error is not None:
                raise error

    with nullcontext() if error is None else pytest.raises(error):
        seeded()
    assert states_of_global_generators() == before
    assert draw_from_global_generators() == expected


@pytest.mark.usefixtures("_place")
def test_caller_may_have_replaced_the_bit_generator_of_numpy():
    own = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(5))
    try:
        with caller_generators_restored():
            inside = np.random.rand()
        assert np.random.rand() == inside
        watch = DrawWatch()
        watch.run(lambda: None)
        assert not watch.was_used
        inside = watch.run(np.random.rand)
        assert watch.was_used
        watch.undo()
        assert np.random.rand() == inside
    finally:
        np.random.set_bit_generator(own)


def reseed_within_a_fork() -> None:
    """Reseed and draw: only the fork's read of the state can show."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        torch.rand(2)


def replace_the_bit_generator_of_numpy() -> None:
    np.random.set_bit_generator(np.random.PCG64(5))


USES: dict[str, Callable[[], Any]] = {
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "seed": lambda: random.seed(4),
    "state": lambda: random.getstate(),
    "the instance behind random": lambda: random._inst.getstate(),  # type: ignore[attr-defined]
    "its seed": lambda: random._inst.seed(4),  # type: ignore[attr-defined]
    "numpy": lambda: np.random.randint(5),
    "numpy's normal": np.random.standard_normal,
    "numpy's seed": lambda: np.random.seed(4),
    "numpy's state": lambda: np.random.get_state(),
    "numpy's bit generator's state": lambda: np.random.get_bit_generator().state,
    "numpy's bit generator": replace_the_bit_generator_of_numpy,
    "torch": lambda: torch.rand(1),
    "torch's normal": lambda: torch.randn(1, dtype=torch.float64),
    "torch's seed": lambda: torch.manual_seed(4),
    "torch's initial seed": torch.initial_seed,
    "torch's state": torch.get_rng_state,
    "torch's fork": reseed_within_a_fork,
    "torch's generator": lambda: torch.randperm(5, generator=torch.default_generator),
}


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize("spoil", [False, True], ids=["seeded", "with normal numbers in hand"])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_watch_notices_every_use_and_leaves_no_trace(use: Any, spoil: bool) -> None:
    seed_global_generators(12345)
    if spoil:
        spoil_global_generators()
    before = states_of_global_generators()
    expected = draw_from_global_generators()
    seed_global_generators(12345)
    if spoil:
        spoil_global_generators()
    watch = DrawWatch()
    watch.run(use)
    assert watch.was_used
    assert watch.unseedable is None
    watch.undo()
    assert states_of_global_generators() == before
    assert draw_from_global_generators() == expected


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize("spoil", [False, True])
def test_a_watch_of_nothing_notices_nothing(spoil: bool) -> None:
    seed_global_generators(12345)
    if spoil:
        spoil_global_generators()
    before = states_of_global_generators()

    def draw_from_private_generators() -> None:
        random.Random(1).random()
        np.random.default_rng(1).random()
        torch.rand(1, generator=torch.Generator().manual_seed(1))

    watch = DrawWatch()
    watch.run(draw_from_private_generators)
    assert not watch.was_used
    assert states_of_global_generators() == before


@pytest.mark.usefixtures("_place")
def test_a_watch_inside_another_one_asks_for_nothing() -> None:
    """A loader in a dataset has its own seeds."""

    def draw_and_restore() -> None:
        with caller_generators_restored():
            random.random()

    outer, inner = DrawWatch(), DrawWatch()
    outer.run(lambda: inner.run(draw_and_restore))
    assert not inner.was_used
    assert not outer.was_used
    outer.run(lambda: inner.run(torch.initial_seed))
    assert outer.was_used


def test_a_watch_ends_with_an_exception() -> None:
    before = states_of_global_generators()
    names = names_that_are_replaced()

    def interrupted() -> None:
        random.random()
        raise KeyboardInterrupt

    watch = DrawWatch()
    with pytest.raises(KeyboardInterrupt):
        watch.run(interrupted)
    assert watch.was_used
    watch.undo()
    assert states_of_global_generators() == before
    assert names_that_are_replaced() == names


UNSEEDABLE: dict[str, Callable[[], Any]] = {
    "random.seed()": lambda: random.seed(),
    "random.seed() ": lambda: random.seed(None),
    "random.seed()  ": lambda: random.seed(a=None),
    "np.random.seed()": lambda: np.random.seed(),
    "np.random.seed() ": lambda: np.random.seed(None),
    "torch.seed()": lambda: torch.seed(),
}


@pytest.mark.parametrize("name", UNSEEDABLE)
def test_a_watch_names_the_call_that_takes_a_seed_from_the_system(name: str) -> None:
    watch = DrawWatch()
    watch.run(UNSEEDABLE[name])
    assert watch.unseedable == name.strip()
    assert watch.was_used


@pytest.mark.parametrize("name", ["seed", "numpy's seed", "torch's seed"])
def test_a_watch_notices_a_seed_that_leads_to_the_state_that_was_there(name: str) -> None:
    USES[name]()
    watch = DrawWatch()
    watch.run(USES[name])
    assert not watch.has_moved
    assert watch.was_asked


def test_only_the_watched_thread_asks_where_others_are_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ask_elsewhere() -> None:
        other = threading.Thread(target=torch.initial_seed)
        other.start()
        other.join()

    for alive in (True, False):
        monkeypatch.setattr(global_generators, "others_alive", lambda alive=alive: alive)
        watch = DrawWatch()
        watch.run(ask_elsewhere)
        assert watch.was_asked is not alive


def test_the_thread_of_a_progress_bar_is_not_another_thread() -> None:
    done = threading.Event()
    quiet = type("TMonitor", (threading.Thread,), {"__module__": "tqdm._monitor"})
    for kind in (quiet, threading.Thread):
        before = global_generators.others_alive()
        thread = kind(target=done.wait, daemon=True)
        thread.start()
        assert global_generators.others_alive() is (before or kind is threading.Thread)
        done.set()
        thread.join()
        done.clear()


def _seeded_and_restored() -> None:
    with caller_generators_restored():
        seed_global_generators(7)
        random.random()


def _watched() -> None:
    def use() -> None:
        random.getstate()
        random.seed(7)
        torch.initial_seed()

    random.seed(3)
    watch = DrawWatch()
    watch.run(use)
    watch.undo()


@pytest.mark.parametrize("by", ["line", "opcode"])
@pytest.mark.parametrize("act", [_seeded_and_restored, _watched])
def test_an_interrupt_anywhere_restores_the_callers_generators_and_ends_the_watch(
    act: Callable[[], None], by: Any
) -> None:
    names, before = names_that_are_replaced(), states_of_global_generators()
    for n in places_of(act, by=by).values():
        with interrupt_at(n, by=by) as interrupt, suppress(KeyboardInterrupt):
            act()
        assert interrupt.reached, n
        assert names_that_are_replaced() == names, interrupt.where
        assert act is _watched or states_of_global_generators() == before, interrupt.where

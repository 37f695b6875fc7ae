"""Checkpoint.current: the one of this thread, as DALI's ndd.checkpoint.current() (E1)."""

from __future__ import annotations

import threading

import pytest

from stateful_gpu_loader import Checkpoint
from tests.checkpoint.counters import Counter


def of_another_thread() -> Checkpoint:
    found: list[Checkpoint] = []
    thread = threading.Thread(target=lambda: found.append(Checkpoint.current()))
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_has_one_for_its_life() -> None:
    """E1: code that is handed no checkpoint registers in the one that its caller collects."""
    mine = Checkpoint.current()
    assert Checkpoint.current() is mine
    others = of_another_thread(), of_another_thread()
    assert mine not in others
    assert others[0] is not others[1]


def test_a_block_makes_a_checkpoint_the_current_one() -> None:
    """As DALI's EvalContext does: the innermost counts, in its own thread alone."""
    before = Checkpoint.current()
    with Checkpoint() as outer:
        assert Checkpoint.current() is outer
        with outer, Checkpoint() as inner:
            assert Checkpoint.current() is inner
            assert of_another_thread() not in (outer, inner, before)
        assert Checkpoint.current() is outer
        with pytest.raises(KeyError), Checkpoint():
            raise KeyError
        assert Checkpoint.current() is outer
    assert Checkpoint.current() is before


def test_what_was_loaded_into_it_is_applied_at_registration() -> None:
    def build(count: int) -> Counter:
        counter = Counter(count)
        Checkpoint.current().register(counter, "counter")
        return counter

    with Checkpoint() as saved:
        build(3)
        saved.collect()
    with Checkpoint() as loaded:
        loaded.deserialize(saved.serialize())
        assert build(0).count == 3

"""An iterator that nobody holds is gone at once, and one that has ended holds nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from tests.stream_kinds import KINDS, Make


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("ends", [False, True], ids=["dropped", "ended"])
def test_nothing_keeps_an_iterator_alive(make: Make, ends: bool) -> None:
    """Its workers end with it: the garbage collector may come late, or never."""
    loader = make()
    batches: Any = iter(loader)
    next(batches)
    if ends:
        for _ in batches:
            pass
    held = weakref.ref(batches)
    del batches
    assert held() is None


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_an_iterator_that_has_ended_holds_nothing_of_its_pass(make: Make) -> None:
    batches: Any = iter(make())
    for _ in batches:
        pass
    assert not {"_schedule", "_plan", "_pool", "_pipeline"} & vars(batches).keys()
    assert batches.depth() == (0, 0)

"""An iterator without references is freed at once, and a finished iterator holds nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from tests.stream_kinds import KINDS, Make


@pytest.fixture(autouse=True, scope="module")
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_dropped_and_ended_iterators_are_collected(make: Make) -> None:
    """Its workers end with it, without the garbage collector."""
    for ends in (False, True):
        loader = make()
        batches: Any = iter(loader)
        next(batches)
        if ends:
            for _ in batches:
                pass
            assert not {"_schedule", "_plan", "_pool", "_pipeline"} & vars(batches).keys()
            assert batches.depth() == (0, 0)
        held = weakref.ref(batches)
        del batches
        assert held() is None

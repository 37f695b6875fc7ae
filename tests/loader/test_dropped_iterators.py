"""An iterator without references is freed at once, and a finished iterator holds nothing.

The garbage collector frees an iterator in a reference cycle.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from stateful_gpu_loader import StatefulGPULoader
from tests.conformance import assert_same_rest, copy_of, same, uninterrupted
from tests.fake_gpu import FakeGpu, fake_gpu
from tests.stream_kinds import KINDS, Make

__all__ = ["fake_gpu"]
make_map = KINDS["order"]
ON_A_DEVICE = partial(make_map, device="cuda")


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


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*samples of the iterable dataset are read again")
@pytest.mark.parametrize("make", [*KINDS.values(), ON_A_DEVICE], ids=[*KINDS, "on a device"])
def test_the_next_pass_works_after_the_collector_has_freed_an_iterator(
    make: Make, fake_gpu: FakeGpu
) -> None:
    """A kept exception often makes such a cycle: its traceback refers to the iterator."""
    persistent = {"num_workers": 2, "persistent_workers": True}
    expected, states = uninterrupted(make(**persistent), 2)
    loader = make(**persistent)
    for place in ((0, 1), (1, 0)):
        cycle: list[Any] = [iter(loader)]
        next(cycle[0])
        cycle.append(cycle)
        del cycle
        gc.collect()
        loader.load_state_dict(states[place])
        assert_same_rest(loader, expected, place, 2)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_collected_iterator_and_its_loader_can_be_used_by_a_finalizer(persistent: bool) -> None:
    """The garbage collector has ended their workers by then."""
    found: list[Any] = []

    class Owner:
        def __init__(self, loader: StatefulGPULoader[Any]) -> None:
            self.loader, self.batches, self.me = loader, iter(loader), self

        def __del__(self) -> None:
            found.extend([[*self.batches], self.loader.state_dict()["epoch"], [*self.loader]])

    expected, _ = uninterrupted(make_map(), 3)
    owner = Owner(make_map(num_workers=1, persistent_workers=persistent))
    assert same(list(owner.batches), expected[0])
    owner.batches = iter(owner.loader)
    first = copy_of(next(owner.batches))
    del owner
    gc.collect()
    rest, epoch, following = found
    assert same([first, *rest], expected[1])
    assert epoch == 2
    assert same(following, expected[2])

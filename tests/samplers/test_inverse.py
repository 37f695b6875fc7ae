"""The position of an index in an epoch: the inverse of every order, at any length."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stateful_gpu_loader.samplers import (
    Blocks,
    EpochOrder,
    OrderSampler,
    RepeatedSampler,
    ShuffledSampler,
    SubsetSampler,
)
from stateful_gpu_loader.samplers.choice import InOrderSampler
from stateful_gpu_loader.samplers.orders import has_inverse, positions_of
from tests.map_datasets import Indices
from tests.samplers.makers import EVERY, Make

MORE: dict[str, Make] = {
    "sequential": lambda **arguments: InOrderSampler(Indices(9)),
    "repeated in order": lambda **_: RepeatedSampler(range(7), 3, shuffle=False),
    "repeated, cut": lambda **_: RepeatedSampler(range(7), 3, num_samples=50),
    "repeated anywhere, in order": lambda **_: RepeatedSampler(
        range(7), 3, shuffle=False, adjacent=False, num_samples=17
    ),
    "repeated anywhere": lambda **_: RepeatedSampler(range(7), 3, adjacent=False, num_samples=50),
    "part of a range": lambda **_: SubsetSampler(range(30, 2, -4)),
    "an index twice": lambda **_: SubsetSampler([4, 8, 4, 15]),
}
BEYOND = 5
"""Number of indices asked for that the order never gives."""


@pytest.mark.parametrize("make", [*EVERY.values(), *MORE.values()], ids=[*EVERY, *MORE])
def test_the_positions_of_each_index_are_those_where_it_stands(make: Make) -> None:
    for seed, epoch in ((0, 0), (9, 4)):
        order = make().order.of_epoch(seed, epoch)
        indices = order(np.arange(order.n))
        for index in range(int(indices.max()) + BEYOND):
            assert positions_of(order, index).tolist() == np.flatnonzero(indices == index).tolist()


HUGE = range(10**11)
HUGE_SAMPLERS: dict[str, Callable[[], OrderSampler]] = {
    "sequential": lambda: InOrderSampler(HUGE),
    "shuffled": lambda: ShuffledSampler(HUGE),
    "rounds": lambda: ShuffledSampler(HUGE, num_samples=3 * 10**11),
    "repeated": lambda: RepeatedSampler(HUGE, 3),
    "repeated anywhere": lambda: RepeatedSampler(HUGE, 3, adjacent=False),
    "blocks": lambda: ShuffledSampler(HUGE, locality=Blocks(1024, window=100)),
    "a range": lambda: SubsetSampler(range(10**12, 10, -7)),
}


@pytest.mark.parametrize("make", HUGE_SAMPLERS.values(), ids=HUGE_SAMPLERS)
def test_an_index_of_a_hundred_billion_is_found_at_once(make: Callable[[], OrderSampler]) -> None:
    order: EpochOrder = make().order.of_epoch(3, 2)
    assert has_inverse(order)
    places = [0, 12_345_678_901, order.n - 1]
    for place, index in zip(places, order(np.array(places)).tolist(), strict=True):
        found = positions_of(order, index)
        assert place in found.tolist()
        assert (order(found) == index).all()


def test_draws_with_replacement_are_searched() -> None:
    order = ShuffledSampler(range(50), replacement=True).order.of_epoch(1, 1)
    assert not has_inverse(order)

"""A loader's seed is decided once, and draws from the caller's generator once."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch

from stateful_gpu_loader.randomness.seed import SettledSeed
from tests.interrupts import handle_at, places_of


def settled() -> tuple[SettledSeed, torch.Generator]:
    generator = torch.Generator().manual_seed(5)
    return SettledSeed(None, generator), generator


@pytest.mark.parametrize("later", ["value", "draw"])
def test_a_pass_that_begins_beside_another_use_draws_once(later: str) -> None:
    """Another thread begins the first pass between any two bytecodes."""
    expected, after = settled()[0].draw(), None

    def use(seed: SettledSeed) -> int:
        return seed.draw() if later == "draw" else seed.value

    for number in places_of(partial(use, settled()[0])).values():
        seed, generator = settled()
        drawn: list[int] = []
        with handle_at(number, lambda _, of=seed, to=drawn: to.append(of.draw())) as handled:  # type: ignore[misc]
            found = use(seed)
        assert handled.reached
        assert [found, *drawn, seed.draw()] == [expected] * 3
        after = after or generator.get_state().tolist()
        assert generator.get_state().tolist() == after


def test_a_copy_draws_from_its_own_generator_alone() -> None:
    """A copy begins a pass in ``peek()``; the caller may use the generator after that."""
    seed, generator = settled()
    assert copy.deepcopy(seed).draw() == seed.value
    torch.rand(1, generator=generator)
    before = generator.get_state()
    seed.draw()
    assert not torch.equal(generator.get_state(), before)

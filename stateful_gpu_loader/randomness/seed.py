"""Seed of a loader: given, loaded, or settled once from the caller's generator."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch


class SettledSeed:
    """A seed that is decided at most once in a loader's life.

    An undecided seed is the next number of the caller's generator, taken from a copy. The generator
    itself is drawn from when the first pass begins, and never if the seed was given or loaded. If
    ranks divide the data, the undecided seed is 0, as in DistributedSampler, because their
    generators may differ.

    Args:
        seed: None leaves it undecided.
        generator: the caller's generator; None is torch's default generator.
        is_divided: returns whether ranks divide the data. It is called when the seed is first
            needed, because process groups may be created after the loader.

    >>> seed = SettledSeed(None, torch.Generator().manual_seed(0))
    >>> before = seed.value
    >>> seed.draw() == before, seed.is_drawn
    (True, True)
    >>> SettledSeed(None, None, is_divided=lambda: True).value
    0
    """

    def __init__(
        self,
        seed: int | None,
        generator: torch.Generator | None,
        *,
        is_divided: Callable[[], bool] = bool,
    ) -> None:
        self._generator = generator
        self._is_divided = is_divided
        self.given = seed
        """Seed that was given, or None."""
        self._once: dict[str, Any] = {} if seed is None else {"settled": (int(seed), False)}
        """The seed, whether it is drawn, and the generator's state before the draw.

        ``setdefault()`` decides each once, for all threads.
        """
        self._owes_draw = seed is None

    def __deepcopy__(self, memo: dict[int, Any]) -> SettledSeed:
        """Return a copy with its own generator, which shares ``is_divided``."""
        twin = copy.copy(self)
        twin._once, twin._generator = {**self._once}, copy.deepcopy(self._generator, memo)
        return twin

    @property
    def value(self) -> int:
        """The seed, determined without drawing from the caller's generator."""
        return self._settled[0]

    @property
    def is_drawn(self) -> bool:
        """Whether the seed comes from a generator, which may differ between ranks."""
        return self._settled[1]

    @property
    def owing(self) -> torch.Generator | None:
        """The caller's generator, if the first pass will draw from it."""
        owes = self._owes_draw and self.is_drawn and not self._has_drawn()
        return self._generator if owes else None

    def draw(self) -> int:
        """Return the seed for the pass that begins now."""
        value = self.value
        if self._owes_draw and self.is_drawn:
            generator = self._generator or torch.default_generator
            before = self._once.setdefault("before", generator.get_state())
            if not self._has_drawn():
                generator.set_state(_after_a_draw(before))
        self._owes_draw = False
        return value

    def loaded(self, value: int, *, is_drawn: bool) -> SettledSeed:
        """Return the seed of a state, for a loader that was given what this one was given."""
        loaded = copy.copy(self)
        loaded._once, loaded._owes_draw = {"settled": (value, is_drawn)}, False
        return loaded

    @property
    def _settled(self) -> tuple[int, bool]:
        if "settled" not in self._once:
            is_drawn = not self._is_divided()
            twin = torch.Generator()
            twin.set_state((self._generator or torch.default_generator).get_state())
            self._once.setdefault("settled", (_draw(twin) if is_drawn else 0, is_drawn))
        settled: tuple[int, bool] = self._once["settled"]
        return settled

    def _has_drawn(self) -> bool:
        """Whether the generator was drawn from, by another thread or before an interrupt."""
        generator, before = self._generator or torch.default_generator, self._once.get("before")
        return before is not None and not torch.equal(before, generator.get_state())


def after_the_draw(generator: torch.Generator) -> torch.Tensor:
    """Return a generator's state after the seed is drawn from it."""
    return _after_a_draw(generator.get_state())


def _after_a_draw(state: torch.Tensor) -> torch.Tensor:
    twin = torch.Generator()
    twin.set_state(state)
    _draw(twin)
    return twin.get_state()


def _draw(generator: torch.Generator | None) -> int:
    drawn = torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator)
    return int(drawn.item())

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
        self._value = None if seed is None else int(seed)
        self._owes_draw = False
        self._is_drawn = False
        self._before: torch.Tensor | None = None
        """State of the generator before the draw, once tried."""

    def __deepcopy__(self, memo: dict[int, Any]) -> SettledSeed:
        """Return a copy with its own generator, which shares ``is_divided``."""
        twin = copy.copy(self)
        twin._generator = copy.deepcopy(self._generator, memo)
        return twin

    @property
    def value(self) -> int:
        """The seed, determined without drawing from the caller's generator."""
        if self._value is None:
            self._is_drawn = self._owes_draw = not self._is_divided()
            twin = torch.Generator()
            twin.set_state((self._generator or torch.default_generator).get_state())
            self._value = _draw(twin) if self._is_drawn else 0
        return self._value

    @property
    def is_drawn(self) -> bool:
        """Whether the seed comes from a generator, which may differ between ranks."""
        _ = self.value
        return self._is_drawn

    @property
    def owing(self) -> torch.Generator | None:
        """The caller's generator, if the first pass will draw from it."""
        _ = self.value
        return self._generator if self._owes_draw and not self._has_drawn() else None

    def draw(self) -> int:
        """Return the seed for the pass that begins now."""
        value = self.value
        if self._owes_draw:
            generator = self._generator or torch.default_generator
            if self._before is None:
                self._before = generator.get_state()
            if not self._has_drawn():
                _draw(generator)
            self._owes_draw = False
        return value

    def _has_drawn(self) -> bool:
        """Whether the generator was drawn from before an interrupt."""
        generator = self._generator or torch.default_generator
        return self._before is not None and not torch.equal(self._before, generator.get_state())

    def load(self, value: int, *, is_drawn: bool) -> None:
        """Adopt the seed of a state."""
        self._value, self._is_drawn = value, is_drawn
        self._owes_draw = False


def after_the_draw(generator: torch.Generator) -> torch.Tensor:
    """Return a generator's state after the seed is drawn from it."""
    twin = torch.Generator()
    twin.set_state(generator.get_state())
    _draw(twin)
    return twin.get_state()


def _draw(generator: torch.Generator | None) -> int:
    drawn = torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator)
    return int(drawn.item())

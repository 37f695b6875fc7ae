"""The seed of a loader: given, loaded, or settled once from the caller's generator."""

from __future__ import annotations

import torch


class SettledSeed:
    """A seed that is decided at most once in a loader's life.

    An undecided seed is what the caller's generator would give next, found on a copy of it;
    the generator itself is drawn from when the first pass begins, once in a loader's life, and
    never for a seed that was given or loaded. Ranks' generators need not agree, so the undecided
    seed of a sharded loader is 0, as DistributedSampler's.

    Args:
        seed: None leaves it undecided.
        generator: the caller's; None is torch's default generator.
        sharded: whether the loader serves one of several ranks.

    >>> seed = SettledSeed(None, torch.Generator().manual_seed(0), sharded=False)
    >>> before = seed.value
    >>> seed.draw() == before
    True
    """

    def __init__(
        self, seed: int | None, generator: torch.Generator | None, *, sharded: bool
    ) -> None:
        self._generator = generator
        self.given = seed
        """The seed that was given; None if the loader's is to be settled."""
        undecided = None if not sharded else 0
        self._value = undecided if seed is None else int(seed)
        self._owes_draw = self._value is None
        self._before: torch.Tensor | None = None
        """State of the generator before the draw; None if none was tried."""

    @property
    def value(self) -> int:
        """The seed, without touching the caller's generator."""
        if self._value is None:
            copy = torch.Generator()
            copy.set_state((self._generator or torch.default_generator).get_state())
            self._value = _draw(copy)
        return self._value

    @property
    def owing(self) -> torch.Generator | None:
        """The caller's generator, if the first pass will draw from it."""
        return self._generator if self._owes_draw else None

    def draw(self) -> int:
        """The seed, for the pass that begins now."""
        value = self.value
        if self._owes_draw:
            generator = self._generator or torch.default_generator
            if self._before is None:
                self._before = generator.get_state()
            # Otherwise an interrupt has come between the draw and its note.
            if torch.equal(self._before, generator.get_state()):
                _draw(generator)
            self._owes_draw = False
        return value

    def load(self, value: int) -> None:
        """Take the seed of a state."""
        self._value = value
        self._owes_draw = False


def after_the_draw(generator: torch.Generator) -> torch.Tensor:
    """The state that a generator will have once the seed was drawn from it."""
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    _draw(copy)
    return copy.get_state()


def _draw(generator: torch.Generator | None) -> int:
    drawn = torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator)
    return int(drawn.item())

"""The seed of a loader: given, loaded, or settled once from the caller's generator."""

from __future__ import annotations

import torch


class SettledSeed:
    """A seed that is decided at most once (law 7).

    An undecided seed is what the caller's generator would give next, found on a copy of it;
    the generator itself is drawn from when the first pass begins, once in a loader's life, and
    never for a seed that was given or loaded.

    Args:
        seed: None leaves it undecided.
        generator: the caller's; None is torch's default generator.

    >>> seed = SettledSeed(None, torch.Generator().manual_seed(0))
    >>> before = seed.value(num_replicas=1)
    >>> seed.draw(num_replicas=1) == before
    True
    """

    def __init__(self, seed: int | None, generator: torch.Generator | None) -> None:
        self._generator = generator
        self._value = seed
        self._owes_draw = seed is None

    def value(self, *, num_replicas: int) -> int:
        """The seed, without touching the caller's generator.

        With several ranks an undecided seed is 0, as DistributedSampler's: their generators
        need not agree.
        """
        if self._value is None:
            if num_replicas == 1:
                copy = torch.Generator()
                copy.set_state((self._generator or torch.default_generator).get_state())
                self._value = _draw(copy)
            else:
                self._value = 0
        return self._value

    def draw(self, *, num_replicas: int) -> int:
        """The seed, for the pass that begins now."""
        value = self.value(num_replicas=num_replicas)
        if self._owes_draw and num_replicas == 1:
            _draw(self._generator)
        self._owes_draw = False
        return value

    def load(self, value: int) -> None:
        """Take the seed of a state."""
        self._value = value
        self._owes_draw = False


def _draw(generator: torch.Generator | None) -> int:
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())

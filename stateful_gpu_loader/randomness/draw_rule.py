"""DrawRule: decides whether samples are seeded."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import TypeVar

from stateful_gpu_loader.randomness.global_generators import DrawWatch, others_alive

T = TypeVar("T")

EVIDENCE = 1024
"""Number of first samples that are seeded and watched; later ones are only watched."""


class DrawRule:
    """Decides whether the samples of one worker and pass are seeded.

    The first samples are seeded and watched. If none of them draws, later samples are only watched.
    Once a sample draws, all later samples are seeded.

    With other threads alive, the thread that moved a generator is unknown, and only the main thread
    seeds the first samples. A move between two samples shows another thread's draw, and the
    generators are left alone from then on. A move during a sample is the sample's draw, unless
    another thread's draw is seen before the first samples are over. A generator that moved without
    a seed is left alone.

    Args:
        name: name of the dataset, for warnings.
        draws: whether samples draw, if known.
    """

    def __init__(self, name: str, draws: bool | None) -> None:
        self._name = name
        self.draws = draws
        """Whether samples are seeded; None until a sample has drawn."""
        self.leaves_alone = False
        """Whether samples may draw but are not seeded, because another thread draws."""
        self._num_seeded = 0
        """Number of samples seeded and watched."""
        self._seeds_first: bool | None = None
        """Whether samples are seeded before any has drawn; None before the first sample."""
        self._may_have_drawn = False
        """Whether a generator moved during a sample, possibly through another thread."""
        self._watch: DrawWatch | None = None
        """Watch of the batch in progress."""
        self._has_warned = False
        """Whether an unseedable call was reported."""

    @property
    def may_seed(self) -> bool:
        """Whether the generators may be seeded for a sample."""
        if self.draws is not None:
            return self.draws
        if self._seeds_first is None:
            is_main = threading.current_thread() is threading.main_thread()
            self._seeds_first = is_main or not others_alive()
        return self._seeds_first

    @property
    def seeds(self) -> bool:
        """Whether the next samples are seeded: a sample has drawn, or too few were watched."""
        if self.draws is not None:
            return self.draws
        return self._num_seeded < EVIDENCE and self.may_seed

    def watched(self, read: Callable[[], T]) -> T:
        """Read a block of samples, each by :meth:`seeded`, and watch the block if necessary.

        Without seeding, the samples are watched together, as by :meth:`unseeded`.
        """
        if self.draws is not None:
            return read()
        if not self.may_seed:
            return self.unseeded(read)
        self._watch = watch = DrawWatch()
        try:
            return watch.run(read)
        finally:
            self._watch = None

    def unseeded(self, read: Callable[[], T]) -> T:
        """Read a block of samples without seeds, and watch it if necessary.

        If :attr:`draws` becomes True, the samples must be made again with seeds.
        """
        if self.draws is not None:
            return read()
        watch = DrawWatch()
        try:
            return watch.run(read)
        finally:
            if watch.was_used:
                self._settle(watch)

    def seeded(self, seed: Callable[[], object], read: Callable[[], T]) -> T:
        """Seed the generators for a sample, read it, and note whether it draws.

        Args:
            seed: seeds the generators; not called once they are left alone.
            read: returns the sample.
        """
        watch = self._watch
        if watch is not None and self.draws is None and watch.was_moved_by_others():
            self._leave_alone()
        if self.may_seed:
            seed()
        if watch is None or self.draws is not None:
            return read()
        watch.begin()
        try:
            return read()
        finally:
            watch.look()
            self._num_seeded += 1
            self._may_have_drawn |= watch.has_moved
            nobody_else_has = watch.is_alone or self._num_seeded >= EVIDENCE
            if watch.was_asked or (self._may_have_drawn and nobody_else_has):
                self.draws = True
                self._report(watch)

    def _settle(self, watch: DrawWatch) -> None:
        self._report(watch)
        if watch.is_alone:
            watch.undo()
        if watch.is_alone or watch.was_asked:
            self.draws = True
            if self._seeds_first:
                self._warn(
                    f"a sample of {self._name} drew from a global generator, but none of the "
                    f"first {self._num_seeded:,} samples did. Its batch was made again with "
                    "seeds, as all later samples are. What the dataset kept from the first call "
                    "is not reproducible. Remedy: give the dataset or transform an attribute "
                    "draws = True"
                )
            return
        self._leave_alone()

    def _leave_alone(self) -> None:
        self.draws, self.leaves_alone = False, True
        self._warn(
            f"a global generator moved while samples of {self._name} were made without workers, "
            "perhaps by another thread. The loader leaves the generators alone in this pass. If "
            "the dataset draws as well, its numbers are not reproducible. Remedy: num_workers=1, "
            "or an attribute draws = True or draws = False of the dataset and transform"
        )

    def _report(self, watch: DrawWatch) -> None:
        """Warn once about a call that the loader's seeds do not affect."""
        if watch.unseedable is not None and not self._has_warned:
            self._has_warned = True
            self._warn(
                f"{self._name} called {watch.unseedable} without a seed while it made a sample. "
                "What it draws after the call is not reproducible. Remedy: leave the call out, as "
                "the loader seeds each sample, or pass a seed"
            )

    def _warn(self, text: str) -> None:
        warnings.warn(text, stacklevel=2)

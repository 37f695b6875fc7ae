"""A case: a configuration and a life, given by a seed and a number; played, and shrunk."""

from __future__ import annotations

import gc
import multiprocessing
import random
import signal
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.fuzz.configurations import Configuration
from tests.fuzz.lives import Action, Life, drawn_life
from tests.fuzz.oracle import Difference
from tests.fuzz.player import Player
from tests.patience import seconds

TRIALS = 80
"""Number of cases played to shrink one."""
_SIMPLER: dict[str, tuple[Any, ...]] = {
    "changes": ({},),
    "through": ("as it is",),
    "into": ("fresh",),
    "used": (0,),
    "batches_ago": (0,),
    "keep_iterator": (False,),
    "in_a_cycle": (False,),
}
"""Simpler values for the arguments of actions."""


@dataclass(frozen=True)
class Failure:
    text: str

    @property
    def kind(self) -> str:
        """Sort of error, by which two failures are compared."""
        return self.text.partition(":")[0]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Case:
    """A configuration and a life."""

    configuration: Configuration
    life: Life

    @classmethod
    def drawn(cls, seed: int, number: int) -> Case:
        rng = random.Random(f"{seed}/{number}")
        configuration = Configuration.drawn(rng)
        return cls(configuration, drawn_life(configuration, rng))

    def __str__(self) -> str:
        lines = [f"    {action}" for action in self.life]
        return "\n".join([f"  {dict(self.configuration.options)}", *lines])

    def play(self) -> Failure | None:
        """Return the failure, or None."""
        player: Any = None
        try:
            with warnings.catch_warnings(), _time_limit():
                warnings.simplefilter("ignore")
                player = Player(self.configuration)
                beside = self.configuration["beside"]
                (player.play_beside_draws if beside else player.play)(self.life)
            return None
        except Difference as error:
            text = f"Difference: {error}"
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-3:]
            text = f"{type(error).__name__}: {error}\n" + "".join(traceback.format_list(where))
        finally:
            if player is not None:
                player.close()
            gc.collect()
            for child in multiprocessing.active_children():
                child.join(seconds(1))
        return Failure(text)

    def shrunk(self, failure: Failure) -> tuple[Case, Failure]:
        """Drop actions and options while the case still fails in the same way."""
        best, left = (self, failure), TRIALS
        is_done = False
        while not is_done and left > 0:
            is_done = True
            for smaller in best[0]._smaller():
                found = smaller.play()
                left -= 1
                if found is not None and found.kind == best[1].kind:
                    best, is_done = (smaller, found), False
                    break
                if left == 0:
                    break
        return best

    def _smaller(self) -> Iterator[Case]:
        """Yield the case with one action, option or argument less."""
        c, life = self.configuration, self.life
        for i in range(len(life)):
            yield Case(c, life[:i] + life[i + 1 :])
        for name in c.options:
            left = {key: value for key, value in c.options.items() if key != name}
            yield Case(Configuration(left).settled(), life)
        for i, action in enumerate(life):
            for name, value in action.arguments.items():
                for simpler in _SIMPLER.get(name, ()):
                    if simpler != value and action.name != "refuse":
                        arguments = {**action.arguments, name: simpler}
                        yield Case(c, [*life[:i], Action(action.name, arguments), *life[i + 1 :]])


@contextmanager
def _time_limit() -> Iterator[None]:
    """Fail a case that hangs."""

    def hang(*_: Any) -> None:
        raise TimeoutError("the case hangs")

    before = signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, seconds(30))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

"""The process's global generators: seeded, put back, and watched for whether anybody uses them.

They are ``random``'s, ``numpy.random``'s and torch's default generator of the CPU.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from stateful_gpu_loader.randomness.generator_memory import (
    numpy_generator,
    python_generator,
    torch_generator,
)

_PYTHON, _NUMPY, _TORCH = python_generator(), numpy_generator(), torch_generator()


def seed_global_generators(sample_seed: int) -> None:
    """Seed `random`, `numpy.random` and torch's default CPU generator, about 7 us together.

    What they draw next depends on nothing before. NumPy and torch run the same Mersenne
    Twister and take 32 bits of seed, so each gets its own half: given the same half they
    would draw the same words. `torch.manual_seed` would seed every device, at 80 us.

    Args:
        sample_seed: 0 <= sample_seed < 2**64, from `sample_seeds`.

    Raises:
        ValueError: sample_seed lies outside its range.

    >>> with caller_generators_restored():
    ...     seed_global_generators(5816605685190428394)
    ...     drawn = random.randrange(100), np.random.randint(100), torch.randint(100, ()).item()
    >>> drawn
    (65, 38, 37)
    """
    if not 0 <= sample_seed < 1 << 64:
        raise ValueError(
            f"sample_seed = {sample_seed} is outside 0 <= sample_seed < {1 << 64}. "
            "Remedy: keep it inside: take it from sample_seeds()"
        )
    random.seed(sample_seed)
    np.random.seed(sample_seed >> 32)
    torch.default_generator.manual_seed(sample_seed & 0xFFFFFFFF)


EVIDENCE = 1024
"""Number of samples that are seeded and watched before later ones are only watched."""

_ONE_AT_A_TIME = threading.RLock()
"""Guards the global generators, which belong to the whole process."""


def one_at_a_time() -> threading.RLock:
    """Return the lock that is held while a loader seeds, draws from or restores the generators."""
    return _ONE_AT_A_TIME


@contextmanager
def caller_generators_restored() -> Iterator[None]:
    """Restore `random`, `numpy.random` and torch's default CPU generator on exit.

    The global generators are the caller's. However the block ends, they are as they were before it.
    Other threads that use this function wait meanwhile. It takes about 2 us.

    >>> before = random.getstate()
    >>> with caller_generators_restored():
    ...     random.seed(0)
    >>> random.getstate() == before
    True
    """
    with one_at_a_time():
        states = global_states()
        try:
            yield
        finally:
            restore(states)


def others_alive() -> bool:
    """Return whether this process has other Python threads, which may draw from the generators.

    A worker process belongs to the loader, and so do threads that the package names.
    """
    if threading.active_count() == 1 or get_worker_info() is not None:
        return False
    present = threading.current_thread()
    return any(
        thread is not present and not thread.name.startswith("stateful_gpu_loader")
        for thread in threading.enumerate()
    )


def global_states() -> tuple[Any, Any, Any]:
    """Return the states of the three generators, equal if they would draw the same."""
    return _PYTHON.read(), _NUMPY.read(), _TORCH.read()


def restore(states: tuple[Any, Any, Any]) -> None:
    """Restore what :func:`global_states` returned, once more if an interrupt comes in between."""
    try:
        _put_back(*states)
    except BaseException:
        _put_back(*states)
        raise


def _put_back(of_python: Any, of_numpy: Any, of_torch: Any) -> None:
    _PYTHON.put_back(of_python)
    _NUMPY.put_back(of_numpy)
    _TORCH.put_back(of_torch)


class DrawWatch:
    """Notices whether a block of code may have drawn from a global generator, in about 3 us.

    A block uses a generator if it leaves it in another state, or asks for its state or seed by the
    functions of ``random``, ``numpy.random`` and torch. Another thread's draws count as well.

    >>> with DrawWatch() as watch:
    ...     _ = sum(range(10))
    >>> watch.was_used
    False
    >>> with DrawWatch() as watch:
    ...     _ = random.random()
    >>> watch.was_used
    True
    """

    def __init__(self) -> None:
        self.was_used = False
        """Whether the block may have used a generator; known after it."""
        self.has_moved = self.was_asked = False
        """Whether a generator has moved, and whether the block asked for a state or seed."""

    def __enter__(self) -> DrawWatch:
        self._states = global_states()
        self._looked_up = looked_up = _looked_up()
        self._times_asked = _Asked.times
        _let_look_up(*(_STAND_INS if looked_up == _USUAL else map(_Asked, looked_up)))
        return self

    def __exit__(self, *_: object) -> None:
        _let_look_up(*self._looked_up)
        self.has_moved = global_states() != self._states
        self.was_asked = _Asked.times != self._times_asked
        self.was_used = self.was_used or self.has_moved or self.was_asked

    def undo(self) -> None:
        """Restore the generators to where they were before the block."""
        if self.has_moved:
            restore(self._states)


_of_torch: Any = torch.random


def _looked_up() -> tuple[Any, ...]:
    """Return what code looks up that asks for a state or seed, as ``torch.initial_seed()`` does."""
    return random.getstate, np.random.get_state, _of_torch.default_generator


def _let_look_up(of_python: Any, of_numpy: Any, of_torch: Any) -> None:
    random.getstate, np.random.get_state = of_python, of_numpy
    _of_torch.default_generator = of_torch


class _Asked:
    """Stands in for a generator, or a function of it, and counts how often anybody uses it."""

    times = 0
    """How often any stand-in was used."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __getattr__(self, name: str) -> Any:
        _Asked.times += 1
        return getattr(self.thing, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _Asked.times += 1
        return self.thing(*args, **kwargs)


_USUAL = _looked_up()
_STAND_INS = tuple(map(_Asked, _USUAL))

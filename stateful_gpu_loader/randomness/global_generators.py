"""The process's global generators: seeded, put back, and watched for whether anybody uses them.

They are ``random``'s, ``numpy.random``'s and torch's default generator of the CPU.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import get_worker_info

from stateful_gpu_loader.randomness.generator_memory import (
    numpy_generator,
    python_generator,
    torch_generator,
)

T = TypeVar("T")

_seed_python, _seed_numpy = random.seed, np.random.seed
"""The functions themselves, as stand-ins count who calls them by name."""
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
    _seed_python(sample_seed)
    _seed_numpy(sample_seed >> 32)
    torch.default_generator.manual_seed(sample_seed & 0xFFFFFFFF)


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
            try:
                yield
            finally:
                restore(states)
        except BaseException:
            # A signal handler may have raised just before restore() was called.
            restore(states)
            raise


_QUIET = frozenset({"tqdm", "IPython", "ipykernel"})
"""Packages whose own threads never draw."""


def others_alive() -> bool:
    """Return whether this process has other Python threads, which may draw from the generators.

    A worker process belongs to the loader, and so do threads that the package names. The threads of
    a progress bar and of a notebook never draw.
    """
    if threading.active_count() == 1 or get_worker_info() is not None:
        return False
    present = threading.current_thread()
    return any(
        thread is not present
        and not thread.name.startswith("stateful_gpu_loader")
        and type(thread).__module__.partition(".")[0] not in _QUIET
        for thread in threading.enumerate()
    )


def global_states() -> tuple[Any, Any, Any]:
    """Return the states of the three generators, to be compared by :func:`would_draw_alike`."""
    return _PYTHON.read(), _NUMPY.read(), _TORCH.read()


def would_draw_alike(states: tuple[Any, Any, Any], others: tuple[Any, Any, Any]) -> bool:
    """Whether the generators would draw the same from both of these states."""
    if states == others:
        return True
    generators = _PYTHON, _NUMPY, _TORCH
    pairs = zip(generators, states, others, strict=True)
    return all(each.told(one) == each.told(other) for each, one, other in pairs)


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
    """Notices whether a call may have drawn from a global generator.

    Code uses a generator if it leaves it in another state, or asks for its state or seed by the
    functions of ``random``, ``numpy.random`` and torch. Another thread's draws count as well, so
    :attr:`is_alone` is known too.

    >>> watch = DrawWatch()
    >>> watch.run(lambda: sum(range(10))), watch.was_used
    (45, False)
    >>> _ = watch.run(random.random)
    >>> watch.was_used
    True
    """

    def __init__(self) -> None:
        self.was_used = False
        """Whether a generator may have been used; known after :meth:`look`."""
        self.has_moved = self.was_asked = False
        """Whether a generator has moved, and whether a state or seed was asked for."""
        self.is_alone = not others_alive()
        """Whether no other thread was there when the watch began."""
        self.thread = threading.get_ident()
        """The watched thread. Where others are alive, only it can ask."""
        self.times_asked = 0
        """Number of times that a state or seed was asked for or set."""
        self._at_look: tuple[Any, Any, Any] | None = None
        """States at the last look."""
        self.unseedable: str | None = None
        """Call that takes a seed from the system, such as ``random.seed()``; None if none did."""

    def run(self, call: Callable[[], T]) -> T:
        """Watch a call; meanwhile stand-ins count who asks for a state or seed."""
        looked_up = _lookups()
        self.begin()
        try:
            try:
                stand_ins = _STAND_INS if looked_up == _USUAL else _stand_ins_of(looked_up)
                for stand_in in stand_ins:
                    stand_in.watch = self
                _substitute(*stand_ins)
                return call()
            finally:
                self.look()
                _substitute(*looked_up)
        except BaseException:
            # A signal handler may have raised before the last line was reached.
            _substitute(*looked_up)
            raise

    def begin(self) -> None:
        """Watch from here on."""
        self._asked_before = self.times_asked
        self._states = global_states()

    def look(self) -> None:
        """Compare with the beginning."""
        self._at_look = global_states()
        self.has_moved = not would_draw_alike(self._at_look, self._states)
        self.was_asked = self.times_asked != self._asked_before
        self.was_used = self.was_used or self.has_moved or self.was_asked

    def was_moved_by_others(self) -> bool:
        """Whether a generator has moved since :meth:`look`, while the watched thread drew nothing.

        It is False where the watch is alone.
        """
        if self.is_alone or self._at_look is None:
            return False
        return not would_draw_alike(self._at_look, global_states())

    def undo(self) -> None:
        """Restore the generators to where they were at the beginning."""
        if self.has_moved:
            restore(self._states)

    def note(self, call: str | None) -> None:
        """Count that a state or seed was asked for or set.

        Args:
            call: the call that takes a seed from the system, or None.
        """
        if self.is_alone or threading.get_ident() == self.thread:
            self.times_asked += 1
            self.unseedable = self.unseedable or call


_of_python: Any = random
_of_numpy: Any = np.random
_of_torch: Any = torch.random
_UNSEEDABLE = None, "random.seed()", None, None, "np.random.seed()", None, "torch.seed()"
"""Calls of :func:`_lookups` that take a seed from the system where no seed is passed."""


def _lookups() -> tuple[Any, ...]:
    """Return what code looks up that asks for a state or seed, as ``torch.initial_seed()`` does."""
    return (
        random.getstate,
        random.seed,
        _of_python._inst,
        np.random.get_state,
        np.random.seed,
        _of_numpy.get_bit_generator,
        _of_torch.default_generator,
    )


def _substitute(*things: Any) -> None:
    (
        random.getstate,
        random.seed,
        _of_python._inst,
        np.random.get_state,
        np.random.seed,
        _of_numpy.get_bit_generator,
        _of_torch.default_generator,
    ) = things


class _StandIn:
    """Stands in for a generator, or a function of it, and notes who uses it.

    Args:
        thing: what it stands in for.
        call: name of the call that takes a seed from the system, or None.
    """

    __slots__ = ("call", "thing", "watch")

    watch: DrawWatch
    """The watch in progress."""

    def __init__(self, thing: Any, call: str | None) -> None:
        self.thing = thing
        self.call = call

    def __getattr__(self, name: str) -> Any:
        self.watch.note(self.call if name == "seed" else None)
        return getattr(self.thing, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        seeds = [*args[:1], *kwargs.values()]
        self.watch.note(self.call if seeds in ([], [None]) else None)
        return self.thing(*args, **kwargs)


def _stand_ins_of(things: tuple[Any, ...]) -> tuple[_StandIn, ...]:
    return tuple(map(_StandIn, things, _UNSEEDABLE))


_USUAL = _lookups()
_STAND_INS = _stand_ins_of(_USUAL)

"""The process's global generators: seeded, put back, and watched for whether anybody uses them.

They are ``random``'s, ``numpy.random``'s and torch's default generator of the CPU.
"""

from __future__ import annotations

import ctypes
import random
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator

_python_state, _numpy_state = random.getstate, np.random.get_state
"""As they are where nobody watches them: a watch inside another one asks for no seed."""


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


@contextmanager
def caller_generators_restored() -> Iterator[None]:
    """Put `random`, `numpy.random` and torch's default CPU generator back on exit.

    The global generators are the caller's: whatever runs inside, and however it ends, they
    are as they were. About 0.1 ms, so it goes around a batch, not around a sample.

    >>> before = random.getstate()
    >>> with caller_generators_restored():
    ...     random.seed(0)
    >>> random.getstate() == before
    True
    """
    # legacy=False: the only form that works when the caller replaced NumPy's bit generator.
    numpy_state = _numpy_state(legacy=False)
    python_state = _python_state()
    torch_state = torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        torch.default_generator.set_state(torch_state)
        np.random.set_state(numpy_state)


class DrawWatch:
    """Tells of a block of code whether it may have drawn from a global generator; none has moved.

    A block uses a generator if it leaves it in another state, or asks for its state or seed by the
    functions of ``random``, ``numpy.random`` and torch. However the block ends, the generators are
    as they were. About 8 us, a tenth of :func:`caller_generators_restored`.

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
        """Whether the block may have used a generator; known behind it."""

    def __enter__(self) -> DrawWatch:
        self._python = _python_words(), _PYTHON.gauss_next
        self._numpy = _NumpyMark()
        self._torch = torch.default_generator.get_state()
        self._asked = [_Asked(thing) for thing in _looked_up()]
        _let_look_up(*self._asked)
        return self

    def __exit__(self, *_: object) -> None:
        of_python, of_numpy, of_torch = self._asked
        _let_look_up(of_python.thing, of_numpy.thing, of_torch.thing)
        self.was_used |= of_python.was_asked or of_numpy.was_asked or of_torch.was_asked
        if (_python_words(), _PYTHON.gauss_next) != self._python:
            self.was_used = True
            (index, *words), normal = memoryview(self._python[0]).cast("I"), self._python[1]
            random.setstate((random.Random.VERSION, (*words, index), normal))
        torch_state = torch.default_generator.get_state()
        if _bytes_of(torch_state) != _bytes_of(self._torch):
            self.was_used = True
            torch.default_generator.set_state(self._torch)
        self.was_used |= self._numpy.put_back()


_of_torch: Any = torch.random


def _looked_up() -> tuple[Any, ...]:
    """Return what code looks up that asks for a state or seed, as ``torch.initial_seed()`` does."""
    return random.getstate, np.random.get_state, _of_torch.default_generator


def _let_look_up(of_python: Any, of_numpy: Any, of_torch: Any) -> None:
    random.getstate, np.random.get_state = of_python, of_numpy
    _of_torch.default_generator = of_torch


_PYTHON: Any = getattr(_python_state, "__self__", None)
"""The generator of ``random``'s functions."""
_BYTES = 4 * 625
"""Of a Mersenne Twister in Python and in NumPy: 624 words and the place among them."""


def _python_words() -> bytes:
    """Return the place and the words of ``random``'s generator; ``getstate`` takes 8 us."""
    return _python_memory.raw if _python_memory else _asked_for_words()


def _asked_for_words() -> bytes:
    *words, index = _python_state()[1]
    return array("I", (index, *words)).tobytes()


def _memory_of_python() -> Any:
    """Return the memory where CPython keeps the place and the words; None if they are not there."""
    has_room = object.__basicsize__ + _BYTES <= type(_PYTHON).__basicsize__
    if sys.implementation.name != "cpython" or not has_room:
        return None
    memory = (ctypes.c_char * _BYTES).from_address(id(_PYTHON) + object.__basicsize__)
    return memory if memory.raw == _asked_for_words() else None


_python_memory = _memory_of_python()


def _bytes_of(state: torch.Tensor) -> bytes:
    """Return a copy of a state on the CPU, which compares faster than a tensor."""
    return ctypes.string_at(state.data_ptr(), state.numel())


class _NumpyMark:
    """Where ``numpy.random`` stands, in 2 us; ``get_state`` and ``set_state`` take 30 times that.

    Its words are read from memory at the address that NumPy gives. Of a normal number that is kept
    for the next call there is no such address; so a mark takes it, and puts it back.
    """

    def __init__(self) -> None:
        self._bits = get_bit_generator()
        self._is_plain = isinstance(self._bits, np.random.MT19937)
        if not self._is_plain:  # the caller has put another one in its place
            self._state = _numpy_state(legacy=False)
            return
        self._memory = (ctypes.c_char * _BYTES).from_address(self._bits.ctypes.state_address)
        self._words = self._memory.raw
        number = np.random.standard_normal()
        self._kept = number if self._memory.raw == self._words else None
        if self._kept is None:
            np.random.standard_normal()  # the second of the pair
            self._memory.raw = self._words

    def put_back(self) -> bool:
        """Put the generator back; return whether it had moved."""
        if not self._is_plain:
            found = _numpy_state(legacy=False)
            set_bit_generator(self._bits)
            np.random.set_state(self._state)
            return repr(found) != repr(self._state)
        has_moved = get_bit_generator() is not self._bits or self._memory.raw != self._words
        if has_moved:
            set_bit_generator(self._bits)  # without a number that it keeps
            self._memory.raw = self._words
        if self._kept is not None:
            state = _numpy_state(legacy=False)
            np.random.set_state({**state, "has_gauss": 1, "gauss": self._kept})
        return has_moved


class _Asked:
    """Stands in for a generator, or a function of it, and notes whether anybody has used it."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing
        self.was_asked = False

    def __getattr__(self, name: str) -> Any:
        self.was_asked = True
        return getattr(self.thing, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.was_asked = True
        return self.thing(*args, **kwargs)

"""The global generators' states, read and put back where they lie in memory.

The functions that ``random``, ``numpy.random`` and torch have for it turn 624 words into objects
and back, which takes 8, 35 and 2 us; to copy the bytes takes 0.1. With the functions alone, a batch
of one sample takes 9 times torch's, where the aim is 3 (``benchmarks.bench_overhead``).

Where a generator keeps its state is looked for at import, in one whose state is known. Where it is
not found, as in another interpreter than CPython, those functions are called.
"""

from __future__ import annotations

import ctypes
import pickle
import random
import struct
import sys
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator

_IS_CPYTHON = sys.implementation.name == "cpython"
_WORDS = 624
"""Words of a Mersenne Twister."""
_WITH_PLACE = 4 * (_WORDS + 1)
"""Bytes of the words and the place among them, in Python and in NumPy."""


class GlobalGenerator(Protocol):
    """One generator of the whole process."""

    def read(self) -> Any:
        """Return the state."""
        ...

    def told(self, state: Any) -> Any:
        """Return the part of a state that decides the next draws.

        The rest is padding, and a number that the generator has already given.
        """
        ...

    def put_back(self, state: Any) -> None:
        """Let the generator go on from a state that :meth:`read` returned."""
        ...


class ByFunctions:
    """A generator whose state is asked for and set by functions.

    Args:
        get: returns the state as a value that can be compared and does not change.
        set_to: sets it.
    """

    def __init__(self, get: Callable[[], Any], set_to: Callable[[Any], Any]) -> None:
        self.read = get
        self.put_back = set_to

    def told(self, state: Any) -> Any:
        return state


class PythonMemory:
    """``random``'s generator.

    Args:
        generator: the generator.
        memory: its words and the place among them.
    """

    def __init__(self, generator: Any, memory: Any) -> None:
        self._generator = generator
        self._memory = memory

    def read(self) -> tuple[bytes, float | None]:
        return self._memory.raw, self._generator.gauss_next

    def told(self, state: tuple[bytes, float | None]) -> Any:
        return state

    def put_back(self, state: tuple[bytes, float | None]) -> None:
        self._memory.raw, self._generator.gauss_next = state


class NumpyGenerator:
    """``numpy.random``'s generator; the caller may put another bit generator into it.

    Args:
        normal: memory of the normal number that it keeps for the next call, and of whether it does;
            None if that is not known.
    """

    def __init__(self, normal: Any) -> None:
        self._normal = normal
        self._get_state, self._set_state = np.random.get_state, np.random.set_state
        self._bits: Any = None
        self._words: Any = None
        """Memory of the bit generator's words and the place among them; None if not known."""

    def read(self) -> tuple[Any, Any]:
        bits = get_bit_generator()
        if bits is not self._bits:
            self._find(bits)
        if self._words is None:
            # legacy=False: the only form that works with another bit generator.
            return bits, pickle.dumps(self._get_state(legacy=False))
        return bits, (self._words.raw, self._normal.raw)

    def told(self, state: tuple[Any, Any]) -> Any:
        bits, numbers = state
        if isinstance(numbers, bytes):
            return state
        words, normal = numbers
        return bits, words, normal if normal[0] else None

    def put_back(self, state: tuple[Any, Any]) -> None:
        bits, numbers = state
        if get_bit_generator() is not bits:
            set_bit_generator(bits)
        if bits is not self._bits:
            self._find(bits)
        if self._words is None:
            self._set_state(pickle.loads(numbers))
        else:
            self._words.raw, self._normal.raw = numbers

    def _find(self, bits: Any) -> None:
        self._bits, self._words = bits, None
        if self._normal is not None and isinstance(bits, np.random.MT19937):
            memory = _memory_at(bits.ctypes.state_address, _WITH_PLACE)
            told = bits.state["state"]
            if memory.raw == told["key"].tobytes() + struct.pack("i", told["pos"]):
                self._words = memory


class TorchMemory:
    """torch's default generator of the CPU.

    Args:
        memory: its words, the place among them, and the normal numbers that it keeps.
    """

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def read(self) -> bytes:
        memory: bytes = self._memory.raw
        return memory

    def put_back(self, state: bytes) -> None:
        self._memory.raw = state

    def told(self, state: bytes) -> tuple[Any, ...]:
        single, has_single, double, has_double = _KEPT.unpack_from(state, _BEFORE_KEPT)
        return (
            state[:_BEFORE_PADDING],
            state[_BEHIND_PADDING:_BEFORE_KEPT],
            single if has_single else None,
            double if has_double else None,
        )


def python_generator() -> GlobalGenerator:
    """Return ``random``'s generator."""
    generator: Any = getattr(random.getstate, "__self__", None)
    has_room = object.__basicsize__ + _WITH_PLACE <= type(generator).__basicsize__
    if _IS_CPYTHON and has_room:
        memory = _memory_at(id(generator) + object.__basicsize__, _WITH_PLACE)
        _, (*words, place), _ = random.getstate()
        if memory.raw == struct.pack(f"{_WORDS + 1}I", place, *words):
            return PythonMemory(generator, memory)
    return ByFunctions(random.getstate, random.setstate)


def numpy_generator() -> GlobalGenerator:
    """Return ``numpy.random``'s generator."""
    generator: Any = getattr(np.random.get_state, "__self__", None)
    twin = np.random.RandomState(0)
    if _IS_CPYTHON and type(generator) is type(twin):
        twin.standard_normal()  # the first of a pair; the second is kept
        number = twin.get_state(legacy=False)["gauss"]
        kept = struct.pack("id", True, number)
        place = ctypes.string_at(id(twin), type(twin).__basicsize__).find(kept)
        twin.standard_normal()
        gone = struct.pack("i", False)
        if place > 0 and ctypes.string_at(id(twin) + place, len(gone)) == gone:
            return NumpyGenerator(_memory_at(id(generator) + place, len(kept)))
    return NumpyGenerator(None)


_OF_TORCH = struct.Struct(f"=Qi?3xI{_WORDS}I4xf?3xd?")
"""The seed, how many words are left, whether it is seeded, the next word, the words; and a float
and a double that are kept, each with whether it is."""
_AS_TOLD_BY_TORCH = struct.Struct(f"=QiiQ{_WORDS}Qdddi4xf?3x")
"""The same in torch's serialized state; of the three doubles the second is the one that is kept."""
_BEFORE_WORDS = 8 + 4 + 4 + 4
_BEFORE_PADDING, _BEHIND_PADDING = 8 + 4 + 1, 8 + 4 + 4
_BEFORE_KEPT = _BEFORE_WORDS + 4 * _WORDS
_KEPT = struct.Struct("=4xf?3xd?")
_FIRST_BYTES = 256
"""Of a generator of torch, within which its words begin."""


def torch_generator() -> GlobalGenerator:
    """Return torch's default generator of the CPU."""
    generator: Any = torch.default_generator
    twin: Any = torch.Generator()
    torch.randn(1, dtype=torch.float64, generator=twin, device="cpu")  # keeps another number
    state = twin.get_state()
    state.numpy()[-8:] = list(struct.pack("f?3x", 0.5, True))
    twin.set_state(state)
    told = _told_by(twin)
    words = struct.pack("16I", *told[4:20])
    address = getattr(twin, "_cdata", None)
    if _IS_CPYTHON and address is not None:
        place = ctypes.string_at(address, _FIRST_BYTES).find(words) - _BEFORE_WORDS
        if place > 0 and _found_at(address + place) == told:
            address = generator._cdata + place
            if _found_at(address)[: 4 + _WORDS] == _told_by(generator)[: 4 + _WORDS]:
                return TorchMemory(_memory_at(address, _OF_TORCH.size))
    return ByFunctions(
        lambda: generator.get_state().numpy().tobytes(),
        lambda state: generator.set_state(torch.from_numpy(np.frombuffer(state, np.uint8).copy())),
    )


def _told_by(generator: Any) -> tuple[Any, ...]:
    """Return what torch says of a generator, in the order of its memory."""
    numbers = _AS_TOLD_BY_TORCH.unpack(generator.get_state().numpy().tobytes())
    head, (_, double, _, has_double, number, has_number) = numbers[:-6], numbers[-6:]
    return *head, number, has_number, double, bool(has_double)


def _found_at(address: int) -> tuple[Any, ...]:
    return _OF_TORCH.unpack(ctypes.string_at(address, _OF_TORCH.size))


def _memory_at(address: int, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address)

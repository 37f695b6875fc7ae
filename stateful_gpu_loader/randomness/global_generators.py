"""The process's global generators: seeded, restored, and watched for use.

These are the generators of ``random`` and ``numpy.random``, and torch's default CPU generator.
Their states are copied directly in memory, in 0.1 us. The official functions of the three packages
convert 624 words to objects and back, in 8, 35 and 2 us. With these, a batch of one sample takes 9
times as long as torch's (``benchmarks.bench_overhead``).

The place of each state is located at import, in a generator whose state is known. If it is not
found, as outside CPython, the official functions are called.
"""

from __future__ import annotations

import ctypes
import pickle
import random
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from torch.utils.data import get_worker_info

_IS_CPYTHON = sys.implementation.name == "cpython"
_WORDS = 624
"""Number of words of a Mersenne Twister."""
_WITH_PLACE = 4 * (_WORDS + 1)
"""Number of bytes of the words and the place among them, in Python and in NumPy."""


class GlobalGenerator(Protocol):
    """One global generator of the process."""

    def read(self) -> Any: ...

    def effective(self, state: Any) -> Any:
        """Return the part of a state that determines the next draws."""
        ...

    def put_back(self, state: Any) -> None:
        """Continue from a state that :meth:`read` returned."""
        ...


class ByFunctions:
    """A generator whose state is read and set by functions.

    Args:
        get: returns the state as an immutable, comparable value.
        set_to: sets the state.
    """

    def __init__(self, get: Callable[[], Any], set_to: Callable[[Any], Any]) -> None:
        self.read = get
        self.put_back = set_to

    def effective(self, state: Any) -> Any:
        return state


class PythonMemory:
    """``random``'s generator.

    Args:
        generator: the generator.
        memory: memory of its words and the place among them.
    """

    def __init__(self, generator: Any, memory: Any) -> None:
        self._generator = generator
        self._memory = memory

    def read(self) -> tuple[bytes, float | None]:
        return self._memory.raw, self._generator.gauss_next

    def effective(self, state: tuple[bytes, float | None]) -> Any:
        return state

    def put_back(self, state: tuple[bytes, float | None]) -> None:
        self._memory.raw, self._generator.gauss_next = state


class NumpyGenerator:
    """``numpy.random``'s generator; the caller may put another bit generator into it.

    Args:
        normal: memory of the cached normal number and its flag; None if unknown.
    """

    def __init__(self, normal: Any) -> None:
        self._normal = normal
        self._get_state, self._set_state = np.random.get_state, np.random.set_state
        self._bits: Any = None
        self._words: Any = None
        """Memory of the bit generator's words and the place among them; None if unknown."""

    def read(self) -> tuple[Any, Any]:
        bits = get_bit_generator()
        if bits is not self._bits:
            self._find(bits)
        if self._words is None:
            # Only legacy=False works with another bit generator.
            return bits, pickle.dumps(self._get_state(legacy=False))
        return bits, (self._words.raw, self._normal.raw)

    def effective(self, state: tuple[Any, Any]) -> Any:
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
            found = bits.state["state"]
            if memory.raw == found["key"].tobytes() + struct.pack("i", found["pos"]):
                self._words = memory


class TorchMemory:
    """torch's default CPU generator, read and set in its memory.

    Args:
        memory: its words, the place among them, and the cached normal numbers.
    """

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def read(self) -> bytes:
        memory: bytes = self._memory.raw
        return memory

    def put_back(self, state: bytes) -> None:
        self._memory.raw = state

    def effective(self, state: bytes) -> tuple[Any, ...]:
        single, has_single, double, has_double = _KEPT.unpack_from(state, _BEFORE_KEPT)
        return (
            state[:_BEFORE_PADDING],
            state[_AFTER_PADDING:_BEFORE_KEPT],
            single if has_single else None,
            double if has_double else None,
        )


def python_generator() -> GlobalGenerator:
    generator: Any = getattr(random.getstate, "__self__", None)
    has_room = object.__basicsize__ + _WITH_PLACE <= type(generator).__basicsize__
    if _IS_CPYTHON and has_room:
        memory = _memory_at(id(generator) + object.__basicsize__, _WITH_PLACE)
        _, (*words, place), _ = random.getstate()
        if memory.raw == struct.pack(f"{_WORDS + 1}I", place, *words):
            return PythonMemory(generator, memory)
    return ByFunctions(random.getstate, random.setstate)


def numpy_generator() -> GlobalGenerator:
    generator: Any = getattr(np.random.get_state, "__self__", None)
    twin = np.random.RandomState(0)
    if _IS_CPYTHON and type(generator) is type(twin):
        twin.standard_normal()  # returns one of a pair and caches the other
        number = twin.get_state(legacy=False)["gauss"]
        kept = struct.pack("id", True, number)
        place = ctypes.string_at(id(twin), type(twin).__basicsize__).find(kept)
        twin.standard_normal()
        gone = struct.pack("i", False)
        if place > 0 and ctypes.string_at(id(twin) + place, len(gone)) == gone:
            return NumpyGenerator(_memory_at(id(generator) + place, len(kept)))
    return NumpyGenerator(None)


_OF_TORCH = struct.Struct(f"=Qi?3xI{_WORDS}I4xf?3xd?")
"""Layout in memory: seed, number of words left, whether it is seeded, next word, words; then a
cached float and a cached double, each with a flag."""
_SERIALIZED_BY_TORCH = struct.Struct(f"=QiiQ{_WORDS}Qdddi4xf?3x")
"""The same in torch's serialized state; the second double is the cached one."""
_BEFORE_WORDS = 8 + 4 + 4 + 4
_BEFORE_PADDING, _AFTER_PADDING = 8 + 4 + 1, 8 + 4 + 4
_BEFORE_KEPT = _BEFORE_WORDS + 4 * _WORDS
_KEPT = struct.Struct("=4xf?3xd?")
_FIRST_BYTES = 256
"""Maximum number of bytes of a torch generator before its words."""


def torch_generator() -> GlobalGenerator:
    generator: Any = torch.default_generator
    twin: Any = torch.Generator()
    torch.randn(1, dtype=torch.float64, generator=twin, device="cpu")  # caches another number
    state = twin.get_state()
    state.numpy()[-8:] = list(struct.pack("f?3x", 0.5, True))
    twin.set_state(state)
    found = _reported_by(twin)
    words = struct.pack("16I", *found[4:20])
    address = getattr(twin, "_cdata", None)
    if _IS_CPYTHON and address is not None:
        place = ctypes.string_at(address, _FIRST_BYTES).find(words) - _BEFORE_WORDS
        if place > 0 and _found_at(address + place) == found:
            address = generator._cdata + place
            if _found_at(address)[: 4 + _WORDS] == _reported_by(generator)[: 4 + _WORDS]:
                return TorchMemory(_memory_at(address, _OF_TORCH.size))
    return ByFunctions(
        lambda: generator.get_state().numpy().tobytes(),
        lambda state: generator.set_state(torch.from_numpy(np.frombuffer(state, np.uint8).copy())),
    )


def _reported_by(generator: Any) -> tuple[Any, ...]:
    """Return torch's report of a generator's state, in the order of its memory."""
    numbers = _SERIALIZED_BY_TORCH.unpack(generator.get_state().numpy().tobytes())
    head, (_, double, _, has_double, number, has_number) = numbers[:-6], numbers[-6:]
    return *head, number, has_number, double, bool(has_double)


def _found_at(address: int) -> tuple[Any, ...]:
    return _OF_TORCH.unpack(ctypes.string_at(address, _OF_TORCH.size))


def _memory_at(address: int, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address)


T = TypeVar("T")

_seed_python, _seed_numpy = random.seed, np.random.seed
"""The original functions, before stand-ins count their calls."""
_PYTHON, _NUMPY, _TORCH = python_generator(), numpy_generator(), torch_generator()


def seed_global_generators(sample_seed: int) -> None:
    """Seed `random`, `numpy.random` and torch's default CPU generator, in about 7 us.

    NumPy and torch run the same Mersenne Twister with 32-bit seeds, so each gets its own half of
    the seed. `torch.manual_seed` would seed every device, in 80 us.

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
            "Remedy: pass a seed from sample_seeds()"
        )
    _seed_python(sample_seed)
    _seed_numpy(sample_seed >> 32)
    torch.default_generator.manual_seed(sample_seed & 0xFFFFFFFF)


_ONE_AT_A_TIME = threading.RLock()
"""Guards the global generators, which belong to the whole process."""


def one_at_a_time() -> threading.RLock:
    """Return the lock that a loader holds while it seeds, uses or restores the generators."""
    return _ONE_AT_A_TIME


@contextmanager
def caller_generators_restored() -> Iterator[None]:
    """Restore `random`, `numpy.random` and torch's default CPU generator on exit.

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
    """Whether this process has other Python threads, which may draw from the generators.

    A worker process and threads that the package names belong to the loader. The threads of a
    progress bar or a notebook never draw.
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
    """Return the states of the three generators, for comparison by :func:`would_draw_alike`."""
    return _PYTHON.read(), _NUMPY.read(), _TORCH.read()


def would_draw_alike(states: tuple[Any, Any, Any], others: tuple[Any, Any, Any]) -> bool:
    """Whether the generators would draw the same numbers from both states."""
    if states == others:
        return True
    generators = _PYTHON, _NUMPY, _TORCH
    pairs = zip(generators, states, others, strict=True)
    return all(each.effective(one) == each.effective(other) for each, one, other in pairs)


def restore(states: tuple[Any, Any, Any]) -> None:
    """Restore the result of :func:`global_states`; repeat it after an interrupt."""
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

    A call uses a generator if it changes its state, or requests its state or seed from ``random``,
    ``numpy.random`` or torch. Draws of other threads count as well, so :attr:`is_alone` is
    recorded.

    >>> watch = DrawWatch()
    >>> watch.run(lambda: sum(range(10))), watch.was_used
    (45, False)
    >>> _ = watch.run(random.random)
    >>> watch.was_used
    True
    """

    def __init__(self) -> None:
        self.was_used = False
        """Whether a generator may have been used; set by :meth:`look`."""
        self.has_moved = self.was_asked = False
        """Whether a generator has moved, and whether a state or seed was requested."""
        self.is_alone = not others_alive()
        """Whether no other thread existed when the watch began."""
        self.thread = threading.get_ident()
        """The watched thread. If other threads exist, only its requests count."""
        self.times_asked = 0
        """Number of times that a state or seed was requested or set."""
        self._at_look: tuple[Any, Any, Any] | None = None
        """States at the last look."""
        self.unseedable: str | None = None
        """Call that takes a seed from the system, such as ``random.seed()``, or None."""

    def run(self, call: Callable[[], T]) -> T:
        """Watch a call; meanwhile stand-ins count requests for a state or seed."""
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

        False if the watch is alone.
        """
        if self.is_alone or self._at_look is None:
            return False
        return not would_draw_alike(self._at_look, global_states())

    def undo(self) -> None:
        """Restore the generators' states from the beginning."""
        if self.has_moved:
            restore(self._states)

    def note(self, call: str | None) -> None:
        """Count that a state or seed was read or set.

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
"""Calls of :func:`_lookups` that may take a seed from the system."""


def _lookups() -> tuple[Any, ...]:
    """Return the objects that read or set a state or seed."""
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
    """Stands in for a generator, or a function of it, and notes each use.

    Args:
        thing: the generator or function.
        call: name of the call that takes a seed from the system, or None.
    """

    __slots__ = ("call", "thing", "watch")

    watch: DrawWatch

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

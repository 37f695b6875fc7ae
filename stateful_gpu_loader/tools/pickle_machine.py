"""Reads a pickle with an interpreter that imports and executes nothing.

Python's unpickler imports names, sets attributes of classes, reserves any amount of memory, and
hashes nested keys in exponential time. This interpreter replaces functions and classes by
stand-ins, and calls only functions that the caller admits by name.
"""

from __future__ import annotations

import pickle
import pickletools
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import torch

MAX_BYTES = 256 << 20
"""Largest size of a pickle that is read."""
MAX_VALUES = 1 << 25
"""Maximum number of values in a pickle, up to 2 GiB; a container counts twice."""
MAX_INT_BITS = 8192
"""Longest int. Python refuses to print ints of more than 4,300 digits."""
MAX_KEY_BITS = 64
"""Longest int that may be a key; longer ints may all have the same hash."""
MAX_KEY_ITEMS = 1000
"""Maximum number of items in a key, counted per visit of a hash."""
_LONGEST_LINE = 1 << 16


@dataclass(frozen=True, eq=False)
class Function:
    """Stand-in for a function or class that a pickle may call."""

    call: Callable[..., Any]


@dataclass(eq=False)
class Instance:
    """Stand-in for an object that is not created."""

    kind: Any
    """Identity of the class, chosen by the caller."""
    state: Any = None
    """State that the pickle sets, if any."""


@dataclass
class Bounded:
    """An open file in which the interpreter cannot read beyond ``end``."""

    file: BinaryIO
    end: int
    """Size of the file, or the position where reading stops."""

    def read(self, size: int) -> bytes:
        """Return the next bytes; raise ValueError if fewer bytes are left."""
        left = self.end - self.file.tell()
        if not 0 <= size <= left:
            raise ValueError(f"{size} bytes are announced and {left} are left")
        return self.file.read(size)

    def readline(self) -> bytes:
        """Return the next line; raise ValueError if it is too long for a name or number."""
        line = self.file.readline(_LONGEST_LINE)
        if len(line) == _LONGEST_LINE:
            raise ValueError(f"a line of more than {_LONGEST_LINE} bytes")
        return line

    def tell(self) -> int:
        """Return the position in the file."""
        return self.file.tell()


def read_pickle(
    source: bytes | Bounded,
    admitted: Callable[[str, str], Any],
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """Return the value of a pickle of any protocol.

    Args:
        source: the pickle, or a file at the beginning of a pickle.
        admitted: returns the stand-in for a global, given its module and name. It raises
            pickle.UnpicklingError for any other global.
        persistent: returns the stand-in for a persistent id; None refuses such ids.

    Raises:
        pickle.UnpicklingError: the pickle can only be read by executing code.
        ValueError: the pickle is damaged, or exceeds the limits of this module.
    """
    try:
        return _Machine(admitted, persistent).run(source)
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"its pickle is damaged ({type(error).__name__}: {error})") from error


@dataclass
class _Machine:
    admitted: Callable[[str, str], Any]
    persistent: Callable[[Any], Any] | None
    stack: list[Any] = field(default_factory=list)
    below: list[list[Any]] = field(default_factory=list)
    """Stacks below the open marks."""
    memo: dict[int, Any] = field(default_factory=dict)

    def run(self, source: bytes | Bounded) -> Any:
        num_values = 0
        for opcode, argument, _ in pickletools.genops(source):  # type: ignore[arg-type]
            name = opcode.name
            if name in _LITERALS:
                num_values += 1
                if type(argument) is int and argument.bit_length() > MAX_INT_BITS:
                    raise ValueError(f"an int of {argument.bit_length()} bits")
                self.stack.append(argument)
            elif (step := _STEPS.get(name)) is not None:
                num_values += 2
                step(self, argument)
            else:
                raise pickle.UnpicklingError(f"it uses the instruction {name}, which is not read")
            if num_values > MAX_VALUES:
                raise ValueError(f"its pickle has more than {MAX_VALUES} values")
        return self.stack.pop()

    def push(self, value: Any) -> None:
        """Push a value onto the current stack."""
        self.stack.append(value)

    def to_mark(self) -> list[Any]:
        """Return the values above the last mark, and remove the mark."""
        items, self.stack = self.stack, self.below.pop()
        return items

    def look_up(self, module: str, name: str) -> None:
        if (module, name) in NAME_MAPPING:
            module, name = NAME_MAPPING[module, name]
        self.stack.append(self.admitted(IMPORT_MAPPING.get(module, module), name))

    def call(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, Function) or type(arguments) is not tuple:
            raise pickle.UnpicklingError(
                f"it calls a {type(function).__name__}, which is not executed"
            )
        self.stack.append(function.call(*arguments))

    def build(self) -> None:
        """Set the state of a stand-in or of a module's OrderedDict; refuse other objects."""
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Instance):
            target.state = state
        elif type(target) is OrderedDict and type(state) is dict:
            vars(target).update({name: state[name] for name in state if type(name) is str})
        else:
            raise pickle.UnpicklingError(
                f"it sets the attributes of a {type(target).__name__}, which is not executed"
            )

    def set_items(self, pairs: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) not in (dict, OrderedDict, Counter) or len(pairs) % 2:
            raise ValueError(f"its pickle puts keys into a {type(target).__name__}")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            target[_checked_key(key)] = value

    def append(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise ValueError(f"its pickle appends to a {type(self.stack[-1]).__name__}")
        self.stack[-1].extend(items)

    def add(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not set:
            raise ValueError(f"its pickle adds items to a {type(self.stack[-1]).__name__}")
        self.stack[-1].update(map(_checked_key, items))

    def keep(self, place: int | None) -> None:
        self.memo[len(self.memo) if place is None else place] = self.stack[-1]

    def open_mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def pop(self) -> None:
        """Remove the last value, or the mark if no value is above it."""
        if self.stack:
            self.stack.pop()
        else:
            self.to_mark()

    def join(self, number: int) -> None:
        """Make a tuple of the last values."""
        if len(self.stack) < number:
            raise IndexError("fewer values than it takes")
        self.stack[-number:] = [tuple(self.stack[-number:])]

    def resolve(self, name: Any) -> None:
        if self.persistent is None:
            raise pickle.UnpicklingError("it refers to values outside, which are not read")
        self.stack.append(self.persistent(name))


def checked_keys(items: Any) -> list[Any]:
    """Return the items of a future set as a list.

    Raises:
        ValueError: an item cannot be hashed, or takes too long to hash.
    """
    return [_checked_key(item) for item in items]


def _checked_key(key: Any) -> Any:
    """Return a key whose hash takes bounded time.

    Hashing nested shared tuples takes exponential time.
    """
    if type(key) is int and key.bit_length() > MAX_KEY_BITS:
        raise ValueError(f"a key of {key.bit_length()} bits")
    if type(key) in (tuple, frozenset):
        inner, num_items = [key], 0
        while inner:
            items = inner.pop()
            num_items += len(items)
            if num_items > MAX_KEY_ITEMS:
                raise ValueError(f"a key of more than {MAX_KEY_ITEMS} items")
            inner += [item for item in items if type(item) in (tuple, frozenset)]
    return key


def _dict_of(machine: _Machine) -> None:
    pairs = machine.to_mark()
    machine.push({})
    machine.set_items(pairs)


def _global_of(machine: _Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise ValueError("its pickle has a global whose name is not a string")
    machine.look_up(module, name)


_LITERALS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("BYTEARRAY8", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("FLOAT", "BINFLOAT"),
}
"""Instructions whose argument is the value."""

_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda machine, _: None,
    "FRAME": lambda machine, _: None,
    "STOP": lambda machine, _: None,
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_SET": lambda machine, _: machine.push(set()),
    "MARK": lambda machine, _: machine.open_mark(),
    "POP": lambda machine, _: machine.pop(),
    "POP_MARK": lambda machine, _: machine.to_mark().clear(),
    "DUP": lambda machine, _: machine.push(machine.stack[-1]),
    "LIST": lambda machine, _: machine.push(machine.to_mark()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.to_mark())),
    "TUPLE1": lambda machine, _: machine.join(1),
    "TUPLE2": lambda machine, _: machine.join(2),
    "TUPLE3": lambda machine, _: machine.join(3),
    "DICT": lambda machine, _: _dict_of(machine),
    "FROZENSET": lambda machine, _: machine.push(frozenset(checked_keys(machine.to_mark()))),
    "APPEND": lambda machine, _: machine.append([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.to_mark()),
    "SETITEM": lambda machine, _: machine.set_items(_last_two(machine)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.to_mark()),
    "ADDITEMS": lambda machine, _: machine.add(machine.to_mark()),
    "PUT": lambda machine, place: machine.keep(place),
    "BINPUT": lambda machine, place: machine.keep(place),
    "LONG_BINPUT": lambda machine, place: machine.keep(place),
    "MEMOIZE": lambda machine, _: machine.keep(None),
    "GET": lambda machine, place: machine.push(machine.memo[place]),
    "BINGET": lambda machine, place: machine.push(machine.memo[place]),
    "LONG_BINGET": lambda machine, place: machine.push(machine.memo[place]),
    "GLOBAL": lambda machine, names: machine.look_up(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: _global_of(machine),
    "REDUCE": lambda machine, _: machine.call(),
    "NEWOBJ": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
    "BINPERSID": lambda machine, _: machine.resolve(machine.stack.pop()),
}
"""All other supported instructions. None creates objects of unknown classes, uses the process's
registry of extensions, or takes memory from outside."""


def _last_two(machine: _Machine) -> list[Any]:
    value, key = machine.stack.pop(), machine.stack.pop()
    return [key, value]


MAX_STATE_BYTES = 1 << 30
"""Largest size of all states in a file, counted per visit of a value."""
MAX_DEPTH = 100
"""Deepest nesting of a value."""
_CONTAINER, _ITEM = 64, 16
_COUNTLESS = 1 << 62


class Expansion:
    """Adds up the sizes that values have when they are printed, compared or copied.

    A list that holds a second list twice, which holds a third list twice, and so on, is small in a
    file, but takes exponentially many visits.
    """

    def __init__(self) -> None:
        self._total = 0
        self._found: dict[int, tuple[int, int]] = {}
        """Size and height of each value with its content, by id."""
        self._kept: list[Any] = []
        """Values with these ids, kept so that ids stay unique."""

    def add(self, value: Any) -> None:
        """Count a value.

        Raises:
            ValueError: the values together exceed :data:`MAX_STATE_BYTES`, or this value is nested
                too deeply or holds itself.
        """
        size, _ = self._of(value, 0)
        self._total += size
        if self._total > MAX_STATE_BYTES:
            raise ValueError(
                "states hold the same values so often that they would take "
                + (f"{size} bytes" if size < _COUNTLESS else "more bytes than any machine has")
                + f"; {MAX_STATE_BYTES} are read"
            )

    def _of(self, value: Any, depth: int) -> tuple[int, int]:
        if isinstance(value, str | bytes | bytearray):
            return len(value), 0
        if isinstance(value, torch.Tensor):
            return value.numel() * value.element_size(), 0
        if not isinstance(value, Mapping | list | tuple | set | frozenset):
            return 0, 0
        size, height = self._found.get(id(value)) or (0, 0)
        if depth + height >= MAX_DEPTH:
            raise ValueError(f"it is nested too deeply (more than {MAX_DEPTH}), or holds itself")
        if size:
            return size, height
        size = _CONTAINER
        inner = [*value, *value.values()] if isinstance(value, Mapping) else value
        for item in inner:
            more, below = self._of(item, depth + 1)
            size, height = min(size + _ITEM + more, _COUNTLESS), max(height, below + 1)
        self._found[id(value)] = size, height
        self._kept.append(value)
        return size, height

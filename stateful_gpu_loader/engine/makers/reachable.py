"""Search for the objects that the user's code can reach while it makes a sample.

The search starts at the dataset and the transform. It follows attributes, containers, and the code
that is called per sample: its closures, default arguments, class attributes, globals and helper
functions. It is bounded, and calls no user code.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import datetime
import enum
import functools
import itertools
import logging
import pathlib
import random
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

GENERATORS = (
    random.Random,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    torch.Generator,
)

_MAX_OBJECTS = 20_000
"""Largest number of objects in one search, at about a microsecond each."""
_MAX_UNSAMPLED_DATA = 256
"""Longer lists and dicts, mostly data, are sampled first."""
_MAX_UNSAMPLED = 1000
"""Longer lists and dicts are searched only in a sample."""
_SAMPLED = 8
"""Number of entries in a sample of a list or dict."""
_MAX_DEPTH = 4
_CALLED = frozenset({"__getitem__", "__getitems__", "__call__", "forward", "read_shard"})
"""Methods called per sample."""
_PACKAGES = frozenset(
    {
        "PIL",
        "albucore",
        "albumentations",
        "cv2",
        "numpy",
        "pandas",
        "pyarrow",
        "scipy",
        "skimage",
        "sklearn",
        "stateful_gpu_loader",
        "tokenizers",
        "torch",
        "torchdata",
        "torchvision",
        "transformers",
    }
)
"""Packages whose code draws from no private generator."""
_DATA = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, memoryview, range, slice),
    *(np.generic, np.dtype, torch.Tensor, torch.dtype, torch.device, torch.Size),
    *(pathlib.PurePath, datetime.date, datetime.time, datetime.timedelta, re.Pattern, enum.Enum),
)
_LEFT_OUT = (
    *(types.CodeType, types.FrameType, types.TracebackType, types.GenericAlias),
    *(logging.Logger, logging.Handler, Sampler, DataLoader),
)
"""Types of objects from which no sample is drawn."""
_SEQUENCES = (list, tuple, set, frozenset, collections.deque)
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict)

_FOREIGN: Any = vars(ctypes)["_CFuncPtr"]
"""Base class of the functions of foreign libraries."""

Names: TypeAlias = frozenset[str]


class Found(NamedTuple):
    """An object, and the path by which it was reached."""

    path: str
    thing: Any


@dataclass
class Reached:
    """Result of a search."""

    found: list[Found] = field(default_factory=list)
    """Objects in breadth-first order, by their shortest paths."""
    unsearched: dict[str, list[str]] = field(default_factory=dict)
    """Roots searched in part, with descriptions of the skipped objects."""


class _Place(NamedTuple):
    root: str
    path: str
    thing: Any
    names: Names
    """Names in the code that reached the object, which may be its attributes."""


def reachable(
    roots: Mapping[str, Any], is_left_out: Callable[[Any], bool] = lambda thing: False
) -> Reached:
    """Return the objects that user code can reach from the roots while it makes a sample.

    A path begins with the name of its root, or with the module of a global variable.

    Args:
        roots: objects by name, such as the dataset and the transform.
        is_left_out: whether an object is not searched.

    >>> reachable({"dataset": [random.Random(1)]}).found[-1].path
    'dataset[0]'
    """
    return _Search(is_left_out).run(roots)


def is_generator(thing: Any) -> bool:
    """Return whether an object is a random generator; a proxy is not resolved."""
    return issubclass(type(thing), GENERATORS)


def is_package_code(module: str) -> bool:
    """Return whether a module is Python's or a package's without private generators."""
    package = module.partition(".")[0]
    if package == "datasets":  # Hugging Face's, not a folder that many programs have
        return "datasets.arrow_dataset" in sys.modules
    return package in _PACKAGES or package in sys.stdlib_module_names


class _Search:
    def __init__(self, is_left_out: Callable[[Any], bool]) -> None:
        self._is_left_out = is_left_out
        self._queue = collections.deque[_Place]()
        self._names: dict[int, Names] = {}
        """Names with which each object was reached, by its id."""
        self._kinds: dict[type, str] = {}
        self._classes: dict[type, _Class] = {}
        self._num_seen = 0
        self._reached = Reached()

    def run(self, roots: Mapping[str, Any]) -> Reached:
        for name, thing in roots.items():
            self._add(_Place(name, name, thing, frozenset()))
        while self._queue:
            place = self._queue.popleft()
            for path, thing, names in self._inside(place):
                if self._num_seen == _MAX_OBJECTS:
                    for root in {place.root, *(each.root for each in self._queue)}:
                        self._note(root, f"objects beyond the first {_MAX_OBJECTS}")
                    return self._reached
                self._add(_Place(place.root, path, thing, names))
        return self._reached

    def _add(self, place: _Place) -> None:
        """Queue an object unless it is data, or was reached with the same names."""
        self._num_seen += 1
        thing = place.thing
        kind = self._kind(thing)
        if kind == "data" or self._is_left_out(thing):
            return
        names = place.names
        if kind in ("function", "method", "generator"):
            names = frozenset()
        elif kind == "object":
            names &= self._class(type(thing)).names
        before = self._names.get(id(thing))
        if before is None:
            self._reached.found.append(Found(place.path, thing))
        elif names <= before:
            return
        else:
            names |= before
        self._names[id(thing)] = names
        if kind != "generator":
            self._queue.append(place._replace(names=names))

    def _kind(self, thing: Any) -> str:
        kind = type(thing)
        if kind not in self._kinds:
            self._kinds[kind] = _kind_of(kind)
        return self._kinds[kind]

    def _class(self, kind: type) -> _Class:
        if kind not in self._classes:
            self._classes[kind] = _Class(kind)
        return self._classes[kind]

    def _note(self, root: str, what: str) -> None:
        noted = self._reached.unsearched.setdefault(root, [])
        if what not in noted:
            noted.append(what)

    def _inside(self, place: _Place) -> Iterator[tuple[str, Any, Names]]:
        """Yield path, object and names for all that an object holds and its code names."""
        thing, path, names = place.thing, place.path, place.names
        kind = self._kind(thing)
        if kind == "function":
            yield from _inside_function(thing, path)
        elif kind == "method":
            if not isinstance(thing.__self__, types.ModuleType):
                yield f"{path}.__self__", thing.__self__, frozenset({thing.__name__})
        elif kind == "partial":
            for name in ("func", "args", "keywords"):
                yield f"{path}.{name}", getattr(thing, name), names
        elif kind == "module":
            module = _name_of(thing)
            if not _is_closed(module):
                for name in sorted(names & vars(thing).keys()):
                    yield f"{module}.{name}", vars(thing)[name], names
        elif kind == "class":
            if not is_package_code(thing.__module__):
                members, inner = self._class(thing).named(names | _CALLED)
                for name, value in members:
                    yield f"{path}.{name}", value, inner
        else:
            if kind == "container":
                yield from self._entries(place)
            yield from self._inside_object(place)

    def _inside_object(self, place: _Place) -> Iterator[tuple[str, Any, Names]]:
        about = self._class(type(place.thing))
        if about.is_native:
            self._note(place.root, f"{place.path}, native code of {type(place.thing).__name__}")
        members, names = about.named(place.names | _CALLED)
        held = about.attributes(place.thing)
        used = {name for name, _ in members}
        for name, value in held.items():
            # A class's generator may serve only some of its objects.
            if name in used or name not in about.generators:
                path = f"[{name}]" if name.isdecimal() else f".{name}"
                yield place.path + path, value, names
        for name, value in members:
            if name not in held:
                yield f"{place.path}.{name}", value, names

    def _entries(self, place: _Place) -> Iterator[tuple[str, Any, Names]]:
        n, pairs = _sampled(place.thing, _MAX_UNSAMPLED_DATA)
        if n > _MAX_UNSAMPLED_DATA and all(_is_data(entry) for _, entry in pairs):
            return
        n, pairs = _sampled(place.thing, _MAX_UNSAMPLED)
        if n > _MAX_UNSAMPLED:
            self._note(place.root, f"{n - len(pairs)} entries of {place.path}")
        for key, entry in pairs:
            # Another repr() may be the user's code.
            name = repr(key)[:60] if type(key) in (str, int) else type(key).__name__
            yield f"{place.path}[{name}]", entry, place.names


class _Class:
    """Attributes and methods of a class and its base classes."""

    def __init__(self, kind: type) -> None:
        self._bases: dict[str, list[type]] = {}
        """Classes that define a name, in method resolution order."""
        self._slots: list[tuple[str, Any]] = []
        for base in kind.__mro__[:-1]:
            for name, value in vars(base).items():
                self._bases.setdefault(name, []).append(base)
                if type(value) is types.MemberDescriptorType:
                    self._slots.append((name, value))
        self.names = frozenset(self._bases)
        self.generators = {
            name for name, bases in self._bases.items() if is_generator(vars(bases[0])[name])
        }
        """Names of the class's generators."""
        self._is_module = issubclass(kind, torch.nn.Module)
        self._known: dict[Names, tuple[list[tuple[str, Any]], Names]] = {}
        self.is_native = issubclass(kind, _FOREIGN) or self._calls_native_code()
        """Whether calls of an object run code that cannot be searched."""

    def _calls_native_code(self) -> bool:
        base = next(iter(self._bases.get("__call__", ())), None)
        # Native functions are assumed to draw nothing.
        if base is None or "__name__" in self._bases or is_package_code(base.__module__):
            return False
        return _function_of(vars(base)["__call__"]) is None

    def attributes(self, thing: Any) -> dict[str, Any]:
        """Return the attributes of an object, including slots."""
        held: dict[str, Any] = {}
        with contextlib.suppress(AttributeError):
            held.update(object.__getattribute__(thing, "__dict__"))
        if self._is_module:
            held.update(held.pop("_modules", {}))
        for name, slot in self._slots:
            with contextlib.suppress(AttributeError):
                held[name] = slot.__get__(thing)
        return held

    def named(self, names: Names) -> tuple[list[tuple[str, Any]], Names]:
        """Return the members with these names, and the names in their code."""
        start = names & self.names
        if start not in self._known:
            self._known[start] = self._follow(start)
        return self._known[start]

    def _follow(self, start: Names) -> tuple[list[tuple[str, Any]], Names]:
        to_follow, seen = sorted(start), set(start)
        values: list[tuple[str, Any]] = []
        names: Names = frozenset()
        while to_follow:
            name = to_follow.pop(0)
            for base in self._bases[name]:
                value, is_closed = vars(base)[name], is_package_code(base.__module__)
                function = _function_of(value)
                if not is_closed and type(value) is not types.MemberDescriptorType:
                    values.append((name, value if function is None else function))
                # A module calls its forward() and its own hooks.
                has_names = function is not None and base is not torch.nn.Module
                in_code = _names_of(function) if has_names else frozenset[str]()
                names |= in_code
                new = sorted((in_code & self.names) - seen)
                seen.update(new)
                to_follow += new
                if "super" not in in_code:
                    break
        return values, names


def _inside_function(function: types.FunctionType, path: str) -> Iterator[tuple[str, Any, Names]]:
    """Yield what a function holds, and the globals that its code names."""
    code, known = function.__code__, function.__globals__
    names = _names_in(code)
    arguments = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    held = [
        *vars(function).items(),
        # A mock's function has the replaced function's defaults.
        *zip(arguments[len(arguments) - len(defaults) :], defaults, strict=False),
        *(function.__kwdefaults__ or {}).items(),
        *_closure_of(function),
    ]
    for name, value in held:
        yield f"{path}.{name}", value, names
    module = str(known.get("__name__"))
    if is_package_code(module):
        return
    for name in sorted(names):
        if name in known:
            value = known[name]
            is_module = issubclass(type(value), types.ModuleType)
            yield _name_of(value) if is_module else f"{module}.{name}", value, names
        elif name in sys.modules:  # imported by the function itself
            yield name, sys.modules[name], names


def _closure_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name != "__class__":
            with contextlib.suppress(ValueError):  # not yet assigned
                yield name, cell.cell_contents


def _function_of(value: Any) -> types.FunctionType | None:
    """Return the function of a method, a property or a wrapped function; None for other values."""
    for _ in range(_MAX_DEPTH):
        if type(value) is types.FunctionType:
            return value
        if issubclass(type(value), (staticmethod, classmethod)):
            value = value.__func__
        elif issubclass(type(value), property):
            value = value.fget
        elif issubclass(type(value), (functools.cached_property, functools.partialmethod)):
            value = value.func
        else:
            value = getattr(value, "__dict__", {}).get("__wrapped__")
    return None


def _names_of(function: Any) -> Names:
    """Return the names in a function's code, and in the functions that it wraps."""
    names = _names_in(function.__code__)
    wrapped = [vars(function).get("__wrapped__"), *(value for _, value in _closure_of(function))]
    for value in wrapped:
        if type(value) is types.FunctionType and value is not function:
            names |= _names_in(value.__code__)
    return names


@functools.lru_cache(maxsize=4096)
def _names_in(code: types.CodeType) -> Names:
    """Return the names of globals and attributes in code and its inner functions."""
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return frozenset(code.co_names).union(*map(_names_in, inner))


def _name_of(module: types.ModuleType) -> str:
    return str(vars(module).get("__name__"))


def _is_closed(module: str) -> bool:
    """Return whether no member of a module is searched."""
    # Python's module random holds its global generator, and SystemRandom.
    return module != "random" and is_package_code(module)


def _kind_of(kind: type) -> str:
    """Return how objects of a type are searched."""
    kinds: dict[str, Any] = {
        "data": (*_DATA, *_LEFT_OUT),
        "generator": GENERATORS,
        "container": (*_SEQUENCES, dict, types.MappingProxyType, np.ndarray),
        "function": types.FunctionType,
        "method": (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType),
        "partial": (functools.partial, functools.partialmethod),
        "module": types.ModuleType,
        "class": type,
    }
    return next((name for name, each in kinds.items() if issubclass(kind, each)), "object")


def _sampled(container: Any, longest: int) -> tuple[int, list[tuple[Any, Any]]]:
    """Return the length of a container, and keys and entries: only a sample if it is longer.

    Only methods of Python's own types are called.
    """
    if issubclass(type(container), np.ndarray):
        container = container.flat if container.dtype.hasobject else ()
        n, entries = len(container), container
    elif issubclass(type(container), types.MappingProxyType):
        n, entries = len(container), container.items()
    else:
        base: Any = next(each for each in (*_SEQUENCES, dict) if issubclass(type(container), each))
        n = base.__len__(container)
        entries = base.items(container) if base is dict else base.__iter__(container)
        if n > longest and base in (list, tuple):
            places = [i * (n - 1) // (_SAMPLED - 1) for i in range(_SAMPLED)]
            return n, [(i, base.__getitem__(container, i)) for i in places]
    is_mapping = issubclass(type(container), (dict, types.MappingProxyType))
    pairs = entries if is_mapping else enumerate(entries)
    return n, list(itertools.islice(pairs, n if n <= longest else _SAMPLED))


def _is_data(thing: Any, depth: int = _MAX_DEPTH) -> bool:
    """Return whether a value holds nothing but data, judged by a sample."""
    kind = type(thing)
    if issubclass(kind, _DATA) or (issubclass(kind, np.ndarray) and not thing.dtype.hasobject):
        return True
    if kind not in (*_SEQUENCES, *_MAPPINGS) or not depth:
        return False
    return all(_is_data(entry, depth - 1) for _, entry in _sampled(thing, _SAMPLED)[1])

"""Circumstances on which a sample may depend, observed while it is made again.

Generators, attributes and variables that a call changes; files that the objects name; and calls of
the clock, the system's randomness and threads.
"""

from __future__ import annotations

import _thread
import contextlib
import copy
import datetime
import itertools
import os
import random
import re
import sys
import time
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from stateful_gpu_loader.engine.makers.reachable import is_generator, is_package_code, reachable
from stateful_gpu_loader.tools.differences import same

_LARGEST = 1000
"""Maximum number of elements of a list or array that is not data."""
_MOST_NAMES = 100_000
"""Maximum number of entries searched for file names."""
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_GLOBAL_GENERATORS = (random._inst, np.random.mtrand._rand, torch.default_generator)


@dataclass(frozen=True)
class Variable:
    """A value in the user's objects that a call may change."""

    kind: str
    """``"generator"``, ``"attribute"``, or ``"variable"`` of a module or function."""
    read: Callable[[], Any]
    """Returns a copy of the value."""
    write: Callable[[Any], None]
    """Restores a copy of the value."""


def variables_of(roots: Mapping[str, Any]) -> dict[str, Variable]:
    """Return the variables in the user's objects that a call may change, by path.

    Args:
        roots: objects by name: the dataset, the transform.
    """
    found: dict[str, Variable] = {}
    known: set[int] = {id(each) for each in _GLOBAL_GENERATORS}
    modules: dict[str, types.ModuleType] = {}

    def add(path: str, namespace: Any, name: str, kind: str) -> None:
        value = _value(namespace, name)
        if is_generator(value):
            if id(value) not in known:
                known.add(id(value))
                found[path] = _generator(value)
        elif _is_plain(value):
            found[path] = _slot(namespace, name, kind)

    reached = reachable(roots).found
    for path, each in reached:
        if is_generator(each):  # first, so that it gets this path
            add(path, {"": each}, "", "generator")
    for path, each in reached:
        if isinstance(each, types.FunctionType):
            for name, cell in zip(each.__code__.co_freevars, each.__closure__ or (), strict=True):
                with contextlib.suppress(ValueError):  # not yet assigned
                    add(f"{path}.{name}", cell, "cell_contents", "variable")
            _note_module(modules, each.__module__)
        elif not isinstance(each, (type, types.ModuleType)):
            for name in list(getattr(each, "__dict__", {})):
                add(f"{path}.{name}", vars(each), name, "attribute")
            for kind in type(each).__mro__:
                if _note_module(modules, kind.__module__):
                    for name in [name for name in vars(kind) if not name.startswith("__")]:
                        add(f"{kind.__name__}.{name}", kind, name, "attribute")
    for module in modules.values():
        for name in [name for name in vars(module) if not name.startswith("__")]:
            add(f"{module.__name__}.{name}", vars(module), name, "variable")
    return found


def values_of(variables: Mapping[str, Variable]) -> dict[str, Any]:
    """Return copies of all values, by path."""
    return {path: variable.read() for path, variable in variables.items()}


def moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the paths of values that differ."""
    return [path for path in before if path in after and not same(before[path], after[path])]


def _generator(generator: Any) -> Variable:
    if isinstance(generator, random.Random):
        return Variable("generator", generator.getstate, generator.setstate)
    bits: Any = getattr(generator, "bit_generator", generator)
    if isinstance(bits, np.random.BitGenerator):
        return Variable("generator", lambda: bits.state, partial(setattr, bits, "state"))
    return Variable("generator", generator.get_state, generator.set_state)


def _slot(namespace: Any, name: str, kind: str) -> Variable:
    def read() -> Any:
        value = _value(namespace, name)
        return repr(value) if isinstance(value, itertools.count) else copy.deepcopy(value)

    def write(value: Any) -> None:
        counted = re.fullmatch(r"count\((-?\d+)\)", value) if isinstance(value, str) else None
        new = itertools.count(int(counted[1])) if counted else copy.deepcopy(value)
        if isinstance(namespace, dict):
            namespace[name] = new
        else:
            setattr(namespace, name, new)

    return Variable(kind, read, write)


def _value(namespace: Any, name: str) -> Any:
    """Return the raw value of a variable in a dictionary, a function's cell or a class."""
    if isinstance(namespace, types.CellType):
        return namespace.cell_contents
    return (namespace if isinstance(namespace, dict) else vars(namespace))[name]


def _is_plain(value: Any) -> bool:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        elements = value.numel() if isinstance(value, torch.Tensor) else value.size
        return bool(elements <= _LARGEST)
    if isinstance(value, (list, tuple, set, frozenset, deque, dict)):
        inner = value.values() if isinstance(value, dict) else value
        return len(value) <= _LARGEST and all(isinstance(each, _SCALARS) for each in inner)
    return isinstance(value, (*_SCALARS, itertools.count))


def _note_module(modules: dict[str, types.ModuleType], name: str) -> bool:
    """Add a module of the user's; return False for Python's own and for known packages."""
    module = sys.modules.get(name)
    if is_package_code(name) or module is None:
        return False
    modules[name] = module
    return True


def files_of(roots: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of existing files in attributes and lists of the user's objects."""
    for _, each in reachable(roots).found:
        held = each if isinstance(each, (list, tuple)) else getattr(each, "__dict__", {}).values()
        for value in itertools.islice(held, _MOST_NAMES):
            for text in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(text, (str, os.PathLike)) and os.path.isfile(text):
                    yield os.fspath(text)


ENTROPY, THREADS, CLOCK = "the system's randomness", "threads", "the clock"
_CALLS: dict[Any, str] = {
    os.urandom: ENTROPY,
    _thread.start_new_thread: THREADS,
    getattr(_thread, "start_joinable_thread", None): THREADS,
    time.time: CLOCK,
    time.time_ns: CLOCK,
    datetime.date.today: CLOCK,
    datetime.datetime.now: CLOCK,
    datetime.datetime.today: CLOCK,
    datetime.datetime.utcnow: CLOCK,
}
"""Functions of Python whose results or order depend on no seed."""


@contextlib.contextmanager
def calls_noted() -> Iterator[dict[str, set[str]]]:
    """Note which code calls the clock, the system's randomness and threads inside the block.

    Python reports calls to a profiler. If another profiler is active, nothing is noted.
    """
    noted: dict[str, set[str]] = {}

    def note(frame: types.FrameType, event: str, function: Any) -> None:
        kind = _CALLS.get(function) if event == "c_call" else None
        site = None if kind is None else _site(frame)
        if kind is not None and site is not None:
            noted.setdefault(kind, set()).add(site)

    if sys.getprofile() is not None:
        yield noted
        return
    sys.setprofile(note)
    try:
        yield noted
    finally:
        sys.setprofile(None)


def _site(frame: types.FrameType | None) -> str | None:
    """Return the code that called Python's library; None if torch or this package did."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        package = module.partition(".")[0]
        if package not in sys.stdlib_module_names:
            is_ours = package in ("torch", "stateful_gpu_loader")
            return None if is_ours else f"{module}.{frame.f_code.co_name}, line {frame.f_lineno}"
        frame = frame.f_back
    return None

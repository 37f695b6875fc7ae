"""What a sample may depend on besides its index: watched while it is made, and put back.

These are the clock, the system's randomness, threads, files, and what moves in the user's objects:
generators, attributes, and variables of modules and functions.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import datetime
import itertools
import os
import pathlib
import random
import re
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from stateful_gpu_loader.engine.makers.reachable import is_generator, is_package_code, reachable
from stateful_gpu_loader.tools.differences import same

_LARGEST = 1000
"""Elements of a list or array that is watched; larger ones are taken for data."""
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_NOT_THE_USERS = {"numpy", "torch", "torchvision", "torchdata", "PIL", "stateful_gpu_loader"}
_GLOBAL_GENERATORS = (random._inst, np.random.mtrand._rand, torch.default_generator)


@dataclass(frozen=True)
class Variable:
    """Something of the user's that a call may change."""

    kind: str
    """``"generator"``, ``"attribute"`` or ``"variable"``, one of a module or a function."""
    read: Callable[[], Any]
    """Returns a copy of the value."""
    write: Callable[[Any], None]
    """Puts such a copy back."""


@dataclass
class Seen:
    """What a run was seen to use, each with the code that used it."""

    clock: set[str] = field(default_factory=set)
    entropy: set[str] = field(default_factory=set)
    threads: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)


@contextlib.contextmanager
def watched(*, clock: bool = False, entropy: bool = False) -> Iterator[Seen]:
    """Note what the code inside uses of clock, system randomness, threads and files.

    Functions of the standard library are replaced in every module that has imported them. The
    clock of torch and of this package goes on, as they wait by it.

    Args:
        clock: whether the user's code sees a clock that stands still.
        entropy: whether the system's randomness is the same bytes each time.
    """
    seen = Seen()
    frozen, calls = 1_600_000_000, itertools.count()
    real_time, real_ns, real_random = time.time, time.time_ns, os.urandom
    real_open, real_os_open = builtins.open, os.open
    real_datetime, real_start = datetime.datetime, threading.Thread.start

    def stands_still() -> bool:
        site = _site(skipped=_NOT_THE_USERS - {"torchdata"})
        if site is not None:
            seen.clock.add(site)
        return clock and site is not None

    def fake_random(size: int) -> bytes:
        site = _site(skipped={"torch", "stateful_gpu_loader"})
        if site is None:
            return real_random(size)
        seen.entropy.add(site)
        return random.Random(next(calls)).randbytes(size) if entropy else real_random(size)

    def fake_open(file: Any, *args: Any, **kwargs: Any) -> Any:
        _note_file(seen, file)
        return real_open(file, *args, **kwargs)

    def fake_os_open(path: Any, *args: Any, **kwargs: Any) -> Any:
        _note_file(seen, path)
        return real_os_open(path, *args, **kwargs)

    class FakeDatetime(real_datetime):  # type: ignore[misc, valid-type]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return real_datetime.fromtimestamp(frozen if stands_still() else real_time(), tz)

        @classmethod
        def today(cls) -> Any:
            return cls.now()

    def start(thread: threading.Thread) -> None:
        site = _site(skipped={"torch", "stateful_gpu_loader"})
        if site is not None:
            seen.threads.add(site)
        real_start(thread)

    fakes = {
        real_time: lambda: float(frozen) if stands_still() else real_time(),
        real_ns: lambda: frozen * 10**9 if stands_still() else real_ns(),
        real_random: fake_random,
        real_open: fake_open,
        real_os_open: fake_os_open,
        real_datetime: FakeDatetime,
    }
    places = list(_places_of(fakes))
    # Python 3.10's pathlib opens files by an attribute of this class, later ones by io.open.
    accessor = getattr(pathlib, "_NormalAccessor", None)
    threading.Thread.start = start  # type: ignore[method-assign, assignment]
    for namespace, name, value in places:
        namespace[name] = fakes[value]
    if accessor is not None:
        accessor.open = staticmethod(fake_open)
    try:
        yield seen
    finally:
        threading.Thread.start = real_start  # type: ignore[method-assign]
        for namespace, name, value in places:
            namespace[name] = value
        if accessor is not None:
            accessor.open = real_open


def variables_of(roots: Mapping[str, Any]) -> dict[str, Variable]:
    """Return, by their paths, the variables in the user's objects that a call may change.

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
        if is_generator(each):  # first, so that it has this path wherever else it lies
            add(path, {"": each}, "", "generator")
    for path, each in reached:
        if isinstance(each, types.FunctionType):
            for name, cell in zip(each.__code__.co_freevars, each.__closure__ or (), strict=True):
                if _has_contents(cell):
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
    if isinstance(generator, torch.Generator):
        own: Any = generator.set_state
        return Variable("generator", generator.get_state, own)
    if isinstance(generator, (np.random.Generator, np.random.BitGenerator)):
        generator = getattr(generator, "bit_generator", generator)
        return Variable(
            "generator",
            lambda: copy.deepcopy(generator.state),
            lambda state: setattr(generator, "state", copy.deepcopy(state)),
        )
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
    """Return a variable of a dictionary, of a function's cell or of a class, as it lies there."""
    if isinstance(namespace, types.CellType):
        return namespace.cell_contents
    return (namespace if isinstance(namespace, dict) else vars(namespace))[name]


def _is_plain(value: Any) -> bool:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        elements = value.numel() if isinstance(value, torch.Tensor) else value.size
        return bool(elements <= _LARGEST)
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return len(value) <= _LARGEST and all(isinstance(each, _SCALARS) for each in value)
    if isinstance(value, dict):
        return len(value) <= _LARGEST and all(isinstance(each, _SCALARS) for each in value.values())
    return isinstance(value, (*_SCALARS, itertools.count))


def _has_contents(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _note_module(modules: dict[str, types.ModuleType], name: str) -> bool:
    """Add a module unless it is Python's or a large package's; whether it is the user's."""
    module = sys.modules.get(name)
    if is_package_code(name) or module is None:
        return False
    modules[name] = module
    return True


def _note_file(seen: Seen, file: Any) -> None:
    if isinstance(file, (str, os.PathLike)):
        seen.files.add(os.fspath(file))


def _places_of(fakes: Mapping[Any, Any]) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield each module's namespace and name under which one of these functions is known."""
    by_id = {id(real): real for real in fakes}
    for module in list(sys.modules.values()):
        if module is sys.modules[__name__]:
            continue
        namespace = getattr(module, "__dict__", {})
        for name, value in list(namespace.items()):
            if id(value) in by_id:
                yield namespace, name, value


def _site(skipped: set[str]) -> str | None:
    """Return the code that called the standard library; None if it is of a skipped package."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        package = module.partition(".")[0]
        if module != __name__ and package not in sys.stdlib_module_names:
            name = frame.f_code.co_name
            return None if package in skipped else f"{module}.{name}, line {frame.f_lineno}"
        frame = frame.f_back
    return None

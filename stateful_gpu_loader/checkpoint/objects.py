"""States of registered objects, taken and applied by the objects' methods, never by pickle.

Either all objects receive their states, or all keep their own.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from stateful_gpu_loader.checkpoint.document import SavedState
from stateful_gpu_loader.errors import CheckpointError
from stateful_gpu_loader.state.text_state import TextState

_OURS = "stateful_gpu_loader."
_DALI = "nvidia.dali."
_MAIN = "__main__"
_MOVED = {
    "stateful_gpu_loader.rng.RNG": "stateful_gpu_loader.RNG",
    **{
        f"stateful_gpu_loader.{name}": f"stateful_gpu_loader.samplers.{name}"
        for name in (
            *("BalancedSampler", "MixtureSampler", "RepeatedSampler", "ShardSampler"),
            "SubsetSampler",
        )
    },
}
"""Types with other names in files of earlier versions."""
_METHODS = (
    ("state_dict", "load_state_dict"),
    ("get_state", "set_state"),
    ("getstate", "setstate"),  # random.Random
)
_ADVICE = "register an object with state_dict() and load_state_dict(state)"


@dataclass(frozen=True)
class Stateful:
    """A registered object with its name."""

    name: str
    object: Any

    def __str__(self) -> str:
        return f"{self.name!r} ({self.type_name})"

    @functools.cached_property
    def type_name(self) -> str:
        """Name of the object's type in a checkpoint."""
        return type_name(self.object)

    @property
    def checks_first(self) -> bool:
        """Whether the object checks a state before it changes, so that a refusal changes nothing.

        True for all objects of this package, unless a subclass overrides ``load_state_dict``.
        """
        loads = (base for base in type(self.object).__mro__ if "load_state_dict" in vars(base))
        return next(loads, object).__module__.startswith(_OURS)

    @property
    def has_iterators(self) -> bool:
        """Whether running iterators move the object's state, and a load detaches them."""
        return isinstance(self.object, TextState | DataLoader)

    def prepare(self) -> None:
        """Check that the object has a state, and enable checkpointing in a DALI reader.

        Raises:
            CheckpointError: the object has no state, or the reader was iterated without
                checkpointing.
        """
        _methods(self.object)
        if _is_dali(self.object) and hasattr(self.object, "_enable_checkpointing"):
            try:
                self.object._enable_checkpointing()
            except Exception as error:
                raise CheckpointError(
                    f"{self} cannot be registered, its state is no longer available: {error} "
                    "Remedy: register it before its first iteration"
                ) from error

    def take(self) -> SavedState:
        """Return a copy of the present state.

        Raises:
            CheckpointError: the object does not return a state, or the state has no checkpoint
                form.
        """
        try:
            take, _ = _methods(self.object)
            state = take()
        except Exception as error:
            raise CheckpointError(
                f"the state of {self} cannot be taken: {type(error).__name__}: {error}"
            ) from error
        return saved_state(self.name, self.type_name, state)

    def check(self, saved: SavedState) -> None:
        """Check everything about a state that can be checked before a change.

        Raises:
            CheckpointError: the state is of another type or algorithm, or the object is a DALI
                reader that was already iterated.
        """
        if saved.type_name is not None and not _is_of(saved.type_name, self.object):
            raise CheckpointError(
                f"the state of {self.name!r} is of type {saved.type_name}, and the object of type "
                f"{self.type_name}. Remedy: register an object of the saved type"
            )
        if isinstance(self.object, np.random.Generator):
            algorithm = type(self.object.bit_generator).__name__
            found = saved.state.get("bit_generator") if isinstance(saved.state, dict) else None
            if found != algorithm:
                raise CheckpointError(
                    f"the state of {self} is of a {found}, and it draws from a {algorithm}. "
                    f"Remedy: build it on {found}, as the saved one was"
                )
        if _is_dali(self.object) and getattr(self.object, "_op_backend", None) is not None:
            raise CheckpointError(
                f"{self} was already iterated, and DALI restores only a reader that was not. "
                "Remedy: build it again, and load() and register() before the first iteration"
            )

    def put(self, saved: SavedState) -> None:
        """Apply a copy of the state to the object.

        Raises:
            Exception: any error of the object.
        """
        _, put = _methods(self.object)
        put(saved.state)

    def way_back(self) -> Callable[[], object] | None:
        """Return a function that restores the object's present state; None if that is
        impossible."""
        if _is_dali(self.object) and hasattr(self.object, "_pending_state"):
            # Before its first iteration a reader has only a pending state.
            return functools.partial(
                setattr, self.object, "_pending_state", self.object._pending_state
            )
        if isinstance(self.object, DataLoader) and not self.checks_first:
            # torchdata's loader refuses no state, and taking its former state would start workers
            # and draw from its generator.
            return None
        try:
            present = self.take()
        except CheckpointError:
            return None
        return functools.partial(self.put, present)


_Way = tuple[Stateful, SavedState, Callable[[], object] | None]
"""An object, its new state, and a function that restores its former state."""


def put_all(objects: Mapping[str, Stateful], states: Mapping[str, SavedState]) -> None:
    """Apply each object's state; if one object refuses, restore the former states of all.

    Raises:
        CheckpointError: a state is of another type, or an object refuses it.
    """
    for name, stateful in objects.items():
        stateful.check(states[name])
    ways = [(stateful, states[name], stateful.way_back()) for name, stateful in objects.items()]
    ways.sort(key=_turn)
    for number, (stateful, saved, _) in enumerate(ways):
        try:
            stateful.put(saved)
        except BaseException as error:
            is_unchanged = stateful.checks_first and isinstance(error, Exception)
            changed = ways[: number + (not is_unchanged)]
            lost = _go_back(changed)
            if not isinstance(error, Exception):
                raise
            before = [other.name for other, _, _ in ways[:number]]
            back = [other for other, _, _ in changed if other.name not in lost]
            detached = [other.name for other in back if other.has_iterators]
            sentences = [
                (True, f"{stateful} refused its state: {type(error).__name__}: {error}"),
                (is_unchanged, "It is unchanged."),
                (before, f"{before} had already been restored."),
                (back, f"The former state is back in {[other.name for other in back]}."),
                (
                    detached,
                    f"Iterators of {detached} in progress no longer move its state. "
                    "Remedy: start new iterators",
                ),
                (
                    lost,
                    f"The former state of {lost} could not be restored. Remedy: build these again",
                ),
            ]
            text = "\n".join(text for holds, text in sentences if holds)
            if "Remedy: " not in text:
                text += f"\nRemedy: register {stateful.name!r} built as it was when it was saved"
            raise CheckpointError(text) from error


def _turn(way: _Way) -> int:
    """Return the order in which a state is applied, so that a refusal costs the least.

    This package's objects come after the others, because a refusal does not change them, but
    restoring their former state costs their iterators. Objects whose former state cannot be taken
    come last.
    """
    stateful, _, way_back = way
    return 2 if way_back is None else int(stateful.checks_first)


def _go_back(changed: list[_Way]) -> list[str]:
    """Restore former states, last first; return the names of objects for which that failed."""
    failed = []
    for stateful, _, way_back in reversed(changed):
        try:
            if way_back is None:
                failed.append(stateful.name)
            else:
                way_back()
        except Exception:
            failed.append(stateful.name)
    return failed[::-1]


def saved_state(name: str, type_of_object: str | None, state: Any) -> SavedState:
    """Return a copy of the state of a named object.

    Raises:
        CheckpointError: the state has no form in a checkpoint.
    """
    try:
        return SavedState.of(type_of_object, state)
    except (TypeError, RecursionError) as error:
        raise CheckpointError(f"the state of {name!r} cannot be saved: {error}") from error


def type_name(thing: Any) -> str:
    """Return the name of a class, or of an object's type, in a checkpoint.

    It uses the shortest module path that exports the class.

    >>> import torch
    >>> type_name(torch.optim.SGD([torch.zeros(1)], lr=0.1))
    'torch.optim.SGD'
    """
    return _type_names(thing)[0]


def _type_names(thing: Any) -> list[str]:
    """Return all names of a class, shortest first."""
    if isinstance(thing, ModuleType):
        return [f"module {thing.__name__}"]
    cls = thing if isinstance(thing, type) else type(thing)
    parts = cls.__module__.split(".")
    modules = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    # Always include the last, for classes made in functions.
    return [
        f"{module}.{cls.__qualname__}"
        for module in modules
        if module == cls.__module__
        or vars(sys.modules.get(module, object)).get(cls.__qualname__) is cls
    ]


def _is_of(saved: str, thing: Any) -> bool:
    saved = _MOVED.get(saved, saved)
    if saved in _type_names(thing):
        return True
    if isinstance(thing, ModuleType):
        return False
    # A module has another name if it is the script that was started.
    cls = type(thing)
    if cls.__module__ == _MAIN:
        return saved.endswith(f".{cls.__qualname__}")
    return saved == f"{_MAIN}.{cls.__qualname__}"


def _methods(thing: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Return the functions that take and apply an object's state."""
    if isinstance(thing, type):
        remedy = "register an instance of it"
        raise CheckpointError(f"{type_name(thing)} is a class and has no state. Remedy: {remedy}")
    numpy_bits = thing.bit_generator if isinstance(thing, np.random.Generator) else thing
    if isinstance(numpy_bits, np.random.BitGenerator):
        return lambda: numpy_bits.state, lambda state: setattr(numpy_bits, "state", state)
    lacking = []
    for names in _METHODS:
        take, put = (getattr(thing, name, None) for name in names)
        if callable(take) and callable(put):
            is_dali = names[0] == "get_state" and _is_dali(thing)
            return functools.partial(_dali_state, thing) if is_dali else take, put
        if callable(take) or callable(put):
            present, absent = names if callable(take) else reversed(names)
            lacking.append(f"{present}() without {absent}()")
    raise CheckpointError(
        f"{type_name(thing)} has no state that can be saved and restored"
        f"{': ' + ', '.join(lacking) if lacking else ''}. Remedy: {_ADVICE}"
    )


def _dali_state(thing: Any) -> str:
    stream = {}
    if getattr(thing, "_backend", "cpu") != "cpu":
        contexts = sys.modules[f"{_DALI}experimental.dynamic._eval_context"]
        stream = {"cuda_stream": contexts.EvalContext.current().cuda_stream}
    # Another process's set_state() takes the text of DALI's state objects.
    return str(thing.get_state(**stream))


def _is_dali(thing: Any) -> bool:
    return any(base.__module__.startswith(_DALI) for base in type(thing).__mro__)

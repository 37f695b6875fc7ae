"""SamplerSnapshot: the generators and counters of a sampler without ``state_dict``.

A sampler without a state is iterated again from the start of its pass. A snapshot keeps its
generators, the plain attributes that have changed since the loader was built (``self.epoch += 1``),
and small lists, dictionaries, sets and arrays of plain values, which some samplers shuffle in
place. Attributes that never change are configuration.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.randomness.generator_state import generator_from_text, generator_to_text
from stateful_gpu_loader.randomness.seed import after_the_draw
from stateful_gpu_loader.state.typed_json import decode, encode, parse, write

_PLAIN = (bool, int, float, str, type(None))
_MAX_DEPTH = 3
_MAX_VALUES = 4096
"""Largest number of values in a container that a snapshot keeps."""
_NOT_THE_SAMPLERS = frozenset({"dataset", "data_source"})
"""Names of attributes that hold the dataset."""

NOTHING_CAPTURED: Mapping[str, dict[str, Any]] = {"attributes": {}, "generators": {}}
"""Snapshot of an unchanged sampler."""


class SamplerSnapshot:
    """Takes and restores snapshots of a sampler and the samplers in it.

    >>> class Alternating:
    ...     turn = 0
    ...     def __init__(self): self.turn = 0
    ...     def __iter__(self):
    ...         self.turn += 1
    ...         return iter([0, 1] if self.turn % 2 else [1, 0])
    >>> sampler = Alternating()
    >>> memory = SamplerSnapshot(sampler)
    >>> list(sampler)
    [0, 1]
    >>> changed = memory.capture()
    >>> changed["attributes"]
    {'turn': 1}
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._built = self._at_load = dict(self._attributes())
        every = _walk(sampler, "", _MAX_DEPTH)
        self._objects = frozenset(path for path, value in every if type(value) not in _PLAIN)
        self._summaries = {path: _summary(value) for path, value in self._large()}
        self._reshuffled: list[str] = []
        """Changed containers that are too large to keep."""
        self._has_warned = False
        self._is_restored = False
        self._overruled: dict[str, Any] = {}

    def warn_of_large(self) -> None:
        """Warn once if the sampler changes a container that a snapshot cannot keep."""
        if self._reshuffled and not self._has_warned:
            self._has_warned = True
            name = type(self._sampler).__name__
            warnings.warn(
                f"{name} changes {', '.join(self._reshuffled)} in place. Containers of more than "
                f"{_MAX_VALUES} values are not in the state, so no new loader can resume "
                f"from it. Remedy: let {name} shuffle a copy in __iter__, or give it state_dict() "
                "and load_state_dict()",
                stacklevel=5,
            )

    def note_load(self, saved: Mapping[str, Any]) -> None:
        """Note that a state was loaded; ``set_epoch()`` after it does not affect the resumed pass.

        Args:
            saved: attributes of the sampler in the state. Its epoch is restored at once, to notice
                a later change.
        """
        present = dict(self._attributes())
        self.set_attributes(
            {path: saved[path] for path in saved if _is_epoch(path) and path in present}
        )
        self._at_load = dict(self._attributes())
        self._is_restored = True

    def take_restored(self) -> bool:
        """Return whether a load has restored the sampler since the last call."""
        was_restored, self._is_restored = self._is_restored, False
        return was_restored

    def check(self, captured: Mapping[str, Any]) -> None:
        """Refuse a snapshot that :meth:`restore` could not restore.

        Raises:
            StateMismatch: the sampler has other generators, their saved states are invalid, an
                attribute is not plain, or the sampler cannot have it.
        """
        for path, value in captured["attributes"].items():
            is_kept = isinstance(value, dict) and self._is_loadable(path, value)
            if not is_kept and not (self._has_place_for(path) and type(value) in _PLAIN):
                raise StateMismatch(
                    "sampler's attributes",
                    saved={path: value},
                    present="a plain value or a small container of the sampler or a sampler in it",
                    remedy="build the sampler as it was when the state was saved",
                )
        generators = dict(self._generators())
        saved = captured["generators"]
        if saved and set(saved) != set(generators):
            raise StateMismatch(
                "sampler's generators",
                saved=sorted(map(str, saved)),
                present=sorted(generators),
                remedy="build the sampler as it was when the state was saved",
            )
        for path, text in saved.items():
            _from_text(path, copy.deepcopy(generators[path]), text)

    def capture(
        self, *, seed_generator: torch.Generator | None = None
    ) -> dict[str, dict[str, Any]]:
        """Return ``attributes`` and ``generators`` by their paths, as plain values and text.

        Args:
            seed_generator: generator from which the loader's seed is still to be drawn.
        """
        changed = {
            path: value
            for path, value in self._attributes()
            if _is_epoch(path) or path not in self._built or self._built[path] != value
        }
        large = ((path, _summary(value)) for path, value in self._large())
        self._reshuffled = [
            path for path, summary in large if self._summaries.get(path, summary) != summary
        ]
        generators = {
            path: _to_text(value)
            if seed_generator is None or value is not seed_generator
            else generator_to_text(after_the_draw(seed_generator))
            for path, value in self._generators()
        }
        return {"attributes": changed, "generators": generators}

    def epochs(self) -> dict[str, dict[str, Any]]:
        """Return only the epochs, for a sampler with its own state."""
        plain = _walk(self._sampler, "", _MAX_DEPTH)
        epochs = {path: value for path, value in plain if _is_epoch(path) and type(value) in _PLAIN}
        return {"attributes": epochs, "generators": {}}

    def set_since_load(self) -> dict[str, Any]:
        """Return plain attributes set since a state was loaded, mainly by ``set_epoch``."""
        return {
            path: value
            for path, value in self._attributes()
            if path not in self._at_load or self._at_load[path] != value
        }

    def set_attributes(self, attributes: dict[str, Any]) -> None:
        present = dict(self._attributes())
        for path, value in attributes.items():
            if path not in present or present[path] != value:
                self._set(path, value)

    def restore(self, captured: Mapping[str, Any]) -> None:
        """Restore the sampler to a snapshot of :meth:`capture`.

        Raises:
            StateMismatch: as :meth:`check`.
        """
        self.check(captured)
        generators = dict(self._generators())
        for path, text in captured["generators"].items():
            _from_text(path, generators[path], text)
        # Attributes that changed only in this sampler return to their first values.
        self.set_attributes({**self._built_values_of_changed(), **captured["attributes"]})

    def restore_within_pass(self, captured: Mapping[str, Any]) -> None:
        """Restore a sampler within a pass; the pass keeps its epoch, even after set_epoch()."""
        changed = self.set_since_load()
        self._overruled = {path: value for path, value in changed.items() if _is_epoch(path)}
        for path, value in captured["attributes"].items():
            if _is_epoch(path) and changed.get(path, value) != value:
                warnings.warn(
                    f"the sampler was set to epoch {changed[path]} after load_state_dict() of a "
                    f"pass in its epoch {value}: the resumed pass stays there; call set_epoch() "
                    "after it",
                    stacklevel=2,
                )
        self.restore(captured)
        restored = dict(self._attributes())
        self._overruled = {
            path: value for path, value in self._overruled.items() if restored[path] != value
        }
        self._at_load |= {path: restored[path] for path in self._overruled}

    def note_delivery(self) -> None:
        """Forget an epoch that was set too early for the next pass."""
        self._overruled = {}

    def apply_overruled_epoch(self) -> None:
        """Apply an epoch that was set too early, after an empty resumed pass."""
        overruled, self._overruled = self._overruled, {}
        changed = self.set_since_load()
        self.set_attributes(
            {path: value for path, value in overruled.items() if path not in changed}
        )

    def _built_values_of_changed(self) -> dict[str, Any]:
        return {
            path: self._built[path]
            for path, value in self._attributes()
            if path in self._built and self._built[path] != value and not _is_epoch(path)
        }

    def _has_place_for(self, path: Any) -> bool:
        """Whether a plain attribute can be set, even before ``__iter__`` adds it."""
        owner = self._sampler
        *parents, name = path.split(".") if isinstance(path, str) else [""]
        for parent in parents:
            owner = getattr(owner, "__dict__", {}).get(parent)
        is_name = name.isidentifier() and not name.startswith("__")
        return is_name and hasattr(owner, "__dict__") and path not in self._objects

    def _set(self, path: str, value: Any) -> None:
        *parents, name = path.split(".")
        owner = self._sampler
        for parent in parents:
            owner = getattr(owner, parent)
        if isinstance(value, dict):
            _fill(owner, name, _of_form(value))
        elif _is_epoch(path) and callable(getattr(owner, "set_epoch", None)):
            owner.set_epoch(value)
        else:
            setattr(owner, name, value)

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        for path, value in _walk(self._sampler, "", _MAX_DEPTH):
            if type(value) in _PLAIN:
                yield path, value
            elif _is_container(path, value) and _count(value) <= _MAX_VALUES:
                form = _form_of(value)
                if form is not None:
                    yield path, form

    def _large(self) -> Iterator[tuple[str, Any]]:
        for path, value in _walk(self._sampler, "", _MAX_DEPTH):
            if _is_container(path, value) and _count(value) > _MAX_VALUES:
                yield path, value

    def _is_loadable(self, path: Any, form: dict[Any, Any]) -> bool:
        """Whether a saved container can replace the sampler's own."""
        built = self._built.get(path)
        if not isinstance(built, dict) or set(form) != set(built) or form["kind"] != built["kind"]:
            return False
        try:
            return _count(_of_form(form)) <= _MAX_VALUES
        except (TypeError, ValueError, AttributeError):
            return False

    def _generators(self) -> Iterator[tuple[str, Any]]:
        for path, value in _walk(self._sampler, "", _MAX_DEPTH):
            if isinstance(
                value,
                (torch.Generator, random.Random, np.random.Generator, np.random.RandomState),
            ):
                yield path, value


def state_mark(
    sampler: Any,
    iterator: Any = None,
    *,
    exhausted: bool = False,
    captured: Mapping[str, Any] = NOTHING_CAPTURED,
) -> dict[str, Any]:
    """Return the mark of a sampler or iterator with a state.

    Args:
        sampler, iterator: results of their ``state_dict()``.
        exhausted: whether the iterator has ended.
        captured: attributes and generators that these states do not hold.
    """
    states = {"sampler": sampler, "iterator": iterator, "exhausted": exhausted}
    return {"kind": "state", **states, **captured}


def replay_mark(
    captured: Mapping[str, Any], passed: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the mark of a sampler without a state.

    Args:
        captured: its attributes and generators at the start of a pass.
        passed: epoch, number and digest of the whole pass's indices, if the sampler is at its end;
            None at its start.
    """
    return {"kind": "replay", "passed": passed, **captured}


def is_mark(mark: Any) -> bool:
    """Return whether a part of a state is a mark of one of these functions."""
    if not isinstance(mark, dict):
        return False
    whole = state_mark(None) if mark.get("kind") == "state" else replay_mark(NOTHING_CAPTURED)
    passed = mark.get("passed")
    return (
        mark.get("kind") == whole["kind"]
        and set(mark) == set(whole)
        and isinstance(mark["attributes"], dict)
        and isinstance(mark["generators"], dict)
        and isinstance(mark.get("exhausted", False), bool)
        and (passed is None or _is_passed(passed))
    )


def _is_passed(passed: Any) -> bool:
    return (
        isinstance(passed, dict)
        and set(passed) == {"epoch", "indices", "digest"}
        and isinstance(passed["epoch"], int)
        and isinstance(passed["indices"], int)
        and isinstance(passed["digest"], str)
    )


def _walk(owner: Any, prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in sorted(getattr(owner, "__dict__", {}).items()):
        path = f"{prefix}{name}"
        yield path, value
        if depth > 1 and isinstance(value, Sampler):
            yield from _walk(value, f"{path}.", depth - 1)


def samplers_in(sampler: Any) -> list[Any]:
    return [value for _, value in _walk(sampler, "", _MAX_DEPTH) if isinstance(value, Sampler)]


def _is_epoch(path: str) -> bool:
    return path.rpartition(".")[2] == "epoch"


def _is_container(path: str, value: Any) -> bool:
    name = path.rpartition(".")[2]
    return type(value) in _KINDS.values() and name not in _NOT_THE_SAMPLERS


def _count(value: Any) -> int:
    """Return the number of values in a container, nested containers included."""
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return int(value.size if isinstance(value, np.ndarray) else value.numel())
    count, waiting = 0, [value]
    while waiting and count <= _MAX_VALUES:
        each = waiting.pop()
        count += len(each)
        if count <= _MAX_VALUES:
            inner = each.values() if isinstance(each, dict) else each
            waiting += [one for one in inner if isinstance(one, (list, tuple, dict, set))]
    return count


def _form_of(value: Any) -> dict[str, str] | None:
    """Return a container as text, or None if its values are not all plain."""
    kind = next(name for name, kind in _KINDS.items() if type(value) is kind)
    try:
        text = write(encode(list(value) if isinstance(value, deque) else value))
    except (TypeError, RecursionError):
        return None
    return {"kind": kind, "container": text}


def _of_form(form: dict[Any, Any]) -> Any:
    """Return the container from the text of :func:`_form_of`.

    Raises:
        ValueError, TypeError, AttributeError: the text is invalid.
    """
    value = decode(parse(form["container"].encode()))
    kind = _KINDS[form["kind"]]
    if type(value) is not (list if kind is deque else kind):
        raise ValueError(f"a {type(value).__name__} in place of a {kind.__name__}")
    return value


def _fill(owner: Any, name: str, value: Any) -> None:
    """Put values into a container in place; other objects may share it."""
    present = getattr(owner, name, None)
    if isinstance(present, list):
        present[:] = value
    elif isinstance(present, (dict, set)):
        present.clear()
        present.update(value)
    elif isinstance(present, deque):
        present.clear()
        present.extend(value)
    elif isinstance(present, np.ndarray) and present.shape == value.shape:
        present[...] = value
    elif isinstance(present, torch.Tensor) and present.shape == value.shape:
        present.copy_(value)
    else:
        setattr(owner, name, value)


def _summary(value: Any, depth: int = 3) -> str:
    """Summarise a large container by its length and some of its values, in constant time."""
    if isinstance(value, (np.ndarray, torch.Tensor)):
        value = value.reshape(-1)
    elif isinstance(value, (dict, set, deque)):
        value = list(itertools.islice(value.items() if isinstance(value, dict) else value, 4096))
    if depth == 0 or not isinstance(value, (list, tuple, np.ndarray, torch.Tensor)):
        return repr(value)[:100]
    step = max(1, len(value) // 64)
    return f"{len(value)}: {[_summary(one, depth - 1) for one in value[::step]]}"


_KINDS: dict[str, Any] = {
    "list": list,
    "dict": dict,
    "set": set,
    "deque": deque,
    "array": np.ndarray,
    "tensor": torch.Tensor,
}
"""Types of containers that samplers change in place, without subclasses."""


def _to_text(generator: Any) -> str:
    if isinstance(generator, torch.Generator):
        return generator_to_text(generator.get_state())
    if isinstance(generator, random.Random):
        return json.dumps(generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return json.dumps(_listed(generator.get_state(legacy=False)))
    return json.dumps(_listed(generator.bit_generator.state))


def _from_text(path: str, generator: Any, text: Any) -> None:
    try:
        if isinstance(generator, torch.Generator):
            generator.set_state(generator_from_text(text))
        elif isinstance(generator, random.Random):
            version, internal, gauss = json.loads(text)
            generator.setstate((version, tuple(internal), gauss))
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(json.loads(text))
        else:
            generator.bit_generator.state = json.loads(text)
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        raise StateMismatch(
            f"sampler's {path}",
            saved=text,
            present=f"the state of a {type(generator).__name__} ({error})",
            remedy="build the sampler as it was when the state was saved",
        ) from error


def _listed(state: Any) -> Any:
    """Convert the arrays in a NumPy state to lists, which NumPy accepts."""
    if isinstance(state, dict):
        return {key: _listed(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, (np.ndarray, np.generic)) else state

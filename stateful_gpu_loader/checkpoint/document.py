"""The text of a checkpoint: one JSON object that knows its length, its checksum and its version.

Its first line is the head, the same in every version:

    {"format": "stateful_gpu_loader checkpoint", "version": 1, "length": 352, "sha256": "...",

``length`` is the number of bytes after the head, and the SHA-256 covers these and the head up to
the end of the length. So damage is found before anything is parsed. On the lines below are the
time, the versions of libraries, and the states, which have the form of
:mod:`stateful_gpu_loader.state.typed_json`. All of it is ASCII.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import operator
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np
import torch

from stateful_gpu_loader.errors import CheckpointError
from stateful_gpu_loader.state import typed_json
from stateful_gpu_loader.state.typed_json import bounded

FORMAT = "stateful_gpu_loader checkpoint"
VERSION = 1

_BEGINNING = f'{{"format": "{FORMAT}", "version": '.encode()
_HEAD = re.compile(
    re.escape(_BEGINNING) + rb'([1-9][0-9]{0,8}), "length": (0|[1-9][0-9]{0,17})'
    rb', "sha256": "([0-9a-f]{64})",\n'
)
_NUM_HEAD_BYTES = 200
"""At least as many as any head has."""
_NUM_DAMAGED = 8
"""Of the bytes that every checkpoint begins with, by which damage is told from another format."""
_FIELDS = ["format", "version", "length", "sha256", "time", "libraries", "states"]
_BEFORE = "load the one before, or a copy"


@dataclass(frozen=True)
class SavedState:
    """The state of one object."""

    type_name: str | None
    """``module.Qualname`` of the object; None where it is not known."""
    form: Any
    """A copy, ready to be written: what ``typed_json.encode`` made of it."""

    @classmethod
    def of(cls, type_name: str | None, state: Any) -> SavedState:
        """A copy of a state.

        Raises:
            TypeError: it holds what has no form in JSON.
        """
        return cls(type_name, typed_json.encode(state))

    @property
    def state(self) -> Any:
        """The state; a fresh copy each time."""
        return typed_json.decode(self.form)


def to_text(states: Mapping[str, SavedState]) -> str:
    """Write states, in their order, with a head, the time and the versions of libraries.

    Raises:
        TypeError: a name is no text.

    >>> text = to_text({"rng": SavedState.of("stateful_gpu_loader.RNG", {"n": (1, 2)})})
    >>> text.splitlines()[3]
    '"rng": {"type": "stateful_gpu_loader.RNG", "state": {"n": {"$tuple": [1, 2]}}}'
    """
    entries = ",\n".join(f"{_name(name)}: {_entry(saved)}" for name, saved in states.items())
    time = datetime.now(timezone.utc).isoformat(timespec="seconds")
    rest = (
        f'"time": "{time}", "libraries": {_libraries()},\n"states": {{\n{entries}\n}}}}\n'
    ).encode("ascii")
    head = _BEGINNING + f'{VERSION}, "length": {len(rest)}'.encode()
    digest = _digest(head, rest)
    return f'{head.decode()}, "sha256": "{digest}",\n{rest.decode()}'


def from_text(text: str | bytes) -> dict[str, SavedState]:
    """Read back :func:`to_text`, in time and memory in proportion to the length of the text.

    Raises:
        CheckpointError: the text is empty, truncated, altered, foreign or of a later version.

    >>> saved = SavedState.of("builtins.list", [1, 2])
    >>> from_text(to_text({"a": saved})) == {"a": saved}
    True
    >>> from_text(to_text({"a": saved})[:-20])
    Traceback (most recent call last):
        ...
    stateful_gpu_loader.errors.CheckpointError: the checkpoint is truncated: 20 bytes are missing \
at its end. Remedy: load the one before, or a copy
    """
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    head = _HEAD.match(data)
    if head is None:
        raise _headless(data)
    version, length = int(head[1]), int(head[2])
    missing = length - (len(data) - head.end())
    if missing > 0:
        raise _truncated(f"{missing} bytes are missing at its end")
    if missing < 0:
        raise _altered(f"{-missing} bytes follow its end")
    if _digest(data[: head.end(2)], data[head.end() :]).encode() != head[3]:
        raise _altered("its checksum does not fit")
    if version > VERSION:
        raise CheckpointError(
            f"the checkpoint is of version {version}, of which this stateful_gpu_loader reads up "
            f"to {VERSION}. Remedy: install the version that wrote it, or a later one"
        )
    try:
        return _states(bounded.parse(data))
    except ValueError as error:
        raise CheckpointError(
            f"the checkpoint is whole, and holds what cannot be read here: {error}. Remedy: "
            "install the versions of libraries that its second line names, or load the one before"
        ) from error


def _name(name: str) -> str:
    if not isinstance(name, str) or not typed_json.is_text(name):
        raise TypeError(f"{name!r} is no name of a state. Remedy: use str without surrogates")
    return bounded.write(name)


def _entry(saved: SavedState) -> str:
    return bounded.write({"type": saved.type_name, "state": saved.form})


def _states(found: Any) -> dict[str, SavedState]:
    if not isinstance(found, dict) or list(found) != _FIELDS:
        raise ValueError(f"not the fields {_FIELDS}")
    if not isinstance(found["states"], dict):
        raise ValueError("states that are no object")
    return {name: _saved(name, entry) for name, entry in found["states"].items()}


def _saved(name: str, entry: Any) -> SavedState:
    if not isinstance(entry, dict) or list(entry) != ["type", "state"]:
        raise ValueError(f"no type and state of {name!r}")
    if not isinstance(entry["type"], str | None):
        raise ValueError(f"no name of the type of {name!r}")
    saved = SavedState(entry["type"], entry["state"])
    try:
        _ = saved.state
    except ValueError as error:
        raise ValueError(f"of {name!r}, {error}") from error
    return saved


def _headless(data: bytes) -> CheckpointError:
    """Why there is no head; only here may a text be parsed without a checksum."""
    if not data.strip(b"\0 \t\r\n"):
        return CheckpointError(
            f"the checkpoint is empty: {len(data)} bytes of nothing. Remedy: {_BEFORE}"
        )
    cut = len(data) < _NUM_HEAD_BYTES and b"\n" not in data
    if cut and (data.startswith(_BEGINNING) or _BEGINNING.startswith(data)):
        return _truncated("it ends within its first line")
    num_alike = sum(map(operator.eq, data, _BEGINNING))
    if FORMAT.encode() in data[:_NUM_HEAD_BYTES] or num_alike >= len(_BEGINNING) - _NUM_DAMAGED:
        return _altered("its first line is not as it was written")
    try:
        found = bounded.parse(data)
    except ValueError:
        return _foreign(f"no JSON; it begins with {data[:16]!r}")
    if isinstance(found, dict) and found.get("format") == FORMAT:
        return _altered("its JSON was written anew by another program")
    return _foreign("JSON of another format")


def _truncated(reason: str) -> CheckpointError:
    return CheckpointError(f"the checkpoint is truncated: {reason}. Remedy: {_BEFORE}")


def _altered(reason: str) -> CheckpointError:
    return CheckpointError(f"the checkpoint was altered: {reason}. Remedy: {_BEFORE}")


def _foreign(reason: str) -> CheckpointError:
    return CheckpointError(
        f"the text is no checkpoint of stateful_gpu_loader: {reason}. "
        "Remedy: pass what Checkpoint.save() wrote"
    )


def _digest(head: bytes, rest: bytes) -> str:
    digest = hashlib.sha256(head)
    digest.update(rest)
    return digest.hexdigest()


@functools.cache
def _libraries() -> str:
    try:
        own = importlib.metadata.version("stateful_gpu_loader")
    except importlib.metadata.PackageNotFoundError:
        own = "not installed"
    return bounded.write(
        {
            "stateful_gpu_loader": own,
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
        }
    )

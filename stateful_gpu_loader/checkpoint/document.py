"""Content of a checkpoint file: JSON that states its length, checksum and version.

Its first line is the head, the same in every version:

    {"format": "stateful_gpu_loader checkpoint", "version": 1, "length": 352, "sha256": "...",

``length`` is the number of bytes after the head. The SHA-256 covers these bytes, and the head up to
the end of the length, so damage is found before anything is parsed. The lines below, in ASCII, hold
the time, the versions of libraries, and each state in the form of
:mod:`stateful_gpu_loader.state.typed_json`; the last line is ``}}``.

Version 1 ends there, with tensors as base64. In version 2 the raw bytes of all tensors and arrays
follow, and the text gives their ranges. States without tensors and arrays are written as version 1,
which every version of this package reads.
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

FORMAT = "stateful_gpu_loader checkpoint"
VERSION = 2
"""Latest version that can be read."""

_BEGINNING = f'{{"format": "{FORMAT}", "version": '.encode()
_HEAD = re.compile(
    re.escape(_BEGINNING) + rb'([1-9][0-9]{0,8}), "length": (0|[1-9][0-9]{0,17})'
    rb', "sha256": "([0-9a-f]{64})",\n'
)
_END_OF_TEXT = b"\n}}\n"
_NUM_HEAD_BYTES = 200
"""Upper bound of a head's size in bytes."""
_NUM_DAMAGED = 8
"""Maximum number of differences in the first bytes of a damaged checkpoint."""
_FIELDS = ["format", "version", "length", "sha256", "time", "libraries", "states"]
_BEFORE = "load the one before, or a copy"


@dataclass(frozen=True)
class SavedState:
    type_name: str | None
    """``module.Qualname`` of the object; None if unknown."""
    form: Any
    """Result of ``typed_json.encode`` for the state."""

    @classmethod
    def of(cls, type_name: str | None, state: Any) -> SavedState:
        """Copy a state.

        Raises:
            TypeError: a part of the state has no form in JSON.
        """
        return cls(type_name, typed_json.encode(state))

    @property
    def state(self) -> Any:
        """The state, as a fresh copy each time."""
        return typed_json.decode(self.form)


def to_text(states: Mapping[str, SavedState]) -> str:
    """Write states in their order as one JSON text of version 1.

    Raises:
        TypeError: a name is not valid text.

    >>> text = to_text({"rng": SavedState.of("stateful_gpu_loader.RNG", {"n": (1, 2)})})
    >>> text.splitlines()[3]
    '"rng": {"type": "stateful_gpu_loader.RNG", "state": {"n": {"$tuple": [1, 2]}}}'
    """
    return _with_head(1, _text(states, None)).decode("ascii")


def to_bytes(states: Mapping[str, SavedState]) -> bytes:
    """Write states in their order as the content of a file, with raw bytes for tensors and arrays.

    Raises:
        TypeError: a name is not valid text.

    >>> import torch
    >>> content = to_bytes({"weights": SavedState.of(None, torch.zeros(1000))})
    >>> content[:57], content.endswith(b"}}\\n" + bytes(4000))
    (b'{"format": "stateful_gpu_loader checkpoint", "version": 2', True)
    """
    raw = bytearray()
    text = _text(states, raw)
    return _with_head(2 if raw else 1, text, raw)


def from_text(text: str | bytes) -> dict[str, SavedState]:
    """Read the result of :func:`to_text` or :func:`to_bytes`, from any version of this package.

    Time and memory are proportional to its actual length.

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
    if _digest(data[: head.end(2)], memoryview(data)[head.end() :]).encode() != head[3]:
        raise _altered("its checksum does not fit")
    if version > VERSION:
        raise CheckpointError(
            f"the checkpoint is of version {version}, of which this stateful_gpu_loader reads up "
            f"to {VERSION}. Remedy: install the version that wrote it, or a later one"
        )
    try:
        return _states(_parsed(data, version))
    except ValueError as error:
        raise CheckpointError(
            f"the checkpoint is intact, but this installation cannot read it: {error}. Remedy: "
            "install the versions of libraries that its second line names, or load the one before"
        ) from error


def claimed_length(beginning: bytes) -> int:
    """Return the total number of bytes that a checkpoint's head claims; 0 without a head.

    >>> claimed_length(to_text({})[:200].encode()) == len(to_text({})), claimed_length(b"{}")
    (True, 0)
    """
    head = _HEAD.match(beginning)
    return 0 if head is None else head.end() + int(head[2])


def _text(states: Mapping[str, SavedState], raw: bytearray | None) -> bytes:
    """Return the text below the head; tensor and array data is appended to ``raw`` unless None."""
    lines = []
    for name, saved in states.items():
        if not isinstance(name, str) or not typed_json.is_text(name):
            raise TypeError(
                f"{name!r} is not a name of a state. Remedy: use str without surrogates"
            )
        entry = {"type": saved.type_name, "state": saved.form}
        lines.append(f"{typed_json.write(name)}: {typed_json.write(entry, raw)}")
    time = datetime.now(timezone.utc).isoformat(timespec="seconds")
    entries = ",\n".join(lines)
    text = f'"time": "{time}", "libraries": {_libraries()},\n"states": {{\n{entries}'
    return text.encode("ascii") + _END_OF_TEXT


def _with_head(version: int, text: bytes, raw: bytes | bytearray = b"") -> bytes:
    head = _BEGINNING + f'{version}, "length": {len(text) + len(raw)}'.encode()
    digest = _digest(head, text, raw)
    return b"".join([head, f', "sha256": "{digest}",\n'.encode(), text, raw])


def _parsed(data: bytes, version: int) -> Any:
    if version == 1:
        return typed_json.parse(data)
    if _END_OF_TEXT not in data:
        raise ValueError("no line ends its text")
    end = data.index(_END_OF_TEXT) + len(_END_OF_TEXT)
    return typed_json.parse(data[:end], raw=memoryview(data)[end:])


def _states(found: Any) -> dict[str, SavedState]:
    if not isinstance(found, dict) or list(found) != _FIELDS:
        raise ValueError(f"not the fields {_FIELDS}")
    if not isinstance(found["states"], dict):
        raise ValueError("states that are no object")
    return {name: _saved(name, entry) for name, entry in found["states"].items()}


def _saved(name: str, entry: Any) -> SavedState:
    if not typed_json.is_text(name):
        raise ValueError(f"the name {name[:80]!r}, which has surrogates")
    if not isinstance(entry, dict) or list(entry) != ["type", "state"]:
        raise ValueError(f"no type and state of {name[:80]!r}")
    if not isinstance(entry["type"], str | None) or not typed_json.is_text(entry["type"] or ""):
        raise ValueError(f"no name of the type of {name[:80]!r}")
    saved = SavedState(entry["type"], entry["state"])
    try:
        _ = saved.state
    except ValueError as error:
        raise ValueError(f"of {name[:80]!r}, {error}") from error
    return saved


def _headless(data: bytes) -> CheckpointError:
    """Return the reason for the missing head; may parse a text without checksum."""
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
        found = typed_json.parse(data)
    except ValueError:
        return _foreign(f"no JSON; it begins with {data[:16]!r}")
    if isinstance(found, dict) and found.get("format") == FORMAT:
        return _altered("its JSON was written again by another program")
    return _foreign("JSON of another format")


def _truncated(reason: str) -> CheckpointError:
    return CheckpointError(f"the checkpoint is truncated: {reason}. Remedy: {_BEFORE}")


def _altered(reason: str) -> CheckpointError:
    return CheckpointError(f"the checkpoint was altered: {reason}. Remedy: {_BEFORE}")


def _foreign(reason: str) -> CheckpointError:
    return CheckpointError(
        f"the text is not a checkpoint of stateful_gpu_loader: {reason}. "
        "Remedy: pass what Checkpoint.save() wrote"
    )


def _digest(*parts: bytes | bytearray | memoryview) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


@functools.cache
def _libraries() -> str:
    try:
        own = importlib.metadata.version("stateful_gpu_loader")
    except importlib.metadata.PackageNotFoundError:
        own = "not installed"
    return typed_json.write(
        {
            "stateful_gpu_loader": own,
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
        }
    )

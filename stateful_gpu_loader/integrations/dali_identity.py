"""Common parts of the states of DALI's pipelines and readers: format and comparison.

A state describes its pipeline or reader by JSON values.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Any

from stateful_gpu_loader.errors import StateMismatch

logger = logging.getLogger(__name__)

LONGEST_VALUE = 100
"""Maximum number of characters of a value in a state; a digest replaces longer values."""

NOT_GIVEN = "not given"

DATA = frozenset(
    {
        "annotations_file",
        "file_list",
        "file_root",
        "files",
        "index_path",
        "index_paths",
        "labels",
        "path",
        "paths",
    }
)
"""Arguments of readers that select their data.

They may differ by ``accept=``, if the number of samples is the same.
"""

Differences = dict[str, tuple[Any, Any]]
"""The saved and the present value of each field that differs."""


def check_header(state: Any, *, format: str, version: int, keys: Collection[str], of: str) -> None:
    """Check that a state has a format.

    Args:
        format: name of the format.
        version: the only version that can be read.
        keys: all required keys except ``format`` and ``version``.
        of: class that writes such states.

    Raises:
        StateMismatch: the state has another format, version or set of keys.

    >>> header = {"format": "counter", "version": 1}
    >>> check_header({**header, "n": 3}, format="counter", version=1, keys=["n"], of="Counter")
    """
    if not isinstance(state, Mapping):
        raise foreign("format", type(state).__name__, "dict", of=of)
    if state.get("format") != format:
        raise foreign("format", state.get("format", sorted(map(str, state))), format, of=of)
    if state.get("version") != version or isinstance(state.get("version"), bool):
        raise StateMismatch(
            "version",
            saved=state.get("version"),
            present=version,
            remedy="install the version of stateful_gpu_loader that wrote the state, or later",
        )
    expected = {"format", "version", *keys}
    if set(state) != expected:
        raise foreign("keys", sorted(map(str, state)), sorted(expected), of=of)


def foreign(field: str, saved: Any, present: Any, *, of: str) -> StateMismatch:
    """Return the error for an altered or foreign state."""
    remedy = f"load what {of}.state_dict() returned, unchanged"
    return StateMismatch(field, saved=saved, present=present, remedy=remedy)


def differences(saved: Mapping[str, Any], present: Mapping[str, Any]) -> Differences:
    """Return the fields that differ; NaN equals NaN.

    >>> differences({"size": 3, "fill": float("nan")}, {"size": 4, "fill": float("nan")})
    {'size': (3, 4)}
    """
    found = {}
    for field in [*present, *(field for field in saved if field not in present)]:
        before, now = saved.get(field, NOT_GIVEN), present.get(field, NOT_GIVEN)
        if before != now and json.dumps(before) != json.dumps(now):
            found[field] = (before, now)
    return found


def check_accept(accept: Any, acceptable: Collection[str]) -> None:
    """Check that all names in ``accept=`` may be accepted.

    Raises:
        ValueError: a name may not be accepted.
    """
    is_collection = isinstance(accept, Collection) and not isinstance(accept, str)
    if not is_collection or set(accept) - set(acceptable):
        raise ValueError(
            f"{accept = } must be a collection of names among {sorted(acceptable)}. Remedy: accept "
            "only these; where another field differs, begin without the state"
        )


def refuse(
    found: Differences, *, what: str, accept: Collection[str], acceptable: Collection[str]
) -> None:
    """Raise for the first difference that was not accepted.

    Raises:
        StateMismatch: there is such a difference; the error names the field.
    """
    for field, (before, now) in found.items():
        if field in accept:
            continue
        remedy = (
            f"build the {what} as it was when the state was saved: DALI would silently continue "
            "in another one"
        )
        if field in acceptable:
            remedy += f"; if it is meant to differ, load_state_dict(state, accept={{{field!r}}})"
        raise StateMismatch(field, saved=before, present=now, remedy=remedy)


def report(found: Differences) -> None:
    """Log accepted differences."""
    for field, (before, now) in found.items():
        logger.warning("accepted another %s: %r instead of %r", field, now, before)


def brief(value: Any) -> Any:
    """Return the value, or the beginning of a long value with a digest of the whole."""
    text = json.dumps(value)
    if len(text) <= LONGEST_VALUE:
        return value
    count = f"{len(value)} values, " if isinstance(value, list) else ""
    return f"{text[: LONGEST_VALUE // 2]}... ({count}{digest(value)})"


def digest(value: Any) -> str:
    """Return the digest of a JSON value: 16 hexadecimal digits."""
    return blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()

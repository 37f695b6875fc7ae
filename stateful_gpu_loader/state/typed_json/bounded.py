"""JSON text of unknown origin: parsed in time and memory in proportion to its length, or refused.

Python's own parser follows nesting on the C stack, converts long integers in quadratic time and
lets the last of equal keys win. The text is looked over before that parser sees it.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import numpy as np

MAX_DEPTH = 300
"""Greatest nesting of arrays and objects. Python's recursion limit is 1000 by default."""
MAX_DIGITS = 400
"""Longest run of digits in a number."""

_TOO_MANY_DIGITS = re.compile(rb"(?<![0-9])[0-9]{%d}" % (MAX_DIGITS + 1))
_BRACKETS = b"[]{}"
_OTHERS = bytes(set(range(256)) - set(_BRACKETS))
_OPENING = [ord("["), ord("{")]
_BLOCK = 1 << 16
_ENCODER = json.JSONEncoder(allow_nan=False)


def write(value: Any) -> str:
    """JSON in ASCII; what is not finite is no JSON.

    Raises:
        ValueError: a float is not finite.

    >>> write({"a": [1, 0.5, "é"]})
    '{"a": [1, 0.5, "\\\\u00e9"]}'
    """
    return _ENCODER.encode(value)


def parse(text: bytes) -> Any:
    """Parse JSON in UTF-8.

    Raises:
        ValueError: it is no JSON, or has equal keys in one object, a literal that is no JSON
            (``NaN``), a number of more than :data:`MAX_DIGITS` digits, or nesting beyond
            :data:`MAX_DEPTH`.

    >>> parse(b'{"a": [1, 0.5]}')
    {'a': [1, 0.5]}
    >>> parse(b'{"a": 1, "a": 2}')
    Traceback (most recent call last):
        ...
    ValueError: the key 'a' comes twice in one object
    """
    outside = _outside_strings(text)
    if (depth := _depth(outside)) > MAX_DEPTH:
        raise ValueError(f"nesting of depth {depth}, of which {MAX_DEPTH} is read")
    if _TOO_MANY_DIGITS.search(outside):
        raise ValueError(f"a number of more than {MAX_DIGITS} digits")
    try:
        return json.loads(
            text.decode(), object_pairs_hook=_object_of, parse_constant=_refuse_constant
        )
    except RecursionError as error:
        raise ValueError("nesting too deep for what is left of the stack") from error


def _outside_strings(text: bytes) -> bytes:
    """What lies outside strings, exactly so as far as the text is JSON."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b'"'.join(text.split(b'"')[::2])


def _depth(outside: bytes) -> int:
    brackets = outside.translate(None, _OTHERS)
    greatest = level = 0
    for first in range(0, len(brackets), _BLOCK):
        found = np.frombuffer(brackets[first : first + _BLOCK], np.uint8)
        levels = level + np.cumsum(np.where(np.isin(found, _OPENING), 1, -1))
        greatest, level = max(greatest, int(levels.max())), int(levels[-1])
    return greatest


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"the key {_shortened(twice)} comes twice in one object")
    return found


def _refuse_constant(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is no JSON")


def _shortened(name: str) -> str:
    return repr(name if len(name) <= 60 else f"{name[:60]}...")

"""Typed JSON as text: written, and parsed if its origin is unknown.

A form holds JSON values, and bytes as the data of tensors and arrays. In the text this data is
base64; or, for a file, ``[first, end]``, a range of the raw bytes that follow the text. Parsing is
linear in the text's length.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections import Counter
from typing import Any, NoReturn, TypeGuard

import numpy as np

MAX_JSON_DEPTH = 300
"""Maximum nesting of arrays and objects in a text."""
MAX_DIGITS = 400
"""Maximum number of digits in a number of a text."""

_CONTENT_FIELDS = {"dtype", "shape", "data"}
_TOO_MANY_DIGITS = re.compile(rb"(?<![0-9])[0-9]{%d}" % (MAX_DIGITS + 1))
_BRACKETS = b"[]{}"
_NO_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_OPENING = [ord("["), ord("{")]
_BLOCK = 1 << 16


def write(form: Any, raw: bytearray | None = None) -> str:
    """Write a form as JSON in ASCII.

    Args:
        form: result of :func:`~stateful_gpu_loader.state.typed_json.encode`.
        raw: buffer to which the data of tensors and arrays is appended; the text then contains
            its ranges. With None the data is base64 in the text.

    >>> import torch
    >>> from stateful_gpu_loader.state.typed_json import encode
    >>> write({"a": [1, 0.5, "é"]})
    '{"a": [1, 0.5, "\\\\u00e9"]}'
    >>> write(encode(torch.tensor([1.5])))
    '{"$tensor": {"dtype": "float32", "shape": [1], "data": "AADAPw=="}}'
    >>> raw = bytearray()
    >>> write(encode(torch.tensor([1.5])), raw)
    '{"$tensor": {"dtype": "float32", "shape": [1], "data": [0, 4]}}'
    """

    def place(data: bytes) -> list[int] | str:
        if raw is None or not data:
            return to_base64(data)
        raw.extend(data)
        return [len(raw) - len(data), len(raw)]

    return json.dumps(form, allow_nan=False, default=place)


def parse(text: bytes, raw: memoryview | None = None) -> Any:
    """Parse JSON in UTF-8, of unknown origin.

    Unlike Python's parser, it refuses duplicate keys and :func:`check_text`'s cases.

    Args:
        text: result of :func:`write`.
        raw: data of tensors and arrays, if it was written separately. It must be used in order,
            each byte once.

    Returns:
        A form for :func:`~stateful_gpu_loader.state.typed_json.decode`, whose parts are not checked
        yet.

    Raises:
        ValueError: the text is not JSON, does not fit ``raw``, or has duplicate keys, a literal
            that JSON lacks (``NaN``), more than :data:`MAX_DIGITS` digits in a number, or nesting
            beyond :data:`MAX_JSON_DEPTH`.

    >>> parse(b'{"a": [1, 0.5]}')
    {'a': [1, 0.5]}
    >>> parse(b'{"a": 1, "a": 2}')
    Traceback (most recent call last):
        ...
    ValueError: the key 'a' comes twice in one object
    """
    check_text(text)
    num_used = 0

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal num_used
        found = _checked_object(pairs)
        content = found.get("$tensor", found.get("$array"))
        if len(found) == 1 and is_content(content):
            if raw is not None and content["data"] != "":  # empty data is "" in both
                content["data"] = _next_range(content["data"], raw, num_used)
                num_used += len(content["data"])
            else:
                with contextlib.suppress(ValueError):  # decode() names the place
                    content["data"] = from_base64(content["data"])
        return found

    try:
        form = json.loads(
            text.decode(), object_pairs_hook=object_of, parse_constant=_refuse_constant
        )
    except RecursionError as error:
        raise ValueError("nesting too deep for what is left of the stack") from error
    if raw is not None and num_used < len(raw):
        raise ValueError(f"{len(raw) - num_used} raw bytes of no tensor or array")
    return form


def check_text(text: bytes) -> None:
    """Refuse JSON on which Python's own parser would use quadratic time or exhaust the C stack.

    Raises:
        ValueError: the text has a number of more than :data:`MAX_DIGITS` digits, or nesting beyond
            :data:`MAX_JSON_DEPTH`.
    """
    outside = _outside_strings(text)
    if (depth := _json_depth(outside)) > MAX_JSON_DEPTH:
        raise ValueError(f"nesting of depth {depth}, of which {MAX_JSON_DEPTH} is read")
    if _TOO_MANY_DIGITS.search(outside):
        raise ValueError(f"a number of more than {MAX_DIGITS} digits")


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def from_base64(text: Any) -> bytes:
    """Return the bytes of base64.

    Raises:
        ValueError: :func:`to_base64` never returns this text.
    """
    if not isinstance(text, str):
        raise ValueError(f"{brief(text)} instead of base64")
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError(f"no base64: {error}") from error
    # Unused bits would allow two texts for the same bytes.
    tail = len(data) % 3
    last = to_base64(data[-tail:]) if tail else ""
    if len(text) != (len(data) + 2) // 3 * 4 or not text.endswith(last):
        raise ValueError("base64 that is written otherwise than usual")
    return data


def is_content(content: Any) -> TypeGuard[dict[str, Any]]:
    """Whether an object has the fields of a tensor or array."""
    return isinstance(content, dict) and content.keys() == _CONTENT_FIELDS


def brief(value: Any) -> str:
    """Return at most about 80 characters of a value."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _outside_strings(text: bytes) -> bytes:
    """Return the text outside strings, if the text is JSON."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b'"'.join(text.split(b'"')[::2])


def _json_depth(outside: bytes) -> int:
    """Return the depth of nesting, or an upper bound."""
    brackets = outside.translate(None, _NO_BRACKETS)
    if len(brackets) <= MAX_JSON_DEPTH:
        return len(brackets)
    greatest = level = 0
    for first in range(0, len(brackets), _BLOCK):
        found = np.frombuffer(brackets[first : first + _BLOCK], np.uint8)
        levels = level + np.cumsum(np.where(np.isin(found, _OPENING), 1, -1))
        greatest, level = max(greatest, int(levels.max())), int(levels[-1])
    return greatest


def _checked_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {brief(twice)} comes twice in one object")
    return found


def _next_range(data: Any, raw: memoryview, num_used: int) -> bytes:
    first, end = data if type(data) is list and len(data) == 2 else (None, None)
    if type(first) is int and type(end) is int and num_used == first <= end <= len(raw):
        return bytes(raw[first:end])
    raise ValueError(f"{brief(data)} instead of the next range of {len(raw)} raw bytes")


def _refuse_constant(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is no JSON")

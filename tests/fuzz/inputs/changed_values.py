"""One change to nested values: dicts, lists and tuples, and their leaves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import torch

from tests.fuzz.inputs import changed_bytes

DEEP = "\U0010ffff deep"
"""Stands in JSON for a nesting that Python's own encoder would not write: :func:`to_json`."""

Path = tuple[Any, ...]


def changed(random: Random, value: Any, *, plain: bool = False) -> Any:
    """Return a copy of the value with one change.

    Args:
        value: dicts with any keys, lists, tuples and leaves.
        plain: whether to insert only JSON values.
    """
    path = random.choice(list(_paths(value, ())))
    return _at(value, path, lambda node: _changed_node(random, node, plain))


def to_json(value: Any) -> bytes:
    """Return the value as JSON, with NaN and surrogates as Python writes them.

    :data:`DEEP` becomes deep nesting.
    """
    return json.dumps(value).encode().replace(json.dumps(DEEP).encode(), b"[" * 5000 + b"]" * 5000)


def _paths(value: Any, path: Path) -> Iterator[Path]:
    yield path
    if len(path) < 12:
        items = value.items() if isinstance(value, dict) else ()
        items = enumerate(value) if isinstance(value, list | tuple) else items
        for key, inner in list(items)[:64]:
            yield from _paths(inner, (*path, key))


def _at(value: Any, path: Path, act: Callable[[Any], Any]) -> Any:
    """Return a copy with another node at the path; nodes beside the path are shared."""
    if not path:
        return act(value)
    inner = _at(value[path[0]], path[1:], act)
    if isinstance(value, dict):
        return {**value, path[0]: inner}
    items = [*value[: path[0]], inner, *value[path[0] + 1 :]]
    return items if isinstance(value, list) else tuple(items)


def _changed_node(random: Random, node: Any, plain: bool) -> Any:
    way = random.randrange(4)
    if way == 0:
        return _odd(random, plain)
    if way == 1 and random.random() < 0.2:
        return _wrapped(random, node)
    if isinstance(node, dict) and node:
        return _changed_dict(random, node, plain)
    if isinstance(node, list | tuple) and node:
        return _changed_items(random, node, plain)
    if isinstance(node, str):
        return _changed_text(random, node, plain)
    if isinstance(node, bool):
        return not node
    if isinstance(node, int):
        step = random.choice((1, -1, 7, 2**16, 2**31, -(2**31), 2**63, 2**64, -node, -2 * node))
        return node + step
    if isinstance(node, float):
        return random.choice((math.nan, math.inf, -math.inf, -node, 1e308, 5e-324, 1))
    if isinstance(node, bytes):
        return changed_bytes.changed(random, node)
    if isinstance(node, torch.Tensor) and not plain:
        return random.choice(
            (node.reshape(-1)[:-1], node.float(), node.reshape(-1, 1), node.to("meta"))
        )
    return _odd(random, plain)


def _changed_dict(random: Random, node: dict[Any, Any], plain: bool) -> dict[Any, Any]:
    key = random.choice(list(node))
    way = random.randrange(4)
    if way == 0:
        return {other: node[other] for other in node if other != key}
    if way == 1:
        name = _changed_text(random, str(key), plain)
        return {name if other == key else other: node[other] for other in node}
    if way == 2:
        other = random.choice(list(node))
        return {**node, key: node[other], other: node[key]}
    odd = ("", "\ud800", "$tuple", "x" * 1000)
    added: Any = random.choice(odd if plain else (*odd, None, 3, 2.5, (1, 2), b"k"))
    return {**node, added: _odd(random, plain)}


def _changed_items(random: Random, node: Any, plain: bool) -> Any:
    items, at = list(node), random.randrange(len(node))
    way = random.randrange(4)
    if way == 0:
        del items[at]
    elif way == 1:
        items[at:at] = [items[at]] * random.choice((1, 1, 2, 1000))
    elif way == 2:
        items[at:at] = [_odd(random, plain)]
    else:
        random.shuffle(items)
    return items if isinstance(node, list) else tuple(items)


def _changed_text(random: Random, text: str, plain: bool) -> str:
    try:
        inner = json.loads(text) if text[:1] in "[{" else None
    except (ValueError, RecursionError):
        inner = None
    if inner is not None and random.random() < 0.8:
        return to_json(changed(random, inner, plain=True)).decode()
    if random.random() < 0.1:
        return text + "\ud800"
    return changed_bytes.changed(random, text.encode(errors="surrogatepass")).decode(
        errors="surrogateescape"
    )


def _wrapped(random: Random, node: Any) -> Any:
    for _ in range(random.choice((1, 2, 70, 200))):
        node = [node] if random.random() < 0.5 else {"a": node}
    return node


def _odd(random: Random, plain: bool) -> Any:
    if plain or random.random() < 0.7:
        return random.choice(_PLAIN)
    return random.choice(_OTHERS)()


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def _circle() -> Any:
    circle: dict[str, Any] = {}
    circle["a"] = circle
    return circle


_PLAIN = (
    None,
    True,
    False,
    -1,
    0,
    1,
    2**31,
    2**32,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63) - 1,
    10**400,
    0.5,
    -0.0,
    1e308,
    math.nan,
    math.inf,
    "",
    "0",
    "\ud800",
    "\0",
    "x" * 5000,
    "9" * 5000,
    "[" * 5000,
    DEEP,
    [],
    [[]],
    {},
    {"": None},
    {"$dict": []},
    [None] * 1000,
)
_OTHERS: tuple[Callable[[], Any], ...] = (
    lambda: (),
    lambda: b"\xff",
    lambda: 1j,
    set,
    lambda: range(3),
    lambda: np.int64(3),
    lambda: np.float32("nan"),
    lambda: np.array([1, 2]),
    lambda: np.array(["a", None], dtype=object),
    lambda: torch.tensor([1.0, 2.0]),
    lambda: torch.tensor(3),
    lambda: torch.empty(2, device="meta"),
    lambda: int,
    lambda: _nested(5000),
    _circle,
)

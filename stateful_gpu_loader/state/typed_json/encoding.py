"""From values to JSON values, each type in its form."""

from __future__ import annotations

import math
import re
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from stateful_gpu_loader.state.typed_json import bounded
from stateful_gpu_loader.state.typed_json.arrays import array_to_json, tensor_to_json, to_base64
from stateful_gpu_loader.state.typed_json.places import Misfit, checked, each

MAX_DEPTH = 64
"""Greatest nesting of containers in a value; in JSON, each may be up to four levels."""
MAX_INT_BITS = 1024
"""Of an int, without its sign. (The greatest in use are the 128 of a PCG64 generator.)"""
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
DTYPES = {str(v).removeprefix("torch."): v for v in vars(torch).values() if type(v) is torch.dtype}
METADATA = "_metadata"
"""The attribute of the OrderedDict that ``torch.nn.Module.state_dict`` returns."""

_MARK = "$"
_SURROGATE = re.compile("[\ud800-\udfff]")
_KEYS = (type(None), bool, int, float, str, bytes, tuple, frozenset, torch.Size, torch.dtype)
_REMEDIES = {
    "defaultdict": "save dict(...) of it",
    "deque": "save list(...) of it",
    "bytearray": "save bytes(...) of it",
    "str_": "save str(...) of it",
    "bytes_": "save bytes(...) of it",
    "Parameter": "save its detach()",
    "Generator": "save its state, or register the generator by itself",
}

_Within = tuple[int, ...]
"""The ids of the containers around a value."""


def encode(value: Any) -> Any:
    """A value as what ``json`` writes.

    Every tensor and array is a copy of its own: on the CPU, contiguous, with none of its sharing.
    An OrderedDict keeps the ``_metadata`` of a module's state.

    Raises:
        TypeError: a part of the value has no form; the error names its place. Among these are
            subclasses, ints of more than :data:`MAX_INT_BITS` bits, and what holds itself or is
            nested deeper than :data:`MAX_DEPTH`.

    >>> encode({"lr": 0.1, "betas": (0.9, 0.999), "best": float("inf")})
    {'lr': 0.1, 'betas': {'$tuple': [0.9, 0.999]}, 'best': {'$float': 'inf'}}
    >>> encode({"a": [0, 1j]})
    Traceback (most recent call last):
        ...
    TypeError: state['a'][1] is a complex, which has no form in JSON. Remedy: save plain values, \
arrays and tensors
    """
    try:
        return _encode(value, ())
    except Misfit as misfit:
        raise TypeError(f"{misfit.place()} is {misfit.reason}") from None


def stays_itself(value: dict[Any, Any]) -> bool:
    """Whether JSON can hold a dict as it is, and nobody takes it for a typed form."""
    if not all(type(key) is str and is_text(key) for key in value):
        return False
    return len(value) != 1 or not next(iter(value)).startswith(_MARK)


def is_text(value: str) -> bool:
    """Without surrogates, of which JSON would join two to one character."""
    return value.isascii() or not _SURROGATE.search(value)


def check_int(value: int) -> int:
    """Raises: Misfit: it is too great."""
    if value.bit_length() > MAX_INT_BITS:
        raise Misfit(f"an int of {value.bit_length()} bits. Remedy: save it as bytes")
    return value


def check_key(value: Any) -> None:
    """Raises: Misfit: it does not compare by value (a tensor as a key would be lost)."""
    is_number = isinstance(value, np.number | np.bool_) and value.dtype.kind not in "mM"
    if type(value) not in _KEYS and not is_number:
        raise Misfit(f"a key of type {type(value).__name__}. Remedy: use strings or ints")
    if isinstance(value, tuple | frozenset):
        for item in value:
            check_key(item)


def float_form(value: float) -> Any:
    """A finite float is itself; of others every bit is kept."""
    if math.isfinite(value):
        return value
    bits = struct.pack(">d", value)
    for name, known in NON_FINITE.items():
        if bits == struct.pack(">d", known):
            return {"$float": name}
    return {"$float": bits.hex()}


def _encode(value: Any, within: _Within) -> Any:
    kind = type(value)
    if (leaf := _LEAVES.get(kind)) is not None:
        return leaf(value)
    if (container := _CONTAINERS.get(kind)) is not None:
        if id(value) in within:
            raise Misfit("the same object as what holds it. Remedy: save values without circles")
        if len(within) == MAX_DEPTH:
            raise Misfit(f"nested deeper than {MAX_DEPTH}. Remedy: save a flatter value")
        return container(value, (*within, id(value)))
    if isinstance(value, np.generic) and np.asarray(value).dtype.kind not in "SU":
        return {"$scalar": checked(array_to_json, np.asarray(value))}
    name = kind.__name__
    remedy = _REMEDIES.get(name, "save plain values, arrays and tensors")
    raise Misfit(f"a {name}, which has no form in JSON. Remedy: {remedy}")


def _text(value: str) -> Any:
    if is_text(value):
        return value
    return {"$str": to_base64(value.encode("utf-8", "surrogatepass"))}


def _list(value: Any, within: _Within) -> list[Any]:
    return each(_encode, value, within)


def _dict(value: dict[Any, Any], within: _Within) -> dict[str, Any]:
    if stays_itself(value):
        return dict(zip(value, each(_encode, value.values(), within, value), strict=True))
    return {"$dict": _pairs(value, within)}


def _ordered(value: OrderedDict[Any, Any], within: _Within) -> dict[str, Any]:
    attributes = vars(value)
    if attributes.keys() - {METADATA}:
        raise Misfit(f"an OrderedDict with attributes {sorted(attributes)}. Remedy: delete them")
    if not attributes:
        return {"$ordered": _pairs(value, within)}
    metadata = each(_encode, attributes.values(), within, attributes)
    return {"$state_dict": [_pairs(value, within), *metadata]}


def _pairs(value: dict[Any, Any], within: _Within) -> list[list[Any]]:
    keys = each(_key, value, within, value)
    values = each(_encode, value.values(), within, value)
    return [list(pair) for pair in zip(keys, values, strict=True)]


def _set(value: Any, within: _Within) -> list[Any]:
    # Sorted, because the order of a set of strings differs from process to process.
    return sorted(each(_key, value, within), key=bounded.write)


def _key(value: Any, within: _Within) -> Any:
    encoded = _encode(value, within)
    check_key(value)
    return encoded


_LEAVES: dict[type, Callable[[Any], Any]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    int: check_int,
    float: float_form,
    str: _text,
    bytes: lambda value: {"$bytes": to_base64(value)},
    torch.Size: lambda value: {"$size": list(value)},
    torch.dtype: lambda value: {"$dtype": str(value).removeprefix("torch.")},
    torch.Tensor: lambda value: {"$tensor": checked(tensor_to_json, value)},
    np.ndarray: lambda value: {"$array": checked(array_to_json, value)},
}
_CONTAINERS: dict[type, Callable[[Any, _Within], Any]] = {
    list: _list,
    tuple: lambda value, within: {"$tuple": _list(value, within)},
    set: lambda value, within: {"$set": _set(value, within)},
    frozenset: lambda value, within: {"$frozenset": _set(value, within)},
    dict: _dict,
    OrderedDict: _ordered,
    Counter: lambda value, within: {"$counter": _pairs(value, within)},
}

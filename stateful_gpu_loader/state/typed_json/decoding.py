"""From JSON values back to values; whatever encoding never gives is refused."""

from __future__ import annotations

import math
import re
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch

from stateful_gpu_loader.state.typed_json import bounded
from stateful_gpu_loader.state.typed_json.arrays import (
    array_from_json,
    from_base64,
    tensor_from_json,
)
from stateful_gpu_loader.state.typed_json.encoding import (
    DTYPES,
    MAX_DEPTH,
    METADATA,
    NON_FINITE,
    check_int,
    check_key,
    float_form,
    is_text,
    stays_itself,
)
from stateful_gpu_loader.state.typed_json.places import Misfit, brief, checked, each

_BITS = re.compile("[0-9a-f]{16}")


def decode(value: Any) -> Any:
    """Read back :func:`encode`; a fresh value.

    Raises:
        ValueError: ``encode`` never gives this; the error names its place.

    >>> decode({"$tuple": [1, {"$bytes": "AQI="}]})
    (1, b'\\x01\\x02')
    >>> decode({"a": {"$pickle": "gASVC..."}})
    Traceback (most recent call last):
        ...
    ValueError: state['a'] is no value: '$pickle' is no type
    """
    try:
        return _decode(value, 0)
    except Misfit as misfit:
        raise ValueError(f"{misfit.place()} is no value: {misfit.reason}") from None


def _decode(value: Any, depth: int) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return check_int(value)
    if (kind is float and math.isfinite(value)) or (kind is str and is_text(value)):
        return value
    if kind is list:
        return each(_decode, value, _deeper(depth))
    if kind is not dict:
        raise Misfit(f"{brief(value)}, a {kind.__name__} that is never written")
    if stays_itself(value):
        values = each(_decode, value.values(), _deeper(depth), value)
        return dict(zip(value, values, strict=True))
    name, content = next(iter(value.items()))
    if len(value) == 1 and name in _LEAVES:
        return checked(_LEAVES[name], content)
    if len(value) == 1 and name in _CONTAINERS:
        return _CONTAINERS[name](content, _deeper(depth))
    raise Misfit(f"{brief(name)} is no type")


def _deeper(depth: int) -> int:
    if depth == MAX_DEPTH:
        raise Misfit(f"nested deeper than {MAX_DEPTH}")
    return depth + 1


def _float(value: Any) -> float:
    if not isinstance(value, str):
        raise ValueError(f"{brief(value)} is no float")
    # Anew, because a set tells one NaN from another by what object it is.
    number = float(value) if value in NON_FINITE else None
    if _BITS.fullmatch(value):
        (number,) = struct.unpack(">d", bytes.fromhex(value))
    if number is None or float_form(number) != {"$float": value}:
        raise ValueError(f"{brief(value)} is no float")
    return number


def _str(value: Any) -> str:
    text = from_base64(value).decode("utf-8", "surrogatepass")
    if is_text(text):
        raise ValueError("a str that needs no $str")
    return text


def _size(value: Any) -> torch.Size:
    if not isinstance(value, list) or not all(
        type(length) is int and -(1 << 63) <= length < 1 << 63 for length in value
    ):
        raise ValueError(f"{brief(value)} is no torch.Size")
    return torch.Size(value)


def _dtype(value: Any) -> torch.dtype:
    dtype = DTYPES.get(value) if isinstance(value, str) else None
    if dtype is None:
        raise ValueError(f"{brief(value)} is no dtype of torch {torch.__version__}")
    return dtype


def _scalar(value: Any) -> np.generic:
    array = array_from_json(value)
    if array.ndim or array.dtype.kind in "SU" or not array.dtype.isnative:
        raise ValueError("no scalar")
    return cast("np.generic", array[()])


def _dict(value: Any, depth: int) -> dict[Any, Any]:
    found = dict(_pairs(value, depth))
    if len(found) < len(value) or stays_itself(found):
        raise Misfit("a dict with equal keys, or that needs no $dict")
    return found


def _ordered(value: Any, depth: int) -> OrderedDict[Any, Any]:
    return OrderedDict(_distinct(value, depth))


def _counter(value: Any, depth: int) -> Counter[Any]:
    # Not Counter(pairs), which would count the pairs.
    return Counter(dict(_distinct(value, depth)))


def _distinct(value: Any, depth: int) -> list[tuple[Any, Any]]:
    pairs = _pairs(value, depth)
    if len(dict(pairs)) < len(pairs):
        raise Misfit("equal keys")
    return pairs


def _state_dict(value: Any, depth: int) -> OrderedDict[Any, Any]:
    if not isinstance(value, list) or len(value) != 2:
        raise Misfit("no state of a module")
    found = _ordered(value[0], depth)
    vars(found)[METADATA] = _decode(value[1], depth)
    return found


def _pairs(value: Any, depth: int) -> list[tuple[Any, Any]]:
    if not isinstance(value, list) or not all(type(v) is list and len(v) == 2 for v in value):
        raise Misfit("no list of pairs")
    keys = each(_key, (pair[0] for pair in value), depth)
    values = each(_decode, (pair[1] for pair in value), depth, keys)
    return list(zip(keys, values, strict=True))


def _set(value: Any, depth: int) -> set[Any]:
    found = set(_items(_key, value, depth))
    # From the same order as was written, so that equal values have one text.
    if len(found) < len(value) or sorted(value, key=bounded.write) != value:
        raise Misfit("a set with equal items, or not in order")
    return found


def _key(value: Any, depth: int) -> Any:
    key = _decode(value, depth)
    check_key(key)
    return key


def _items(act: Callable[[Any, int], Any], value: Any, depth: int) -> list[Any]:
    if not isinstance(value, list):
        raise Misfit(f"{brief(value)} instead of a list")
    return each(act, value, depth)


_LEAVES: dict[str, Callable[[Any], Any]] = {
    "$float": _float,
    "$str": _str,
    "$bytes": from_base64,
    "$size": _size,
    "$dtype": _dtype,
    "$tensor": tensor_from_json,
    "$array": array_from_json,
    "$scalar": _scalar,
}
_CONTAINERS: dict[str, Callable[[Any, int], Any]] = {
    "$tuple": lambda value, depth: tuple(_items(_decode, value, depth)),
    "$set": _set,
    "$frozenset": lambda value, depth: frozenset(_set(value, depth)),
    "$dict": _dict,
    "$ordered": _ordered,
    "$state_dict": _state_dict,
    "$counter": _counter,
}

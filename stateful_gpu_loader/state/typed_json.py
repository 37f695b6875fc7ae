"""Values of torch checkpoints as readable JSON, and back, to the last bit.

None, bool, int, finite float, str, list and dict with str keys stay as they are. Any other value is
an object with one key that begins with ``$``:

- ``$float``: "nan", "inf", "-inf", or 16 hexadecimal digits of another NaN
- ``$str``: base64 of UTF-8 with surrogates, for a str that contains any
- ``$bytes``: base64
- ``$tuple``: [items]
- ``$set``: [items], in the order of their JSON text; ``$frozenset`` likewise
- ``$dict``: [[key, value], ...], for a dict that would be misread otherwise
- ``$ordered``: [[key, value], ...]; ``$state_dict``: [items, metadata] for a module's state
- ``$counter``: [[key, value], ...]
- ``$size``: [lengths], a torch.Size
- ``$dtype``: "float32"
- ``$tensor``: {"dtype": ..., "shape": ..., "data": ...}; ``$array`` and ``$scalar`` for NumPy

``data`` is base64; or, for tensors and arrays in a file, ``[first, end]``, a range of the raw bytes
that follow the text.

:func:`encode` copies a value into a form, and :func:`decode` restores it. ``json_text.py`` writes
and parses a form's text. No form names a class or a function, so reading executes nothing.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.state.json_text import (
    brief,
    from_base64,
    is_content,
    parse,
    to_base64,
    write,
)
from stateful_gpu_loader.state.tensors import bytes_of, tensor_of

__all__ = ["TENSOR_DTYPES", "decode", "encode", "is_text", "parse", "write"]

MAX_DEPTH = 64
"""Maximum nesting of containers in a value; a container is up to four levels of JSON."""
MAX_INT_BITS = 1024
"""Maximum length of an int without its sign."""

_TENSOR_NAMES = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64",
    "float16 bfloat16 float32 float64 complex32 complex64 complex128",
    "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu",
)
TENSOR_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for names in _TENSOR_NAMES for name in names.split(" ")
}
"""Supported dtypes, by name."""

_DTYPES = {str(v).removeprefix("torch."): v for v in vars(torch).values() if type(v) is torch.dtype}
# Not supported: object arrays, records, longdouble, whose bytes depend on the machine, and strings
# of length 0, which have no bytes to count.
_ARRAY_DTYPE = re.compile(
    r"\|b1|\|[iu]1|[<>][iu][248]|[<>]f[248]|[<>]c(8|16)"
    r"|[<>][mM]8(\[[0-9]{0,6}[a-zA-Z]{1,2}\])?|\|S[1-9][0-9]{0,8}|[<>]U[1-9][0-9]{0,8}"
)
_MAX_DIMS = 64
_NUM_CODE_POINTS = 0x110000

_MARK = "$"
_METADATA = "_metadata"
"""Attribute of the OrderedDict that ``torch.nn.Module.state_dict`` returns."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_FLOAT_BITS = re.compile("[0-9a-f]{16}")
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
"""Ids of the containers around a value."""
_Inner = TypeVar("_Inner")


def encode(value: Any) -> Any:
    """Copy a value into its form.

    Copied tensors and arrays are on the CPU, contiguous, and share no memory. An OrderedDict keeps
    the ``_metadata`` of a module's state.

    Returns:
        Input for :func:`write`: JSON values, and bytes as the data of tensors and arrays.

    Raises:
        TypeError: a part of the value has no form; the error names its place. Examples are
            subclasses, ints of more than :data:`MAX_INT_BITS` bits, and containers that contain
            themselves or are nested deeper than :data:`MAX_DEPTH`.

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
    except _Misfit as misfit:
        raise TypeError(f"{misfit.place()} is {misfit.reason}") from None


def decode(form: Any) -> Any:
    """Restore the value of a form, as a new object at each call.

    Raises:
        ValueError: ``encode`` never returns this form; the error names the place.

    >>> decode({"$tuple": [1, {"$bytes": "AQI="}]})
    (1, b'\\x01\\x02')
    >>> decode({"a": {"$pickle": "gASVC..."}})
    Traceback (most recent call last):
        ...
    ValueError: state['a'] is no value: '$pickle' is no type
    """
    try:
        return _decode(form, 0)
    except _Misfit as misfit:
        raise ValueError(f"{misfit.place()} is no value: {misfit.reason}") from None


def is_text(value: str) -> bool:
    """Whether a str has no surrogates, which JSON might join."""
    return value.isascii() or not _SURROGATE.search(value)


# Values and forms -------------------------------------------------------------------------------


def _encode(value: Any, within: _Within) -> Any:
    kind = type(value)
    if (leaf := _ENCODED_LEAVES.get(kind)) is not None:
        return leaf(value)
    if (container := _ENCODED_CONTAINERS.get(kind)) is not None:
        if id(value) in within:
            raise _Misfit("the same object as what holds it. Remedy: save values without circles")
        if len(within) == MAX_DEPTH:
            raise _Misfit(f"nested deeper than {MAX_DEPTH}. Remedy: save a flatter value")
        return container(value, (*within, id(value)))
    if isinstance(value, np.generic) and np.asarray(value).dtype.kind not in "SU":
        content = _array_content(np.asarray(value))
        return {"$scalar": {**content, "data": to_base64(content["data"])}}
    name = kind.__name__
    remedy = _REMEDIES.get(name, "save plain values, arrays and tensors")
    raise _Misfit(f"a {name}, which has no form in JSON. Remedy: {remedy}")


def _decode(form: Any, depth: int) -> Any:
    kind = type(form)
    if form is None or kind is bool:
        return form
    if kind is int:
        return _checked_int(form)
    if (kind is float and math.isfinite(form)) or (kind is str and is_text(form)):
        return form
    if kind is list:
        return _each(_decode, form, _deeper(depth))
    if kind is not dict:
        raise _Misfit(f"{brief(form)}, a {kind.__name__} that is never written")
    if _stays_itself(form):
        values = _each(_decode, form.values(), _deeper(depth), form)
        return dict(zip(form, values, strict=True))
    name, content = next(iter(form.items()))
    if len(form) == 1 and name in _DECODED_LEAVES:
        return _DECODED_LEAVES[name](content)
    if len(form) == 1 and name in _DECODED_CONTAINERS:
        return _DECODED_CONTAINERS[name](content, _deeper(depth))
    raise _Misfit(f"{brief(name)} is no type")


def _deeper(depth: int) -> int:
    if depth == MAX_DEPTH:
        raise _Misfit(f"nested deeper than {MAX_DEPTH}")
    return depth + 1


class _Misfit(Exception):
    """Fault in a part of a value, and the keys that lead to the part, innermost first.

    The keys are collected while the exception passes through the containers.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.keys: list[Any] = []

    def place(self) -> str:
        """Return the place in Python's notation: ``state['a'][3]``."""
        return "state" + "".join(f"[{brief(key)}]" for key in reversed(self.keys))


def _each(
    act: Callable[[Any, _Inner], Any],
    values: Iterable[Any],
    inner: _Inner,
    keys: Iterable[Any] | None = None,
) -> list[Any]:
    """Return ``act(value, inner)`` for all values; a misfit gets the value's key or number."""
    done: list[Any] = []
    try:
        for value in values:
            done.append(act(value, inner))
    except _Misfit as misfit:
        misfit.keys.append(len(done) if keys is None else list(keys)[len(done)])
        raise
    return done


# Numbers and strings ----------------------------------------------------------------------------


def _checked_int(value: int) -> int:
    if value.bit_length() > MAX_INT_BITS:
        raise _Misfit(f"an int of {value.bit_length()} bits. Remedy: save it as bytes")
    return value


def _float_form(value: float) -> Any:
    """Return a finite float itself, or every bit of another."""
    if math.isfinite(value):
        return value
    bits = struct.pack(">d", value)
    for name, known in _NON_FINITE.items():
        if bits == struct.pack(">d", known):
            return {"$float": name}
    return {"$float": bits.hex()}


def _float(content: Any) -> float:
    if not isinstance(content, str):
        raise _Misfit(f"{brief(content)} is no float")
    # A new object, because a set distinguishes NaNs by identity.
    number = float(content) if content in _NON_FINITE else None
    if _FLOAT_BITS.fullmatch(content):
        (number,) = struct.unpack(">d", bytes.fromhex(content))
    if number is None or _float_form(number) != {"$float": content}:
        raise _Misfit(f"{brief(content)} is no float")
    return number


def _str_form(value: str) -> Any:
    if is_text(value):
        return value
    return {"$str": to_base64(value.encode("utf-8", "surrogatepass"))}


def _str(content: Any) -> str:
    try:
        text = _bytes(content).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise _Misfit(str(error)) from error
    if is_text(text):
        raise _Misfit("a str that needs no $str")
    return text


def _bytes(content: Any) -> bytes:
    try:
        return from_base64(content)
    except ValueError as error:
        raise _Misfit(str(error)) from error


def _size(content: Any) -> torch.Size:
    if not isinstance(content, list) or not all(
        type(length) is int and -(1 << 63) <= length < 1 << 63 for length in content
    ):
        raise _Misfit(f"{brief(content)} is no torch.Size")
    return torch.Size(content)


def _dtype(content: Any) -> torch.dtype:
    dtype = _DTYPES.get(content) if isinstance(content, str) else None
    if dtype is None:
        raise _Misfit(f"{brief(content)} is no dtype of torch {torch.__version__}")
    return dtype


# Tensors and arrays -----------------------------------------------------------------------------


def _tensor_content(tensor: torch.Tensor) -> dict[str, Any]:
    if tensor.requires_grad:
        raise _Misfit("a tensor that requires grad. Remedy: detach() it")
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise _Misfit("a sparse or nested tensor. Remedy: save its parts")
    if tensor.is_meta:
        raise _Misfit("a tensor on the meta device. Remedy: give it values")
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in TENSOR_DTYPES:
        raise _Misfit(f"a tensor of {tensor.dtype}. Remedy: save it in another dtype")
    if tensor.ndim > _MAX_DIMS:
        raise _Misfit(f"a tensor of {tensor.ndim} dimensions. Remedy: save at most {_MAX_DIMS}")
    data = bytes_of(tensor).tobytes()
    if tensor.dtype == torch.bool and not _are_bools(data):
        raise _Misfit("a bool tensor with other bytes than 0 and 1. Remedy: compute it anew")
    return {"dtype": name, "shape": list(tensor.shape), "data": data}


def _tensor(content: Any) -> torch.Tensor:
    """Return a tensor on the CPU, contiguous."""
    name, shape = _header(content)
    if name not in TENSOR_DTYPES:
        raise _Misfit(f"{brief(name)} is no dtype of torch {torch.__version__}")
    dtype = TENSOR_DTYPES[name]
    data = _data(content, math.prod(shape) * dtype.itemsize)
    if dtype == torch.bool and not _are_bools(data):
        raise _Misfit("bools with other bytes than 0 and 1")
    try:
        return tensor_of(bytearray(data), dtype, shape)
    except (RuntimeError, TypeError) as error:
        raise _Misfit(f"no tensor has the shape {brief(shape)}") from error


def _array_content(array: npt.NDArray[Any]) -> dict[str, Any]:
    if not _ARRAY_DTYPE.fullmatch(array.dtype.str):
        raise _Misfit(f"an array of {array.dtype}. Remedy: save its fields, or a list")
    data = array.tobytes()
    if not _fits(data, array.dtype):
        raise _Misfit(
            f"an array of {array.dtype} with bytes of no such value. Remedy: compute it anew"
        )
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}


def _array(content: Any) -> npt.NDArray[Any]:
    name, shape = _header(content)
    try:
        dtype = np.dtype(name) if _ARRAY_DTYPE.fullmatch(name) else None
    except (TypeError, ValueError):
        dtype = None
    if dtype is None or dtype.str != name:
        raise _Misfit(f"{brief(name)} is no dtype of an array")
    data = _data(content, math.prod(shape) * dtype.itemsize)
    if not _fits(data, dtype):
        raise _Misfit(f"bytes that are no {name}")
    try:
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, bytearray(data))
    except ValueError as error:
        raise _Misfit(f"no array has the shape {brief(shape)}") from error
    return array


def _scalar(content: Any) -> np.generic:
    array = _array(content)
    if array.ndim or array.dtype.kind in "SU" or not array.dtype.isnative:
        raise _Misfit("no scalar")
    return cast("np.generic", array[()])


def _header(content: Any) -> tuple[str, tuple[int, ...]]:
    if not is_content(content):
        raise _Misfit("an object of other keys than dtype, shape and data")
    dtype, shape = content["dtype"], content["shape"]
    if not isinstance(dtype, str):
        raise _Misfit(f"{brief(dtype)} instead of a dtype")
    lengths = shape if isinstance(shape, list) and len(shape) <= _MAX_DIMS else [None]
    if not all(type(length) is int and 0 <= length < 1 << 63 for length in lengths):
        raise _Misfit(f"{brief(shape)} instead of a shape")
    return dtype, tuple(lengths)


def _data(content: dict[str, Any], num_bytes: int) -> bytes:
    data = content["data"]
    data = data if isinstance(data, bytes) else _bytes(data)
    if len(data) != num_bytes:
        raise _Misfit(f"{len(data)} bytes instead of {num_bytes}")
    return data


def _fits(data: bytes, dtype: np.dtype[Any]) -> bool:
    """Whether the bytes are valid values: a bool is 0 or 1, a character a code point."""
    if dtype.kind == "b":
        return _are_bools(data)
    if dtype.kind != "U":
        return True
    points = np.frombuffer(data, f"{dtype.str[0]}u4")
    return int(points.max(initial=0)) < _NUM_CODE_POINTS


def _are_bools(data: bytes) -> bool:
    return int(np.frombuffer(data, np.uint8).max(initial=0)) <= 1


# Containers -------------------------------------------------------------------------------------


def _stays_itself(value: dict[Any, Any]) -> bool:
    """Whether JSON can hold a dict unchanged, unlike a typed form."""
    if not all(type(key) is str and is_text(key) for key in value):
        return False
    return len(value) != 1 or not next(iter(value)).startswith(_MARK)


def _check_key(value: Any) -> None:
    """Raise if a key, such as a tensor, does not compare by value."""
    is_number = isinstance(value, np.number | np.bool_) and value.dtype.kind not in "mM"
    if type(value) not in _KEYS and not is_number:
        raise _Misfit(f"a key of type {type(value).__name__}. Remedy: use strings or ints")
    if isinstance(value, tuple | frozenset):
        for item in value:
            _check_key(item)


def _list_form(value: Any, within: _Within) -> list[Any]:
    return _each(_encode, value, within)


def _dict_form(value: dict[Any, Any], within: _Within) -> dict[str, Any]:
    if _stays_itself(value):
        return dict(zip(value, _each(_encode, value.values(), within, value), strict=True))
    return {"$dict": _pairs_form(value, within)}


def _ordered_form(value: OrderedDict[Any, Any], within: _Within) -> dict[str, Any]:
    attributes = vars(value)
    if attributes.keys() - {_METADATA}:
        raise _Misfit(f"an OrderedDict with attributes {sorted(attributes)}. Remedy: delete them")
    if not attributes:
        return {"$ordered": _pairs_form(value, within)}
    metadata = _each(_encode, attributes.values(), within, attributes)
    return {"$state_dict": [_pairs_form(value, within), *metadata]}


def _pairs_form(value: dict[Any, Any], within: _Within) -> list[list[Any]]:
    keys = _each(_key_form, value, within, value)
    values = _each(_encode, value.values(), within, value)
    return [list(pair) for pair in zip(keys, values, strict=True)]


def _set_form(value: Any, within: _Within) -> list[Any]:
    # Sort, because a set's order differs between processes.
    return sorted(_each(_key_form, value, within), key=write)


def _key_form(value: Any, within: _Within) -> Any:
    form = _encode(value, within)
    _check_key(value)
    return form


def _dict(content: Any, depth: int) -> dict[Any, Any]:
    found = _pairs(content, depth)
    if _stays_itself(found):
        raise _Misfit("a dict that needs no $dict")
    return found


def _state_dict(content: Any, depth: int) -> OrderedDict[Any, Any]:
    if not isinstance(content, list) or len(content) != 2:
        raise _Misfit("no state of a module")
    found = OrderedDict(_pairs(content[0], depth))
    vars(found)[_METADATA] = _decode(content[1], depth)
    return found


def _pairs(content: Any, depth: int) -> dict[Any, Any]:
    if not isinstance(content, list) or not all(type(v) is list and len(v) == 2 for v in content):
        raise _Misfit("no list of pairs")
    keys = _each(_key, (pair[0] for pair in content), depth)
    values = _each(_decode, (pair[1] for pair in content), depth, keys)
    found = dict(zip(keys, values, strict=True))
    if len(found) < len(keys):
        raise _Misfit("equal keys")
    return found


def _set(content: Any, depth: int) -> set[Any]:
    found = set(_items(_key, content, depth))
    # Equal values have one text.
    if len(found) < len(content) or sorted(content, key=write) != content:
        raise _Misfit("a set with equal items, or not in order")
    return found


def _key(form: Any, depth: int) -> Any:
    key = _decode(form, depth)
    _check_key(key)
    return key


def _items(act: Callable[[Any, int], Any], content: Any, depth: int) -> list[Any]:
    if not isinstance(content, list):
        raise _Misfit(f"{brief(content)} instead of a list")
    return _each(act, content, depth)


_ENCODED_LEAVES: dict[type, Callable[[Any], Any]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    int: _checked_int,
    float: _float_form,
    str: _str_form,
    bytes: lambda value: {"$bytes": to_base64(value)},
    torch.Size: lambda value: {"$size": list(value)},
    torch.dtype: lambda value: {"$dtype": str(value).removeprefix("torch.")},
    torch.Tensor: lambda value: {"$tensor": _tensor_content(value)},
    np.ndarray: lambda value: {"$array": _array_content(value)},
}
_DECODED_LEAVES: dict[str, Callable[[Any], Any]] = {
    "$float": _float,
    "$str": _str,
    "$bytes": _bytes,
    "$size": _size,
    "$dtype": _dtype,
    "$tensor": _tensor,
    "$array": _array,
    "$scalar": _scalar,
}
_ENCODED_CONTAINERS: dict[type, Callable[[Any, _Within], Any]] = {
    list: _list_form,
    tuple: lambda value, within: {"$tuple": _list_form(value, within)},
    set: lambda value, within: {"$set": _set_form(value, within)},
    frozenset: lambda value, within: {"$frozenset": _set_form(value, within)},
    dict: _dict_form,
    OrderedDict: _ordered_form,
    Counter: lambda value, within: {"$counter": _pairs_form(value, within)},
}
_DECODED_CONTAINERS: dict[str, Callable[[Any, int], Any]] = {
    "$tuple": lambda content, depth: tuple(_items(_decode, content, depth)),
    "$set": _set,
    "$frozenset": lambda content, depth: frozenset(_set(content, depth)),
    "$dict": _dict,
    "$ordered": lambda content, depth: OrderedDict(_pairs(content, depth)),
    "$state_dict": _state_dict,
    "$counter": lambda content, depth: Counter(_pairs(content, depth)),
}

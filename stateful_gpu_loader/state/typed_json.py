"""Values of torch checkpoints as JSON that a person can read, and back.

None, bool, int, finite float, str, list and dict with str keys stay themselves. Any other value is
an object with one key that begins with ``$``:

    $float        "nan", "inf", "-inf"; in older texts 16 hexadecimal digits of another NaN
    $str          base64 of UTF-8 with surrogates, of a str that has any
    $bytes        base64
    $tuple        [items]
    $set          [items], in the order of their JSON text; $frozenset likewise
    $dict         [[key, value], ...], of a dict that would be misread as it is
    $ordered      [[key, value], ...]; $state_dict [items, metadata] of a module's state
    $counter      [[key, value], ...]
    $size         [lengths], a torch.Size
    $dtype        "float32"
    $tensor       {"dtype": ..., "shape": ..., "data": ...}; $array and $scalar of NumPy

``data`` is base64, so that the text is all there is; or, of tensors and arrays in a file,
``[first, end]``, a range of the raw bytes that follow the text.

:func:`encode` copies a value into a form, which :func:`write` makes text; :func:`parse` reads text
of unknown origin, and :func:`decode` makes the value. No form names a class or a function, so that
reading executes nothing, and nothing is allocated that the text does not contain.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.state.tensors import bytes_of, tensor_of

MAX_DEPTH = 64
"""Greatest nesting of containers in a value; in JSON, each may be up to four levels."""
MAX_INT_BITS = 1024
"""Longest int, without its sign. (The longest in use are the 128 bits of a PCG64 generator.)"""

_TENSOR_NAMES = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64",
    "float16 bfloat16 float32 float64 complex32 complex64 complex128",
    "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu",
)
TENSOR_DTYPES: list[torch.dtype] = [
    getattr(torch, name) for names in _TENSOR_NAMES for name in names.split(" ")
]
"""Dtypes of the tensors that have a form."""

# Neither object arrays, which hold pointers, nor records, nor longdouble, whose bytes depend on the
# machine, nor strings of length 0, whose number cannot be told from their bytes.
_ARRAY_DTYPE = re.compile(
    r"\|b1|\|[iu]1|[<>][iu][248]|[<>]f[248]|[<>]c(8|16)"
    r"|[<>][mM]8(\[[0-9]{0,6}[a-zA-Z]{1,2}\])?|\|S[1-9][0-9]{0,8}|[<>]U[1-9][0-9]{0,8}"
)
_MAX_DIMS = 64

_MARK = "$"
_METADATA = "_metadata"
"""The attribute of the OrderedDict that ``torch.nn.Module.state_dict`` returns."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_NON_FINITE = ("nan", "inf", "-inf")
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


def encode(value: Any) -> Any:
    """Copy a value into its form.

    Of the copied tensors and arrays, each is on the CPU, contiguous, and shares no memory with
    another. An OrderedDict keeps the ``_metadata`` of a module's state.

    Returns:
        What :func:`write` takes: JSON values, and bytes as the data of tensors and arrays.

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
        return _encode(value, 0)
    except _Misfit as misfit:
        raise TypeError(f"{misfit.place()} is {misfit.reason}") from None


def decode(form: Any) -> Any:
    """Make the value of a form, a fresh one at each call.

    Raises:
        ValueError: the form has no value; the error names the place.

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


def write(form: Any, raw: bytearray | None = None) -> str:
    """Write a form as JSON in ASCII.

    Args:
        form: what :func:`encode` returned.
        raw: the data of tensors and arrays is appended to it, and the text says where it lies;
            with None it is base64 in the text.

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
            return _to_base64(data)
        raw.extend(data)
        return [len(raw) - len(data), len(raw)]

    return json.dumps(form, allow_nan=False, default=place)


def parse(text: bytes, raw: memoryview | None = None) -> Any:
    """Parse JSON in UTF-8, of unknown origin.

    Args:
        text: what :func:`write` returned.
        raw: the data of tensors and arrays, if it was written apart. It must be used up in order,
            each byte once, so that a short text cannot claim the same bytes many times.

    Returns:
        A form, to be decoded: its parts are not checked yet.

    Raises:
        ValueError: it is no JSON, has equal keys in one object, of which Python's own parser lets
            the last win, a literal that is no JSON (``NaN``), or nesting beyond Python's recursion
            limit; or it does not fit to ``raw``.

    >>> parse(b'{"a": [1, 0.5]}')
    {'a': [1, 0.5]}
    >>> parse(b'{"a": 1, "a": 2}')
    Traceback (most recent call last):
        ...
    ValueError: a key comes twice in one object of the keys ['a', 'a']
    """
    num_used = 0

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal num_used
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"a key comes twice in one object of the keys {_brief(names)}")
        content = found.get("$tensor", found.get("$array")) if len(found) == 1 else None
        if raw is not None and isinstance(content, dict) and isinstance(content.get("data"), list):
            content["data"] = _next_range(content["data"], raw, num_used)
            num_used += len(content["data"])
        return found

    try:
        form = json.loads(text.decode(), object_pairs_hook=object_of, parse_constant=_refused)
    except RecursionError as error:
        raise ValueError("nesting too deep for what is left of the stack") from error
    if raw is not None and num_used < len(raw):
        raise ValueError(f"{len(raw) - num_used} raw bytes of no tensor or array")
    return form


def _next_range(data: list[Any], raw: memoryview, num_used: int) -> bytes:
    first, end = data if len(data) == 2 else (None, None)
    if first != num_used or type(end) is not int or not num_used <= end <= len(raw):
        raise ValueError(f"{_brief(data)} instead of the next range of {len(raw)} raw bytes")
    return bytes(raw[num_used:end])


def is_text(value: str) -> bool:
    """Whether a str is without surrogates, two of which JSON would join to one character."""
    return value.isascii() or not _SURROGATE.search(value)


# Values and forms -------------------------------------------------------------------------------


class _Form(NamedTuple):
    """How values of one type are written below a key with ``$``, and read back.

    Both take the depth of nesting within the value.
    """

    kind: type
    content_of: Callable[[Any, int], Any]
    value_of: Callable[[Any, int], Any]
    """May raise what :data:`_DAMAGE` holds, of a content that was never written."""


_DAMAGE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError)


def _encode(value: Any, depth: int) -> Any:
    kind = type(value)
    if value is None or kind is bool or (kind is str and is_text(value)):
        return value
    if kind is int:
        return _checked_int(value)
    if kind is float and math.isfinite(value):
        return value
    if kind is list:
        return _each(_encode, value, depth)
    if kind is dict and _stays_itself(value):
        return dict(zip(value, _each(_encode, value.values(), depth, value), strict=True))
    name = _NAMES.get(kind)
    if kind is OrderedDict and vars(value):
        name = "$state_dict"
    if name is None and isinstance(value, np.generic) and np.asarray(value).dtype.kind not in "SU":
        name = "$scalar"
    if name is None:
        remedy = _REMEDIES.get(kind.__name__, "save plain values, arrays and tensors")
        raise _Misfit(f"a {kind.__name__}, which has no form in JSON. Remedy: {remedy}")
    return {name: _FORMS[name].content_of(value, depth)}


def _decode(form: Any, depth: int) -> Any:
    kind = type(form)
    if form is None or kind is bool or kind is str:
        return form
    if kind is int:
        return _checked_int(form)
    if kind is float and math.isfinite(form):
        return form
    if kind is list:
        return _each(_decode, form, depth)
    if kind is not dict:
        raise _Misfit(f"{_brief(form)}, a {kind.__name__} that is never written")
    if _stays_itself(form):
        return dict(zip(form, _each(_decode, form.values(), depth, form), strict=True))
    name, content = next(iter(form.items()))
    if len(form) > 1 or name not in _FORMS:
        raise _Misfit(f"{_brief(name)} is no type")
    try:
        return _FORMS[name].value_of(content, depth)
    except _DAMAGE as error:
        raise _Misfit(f"no {name}: {error}") from error


class _Misfit(Exception):
    """What is wrong with a part of a value, and the keys that lead to it, the innermost first.

    The keys are collected while the exception passes through the containers, so that they cost
    nothing as long as all fits.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.keys: list[Any] = []

    def place(self) -> str:
        """The place as Python would write it: ``state['a'][3]``."""
        return "state" + "".join(f"[{_brief(key)}]" for key in reversed(self.keys))


def _each(
    act: Callable[[Any, int], Any],
    values: Iterable[Any],
    depth: int,
    keys: Iterable[Any] | None = None,
) -> list[Any]:
    """``act(value, depth + 1)`` for all values of a container at a depth.

    A misfit learns its value's key (None: its number).
    """
    if depth == MAX_DEPTH:
        raise _Misfit(
            f"nested deeper than {MAX_DEPTH}, or holds itself. Remedy: save a flatter value"
        )
    done: list[Any] = []
    try:
        for value in values:
            done.append(act(value, depth + 1))
    except _Misfit as misfit:
        misfit.keys.append(len(done) if keys is None else list(keys)[len(done)])
        raise
    return done


def _brief(value: Any) -> str:
    """At most some 80 characters of a value."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


# Numbers and strings ----------------------------------------------------------------------------


def _checked_int(value: int) -> int:
    if value.bit_length() > MAX_INT_BITS:
        raise _Misfit(f"an int of {value.bit_length()} bits. Remedy: save it as bytes")
    return value


def _float(content: Any, depth: int) -> float:
    if content in _NON_FINITE:
        return float(content)
    return float(np.frombuffer(bytes.fromhex(content), ">f8").item())


def _dtype_name(dtype: torch.dtype, depth: int = 0) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: Any, depth: int = 0) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise _Misfit(f"{_brief(name)} is no dtype of torch {torch.__version__}")
    return dtype


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _from_base64(text: Any) -> bytes:
    if not isinstance(text, str):
        raise _Misfit(f"{_brief(text)} instead of base64")
    return base64.b64decode(text, validate=True)


# Tensors and arrays -----------------------------------------------------------------------------


def _tensor_content(tensor: torch.Tensor, depth: int) -> dict[str, Any]:
    if tensor.requires_grad:
        raise _Misfit("a tensor that requires grad. Remedy: detach() it")
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise _Misfit("a sparse or nested tensor. Remedy: save its parts")
    if tensor.is_meta:
        raise _Misfit("a tensor on the meta device. Remedy: give it values")
    if tensor.dtype not in TENSOR_DTYPES:
        raise _Misfit(f"a tensor of {tensor.dtype}. Remedy: save it in another dtype")
    if tensor.ndim > _MAX_DIMS:
        raise _Misfit(f"a tensor of {tensor.ndim} dimensions. Remedy: save at most {_MAX_DIMS}")
    data = bytes_of(tensor).tobytes()
    return {"dtype": _dtype_name(tensor.dtype), "shape": list(tensor.shape), "data": data}


def _tensor(content: Any, depth: int) -> torch.Tensor:
    """A tensor on the CPU, contiguous."""
    dtype = _dtype(content["dtype"])
    if dtype not in TENSOR_DTYPES:
        raise _Misfit(f"{dtype} is no dtype of a tensor that is written")
    return tensor_of(bytearray(_data(content, dtype.itemsize)), dtype, content["shape"])


def _array_content(array: Any, depth: int) -> dict[str, Any]:
    if not _ARRAY_DTYPE.fullmatch(array.dtype.str):
        raise _Misfit(f"an array of {array.dtype}. Remedy: save its fields, or a list")
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": array.tobytes()}


def _array(content: Any, depth: int) -> npt.NDArray[Any]:
    """An array in C order."""
    if not _ARRAY_DTYPE.fullmatch(content["dtype"]):
        raise _Misfit(f"{_brief(content['dtype'])} is no dtype of an array")
    dtype = np.dtype(content["dtype"])
    data = bytearray(_data(content, dtype.itemsize))
    array: npt.NDArray[Any] = np.ndarray(content["shape"], dtype, data)
    return array


def _scalar_content(scalar: np.generic, depth: int) -> dict[str, Any]:
    content = _array_content(np.asarray(scalar), depth)
    return {**content, "data": _to_base64(content["data"])}


def _scalar(content: Any, depth: int) -> np.generic:
    array = _array(content, depth)
    if array.ndim or array.dtype.kind in "SU":
        raise _Misfit("no scalar")
    return cast("np.generic", array[()])


def _data(content: dict[str, Any], itemsize: int) -> bytes:
    """The data, which must be as long as shape and dtype say: nothing else is allocated."""
    data, shape = content["data"], content["shape"]
    if not isinstance(shape, list) or len(shape) > _MAX_DIMS:
        raise _Misfit(f"{_brief(shape)} instead of a shape")
    data = data if isinstance(data, bytes) else _from_base64(data)
    num_bytes = math.prod(shape) * itemsize
    if len(data) != num_bytes:
        raise _Misfit(f"{len(data)} bytes instead of {_brief(num_bytes)}")
    return data


# Containers -------------------------------------------------------------------------------------


def _stays_itself(value: dict[Any, Any]) -> bool:
    """Whether JSON can hold a dict as it is, without its being mistaken for a typed form."""
    if not all(type(key) is str and is_text(key) for key in value):
        return False
    return len(value) != 1 or not next(iter(value)).startswith(_MARK)


def _check_key(value: Any) -> None:
    """Keys must compare by value: a tensor, which does not, would be lost."""
    is_number = isinstance(value, np.number | np.bool_) and value.dtype.kind not in "mM"
    if type(value) not in _KEYS and not is_number:
        raise _Misfit(f"a key of type {type(value).__name__}. Remedy: use strings or ints")
    if isinstance(value, tuple | frozenset):
        for item in value:
            _check_key(item)


def _encoded_key(value: Any, depth: int) -> Any:
    form = _encode(value, depth)
    _check_key(value)
    return form


def _decoded_key(form: Any, depth: int) -> Any:
    key = _decode(form, depth)
    _check_key(key)
    return key


def _items_of(value: Any, depth: int) -> list[Any]:
    return _each(_encode, value, depth)


def _sorted_items_of(value: Any, depth: int) -> list[Any]:
    # Sorted, because the order of a set of strings differs from process to process.
    return sorted(_each(_encoded_key, value, depth), key=write)


def _pairs_of(value: dict[Any, Any], depth: int) -> list[list[Any]]:
    keys = _each(_encoded_key, value, depth, value)
    values = _each(_encode, value.values(), depth, value)
    return [list(pair) for pair in zip(keys, values, strict=True)]


def _dict(content: Any, depth: int) -> dict[Any, Any]:
    keys = _each(_decoded_key, (key for key, _ in content), depth)
    values = _each(_decode, (value for _, value in content), depth, keys)
    return dict(zip(keys, values, strict=True))


def _state_dict_content(value: OrderedDict[Any, Any], depth: int) -> list[Any]:
    attributes = vars(value)
    if attributes.keys() != {_METADATA}:
        raise _Misfit(f"an OrderedDict with attributes {sorted(attributes)}. Remedy: delete them")
    metadata = _each(_encode, attributes.values(), depth, attributes)
    return [_pairs_of(value, depth), *metadata]


def _state_dict(content: Any, depth: int) -> OrderedDict[Any, Any]:
    pairs, metadata = content
    found = OrderedDict(_dict(pairs, depth))
    vars(found)[_METADATA] = _decode(metadata, depth + 1)
    return found


_FORMS = {
    "$float": _Form(float, lambda value, depth: repr(value), _float),
    "$str": _Form(
        str,
        lambda value, depth: _to_base64(value.encode("utf-8", "surrogatepass")),
        lambda content, depth: _from_base64(content).decode("utf-8", "surrogatepass"),
    ),
    "$bytes": _Form(
        bytes,
        lambda value, depth: _to_base64(value),
        lambda content, depth: _from_base64(content),
    ),
    "$size": _Form(
        torch.Size,
        lambda value, depth: list(value),
        lambda content, depth: torch.Size(content),
    ),
    "$dtype": _Form(torch.dtype, _dtype_name, _dtype),
    "$tensor": _Form(torch.Tensor, _tensor_content, _tensor),
    "$array": _Form(np.ndarray, _array_content, _array),
    "$scalar": _Form(np.generic, _scalar_content, _scalar),
    "$tuple": _Form(tuple, _items_of, lambda content, depth: tuple(_each(_decode, content, depth))),
    "$set": _Form(
        set,
        _sorted_items_of,
        lambda content, depth: set(_each(_decoded_key, content, depth)),
    ),
    "$frozenset": _Form(
        frozenset,
        _sorted_items_of,
        lambda content, depth: frozenset(_each(_decoded_key, content, depth)),
    ),
    "$dict": _Form(dict, _pairs_of, _dict),
    "$ordered": _Form(
        OrderedDict, _pairs_of, lambda content, depth: OrderedDict(_dict(content, depth))
    ),
    # Counter(pairs) would count the pairs.
    "$counter": _Form(Counter, _pairs_of, lambda content, depth: Counter(_dict(content, depth))),
    "$state_dict": _Form(OrderedDict, _state_dict_content, _state_dict),
}
_NAMES = {form.kind: name for name, form in _FORMS.items() if name != "$state_dict"}


def _refused(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is no JSON")

"""Values that a checkpoint can hold, drawn by hypothesis, and their equality."""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from stateful_gpu_loader.state.typed_json import TENSOR_DTYPES

TENSOR_NAMES = [name for name in TENSOR_DTYPES if name != "complex32"]  # complex32 warns
ARRAY_DTYPES = [
    *("|b1", "|u1", "|i1", "<i2", ">i4", "<i8", ">u2", "<u8", "<f2", ">f4", "<f8", "<c8", ">c16"),
    *("<M8[ns]", "<M8[25s]", ">m8[D]", "<m8", "|S3", "<U2", ">U1"),
]


def identical(one: Any, other: Any) -> bool:
    """Return whether values are equal to the last bit, in type, order, dtype, shape, sign of
    zero and NaN bits.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and _bytes(one) == _bytes(other)
    if isinstance(one, (np.ndarray, np.generic)):
        same_form = one.dtype.str == other.dtype.str and one.shape == other.shape
        return same_form and one.tobytes() == other.tobytes()
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, dict):
        attributes = [getattr(value, "_metadata", None) for value in (one, other)]
        return _identical_items(one.items(), other.items()) and identical(*attributes)
    if isinstance(one, (set, frozenset)):
        return _identical_items(sorted(one, key=_text), sorted(other, key=_text))
    if isinstance(one, (list, tuple)):
        return _identical_items(one, other)
    return bool(one == other)


def _text(value: Any) -> str:
    """Return a text that differs for NaN with other bits, several of which a set may hold."""
    if isinstance(value, float):
        return struct.pack("d", value).hex()
    if isinstance(value, (tuple, frozenset)):
        parts = map(_text, value)
        items = sorted(parts) if isinstance(value, frozenset) else list(parts)
        return f"{type(value).__name__}({items})"
    return repr(value)


def _identical_items(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(map(identical, one, other))


def _bytes(tensor: torch.Tensor) -> bytes:
    rows = tensor.clone(memory_format=torch.contiguous_format).flatten()
    return bytes(rows.view(torch.uint8).numpy()) if tensor.numel() else b""


def _tensor(name: str, shape: list[int], data: bytes) -> torch.Tensor:
    dtype = getattr(torch, name)
    num_bytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.frombuffer((data * num_bytes)[:num_bytes], np.uint8).copy()
    if dtype == torch.bool:
        raw &= 1
    if not num_bytes:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(raw).view(dtype).reshape(shape)


def _array(name: str, shape: list[int], data: bytes) -> np.ndarray:
    dtype = np.dtype(name)
    num_bytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.frombuffer((data * num_bytes)[:num_bytes], np.uint8).copy()
    if dtype.kind == "b":
        raw &= 1
    if dtype.kind == "U":
        points = raw.view(f"{name[0]}u4")
        points %= 0x110000
    return np.ndarray(tuple(shape), dtype, raw.tobytes()).copy()


shapes = st.lists(st.integers(0, 3), max_size=3)
some_bytes = st.binary(min_size=1, max_size=20)
text = st.text(max_size=5) | st.text(st.characters(categories=["Cs"]), max_size=2)
tensors = st.builds(_tensor, st.sampled_from(TENSOR_NAMES), shapes, some_bytes)
arrays = st.builds(_array, st.sampled_from(ARRAY_DTYPES), shapes, some_bytes)
scalars = st.builds(
    lambda name, data: _array(name, [], data)[()],
    st.sampled_from([name for name in ARRAY_DTYPES if name[1] not in "SU"]),
    some_bytes,
)
floats = st.floats() | st.binary(min_size=6, max_size=6).map(
    lambda low: float(struct.unpack(">d", b"\x7f\xf8" + low)[0])
)
plain = st.none() | st.booleans() | st.integers(-(2**200), 2**200) | floats | text
keys = st.recursive(
    plain | st.binary(max_size=3) | scalars.filter(lambda scalar: scalar.dtype.kind not in "mM"),
    lambda inner: st.lists(inner, max_size=2).map(tuple) | st.frozensets(inner, max_size=2),
    max_leaves=3,
)
leaves = (
    plain
    | st.binary(max_size=5)
    | tensors
    | arrays
    | scalars
    | st.sampled_from([torch.float32, torch.bfloat16, torch.bool])
    | shapes.map(torch.Size)
)


def _with_metadata(value: OrderedDict[Any, Any], metadata: Any) -> OrderedDict[Any, Any]:
    value._metadata = metadata  # type: ignore[attr-defined]
    return value


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    marked = st.sampled_from(["$tuple", "$", "$dict", "a"])
    by_key = st.dictionaries(keys, inner, max_size=3)
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(text | marked, inner, max_size=3),
        by_key,
        by_key.map(OrderedDict),
        st.builds(_with_metadata, by_key.map(OrderedDict), inner),
        st.sets(keys, max_size=3),
        st.frozensets(keys, max_size=3),
    )


values = st.recursive(leaves, _containers, max_leaves=12)

"""Tensors and NumPy arrays as JSON objects of dtype, shape and bytes, and back, bit for bit."""

from __future__ import annotations

import base64
import binascii
import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.state.typed_json.places import brief

_NAMES = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64",
    "float16 bfloat16 float32 float64 complex32 complex64 complex128",
    "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu",
)
TENSOR_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for names in _NAMES for name in names.split(" ")
}
_TENSOR_NAMES = {dtype: name for name, dtype in TENSOR_DTYPES.items()}

# No objects, which are pointers; no records; no longdouble, whose bytes depend on the machine; no
# strings of length 0, of which bytes tell no number.
_ARRAY_DTYPE = re.compile(
    r"\|b1|\|[iu]1|[<>][iu][248]|[<>]f[248]|[<>]c(8|16)"
    r"|[<>][mM]8(\[[0-9]{0,6}[a-zA-Z]{1,2}\])?|\|S[1-9][0-9]{0,8}|[<>]U[1-9][0-9]{0,8}"
)
_FIELDS = {"dtype", "shape", "data"}
_MAX_DIMS = 64
_NUM_CODE_POINTS = 0x110000


def tensor_to_json(tensor: torch.Tensor) -> dict[str, Any]:
    """Write a tensor, wherever it lies and whatever its strides.

    Raises:
        TypeError: it is more than its dtype, shape and bytes.

    >>> tensor_to_json(torch.tensor([[1.5]]))
    {'dtype': 'float32', 'shape': [1, 1], 'data': 'AADAPw=='}
    """
    if tensor.requires_grad:
        raise TypeError("a tensor that requires grad. Remedy: detach() it")
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise TypeError("a sparse or nested tensor. Remedy: save its parts")
    if tensor.is_meta:
        raise TypeError("a tensor on the meta device. Remedy: give it values")
    if tensor.dtype not in _TENSOR_NAMES:
        raise TypeError(f"a tensor of {tensor.dtype}. Remedy: save it in another dtype")
    if tensor.ndim > _MAX_DIMS:
        raise TypeError(f"a tensor of {tensor.ndim} dimensions. Remedy: save at most {_MAX_DIMS}")
    rows = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    if rows.stride() != (1,):
        # One element, or none, is contiguous whatever its stride, and then no view as bytes.
        rows = rows.clone(memory_format=torch.contiguous_format)
    data = rows.view(torch.uint8).numpy().tobytes()
    if tensor.dtype == torch.bool and not _are_bools(data):
        raise TypeError("a bool tensor with other bytes than 0 and 1. Remedy: compute it anew")
    return {
        "dtype": _TENSOR_NAMES[tensor.dtype],
        "shape": list(tensor.shape),
        "data": to_base64(data),
    }


def tensor_from_json(form: Any) -> torch.Tensor:
    """Read back :func:`tensor_to_json`, on the CPU and contiguous.

    Raises:
        ValueError: it is no such object.

    >>> tensor_from_json({"dtype": "uint8", "shape": [2], "data": "AQI="})
    tensor([1, 2], dtype=torch.uint8)
    """
    name, shape = _header(form)
    if name not in TENSOR_DTYPES:
        raise ValueError(f"{brief(name)} is no dtype of torch {torch.__version__}")
    dtype = TENSOR_DTYPES[name]
    data = from_base64(form["data"], math.prod(shape) * dtype.itemsize)
    if dtype == torch.bool and not _are_bools(data):
        raise ValueError("bools with other bytes than 0 and 1")
    try:
        if not data:
            return torch.empty(shape, dtype=dtype, device="cpu")
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(shape)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"no tensor has the shape {brief(shape)}") from error


def array_to_json(array: npt.NDArray[Any]) -> dict[str, Any]:
    """Write an array, whatever its strides.

    Raises:
        TypeError: its dtype has no form that is the same on every machine.

    >>> array_to_json(np.array([[1.5]]))
    {'dtype': '<f8', 'shape': [1, 1], 'data': 'AAAAAAAA+D8='}
    """
    if not _ARRAY_DTYPE.fullmatch(array.dtype.str):
        raise TypeError(f"an array of {array.dtype}. Remedy: save its fields, or a list")
    data = array.tobytes()
    if not _fits(data, array.dtype):
        raise TypeError(
            f"an array of {array.dtype} with bytes of no such value. Remedy: compute it anew"
        )
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": to_base64(data)}


def array_from_json(form: Any) -> npt.NDArray[Any]:
    """Read back :func:`array_to_json`, in C order.

    Raises:
        ValueError: it is no such object.

    >>> array_from_json({"dtype": "|u1", "shape": [2], "data": "AQI="})
    array([1, 2], dtype=uint8)
    """
    name, shape = _header(form)
    try:
        dtype = np.dtype(name) if _ARRAY_DTYPE.fullmatch(name) else None
    except (TypeError, ValueError):
        dtype = None
    if dtype is None or dtype.str != name:
        raise ValueError(f"{brief(name)} is no dtype of an array")
    data = from_base64(form["data"], math.prod(shape) * dtype.itemsize)
    if not _fits(data, dtype):
        raise ValueError(f"bytes that are no {name}")
    try:
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, bytearray(data))
    except ValueError as error:
        raise ValueError(f"no array has the shape {brief(shape)}") from error
    return array


def to_base64(data: bytes) -> str:
    """Bytes as ASCII.

    >>> to_base64(bytes([1, 2]))
    'AQI='
    """
    return base64.b64encode(data).decode("ascii")


def from_base64(text: Any, num_bytes: int | None = None) -> bytes:
    """Read back :func:`to_base64`; no other text than the one that it wrote.

    Args:
        text: what it returned.
        num_bytes: how many bytes there must be; None if that is not known.

    Raises:
        ValueError: it is no such text, or of another length.

    >>> from_base64("AQI=", num_bytes=2)
    b'\\x01\\x02'
    """
    if not isinstance(text, str):
        raise ValueError(f"{brief(text)} instead of base64")
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"no base64: {error}") from error
    # Bits of the last character that no byte uses would let two texts mean the same.
    tail = len(data) % 3
    last = to_base64(data[-tail:]) if tail else ""
    if len(text) != (len(data) + 2) // 3 * 4 or not text.endswith(last):
        raise ValueError("base64 that is written otherwise than usual")
    if num_bytes is not None and len(data) != num_bytes:
        raise ValueError(f"{len(data)} bytes instead of {num_bytes}")
    return data


def _header(form: Any) -> tuple[str, tuple[int, ...]]:
    if not isinstance(form, dict) or form.keys() != _FIELDS:
        raise ValueError(f"an object of other keys than {sorted(_FIELDS)}")
    dtype, shape = form["dtype"], form["shape"]
    if not isinstance(dtype, str):
        raise ValueError(f"{brief(dtype)} instead of a dtype")
    lengths = shape if isinstance(shape, list) and len(shape) <= _MAX_DIMS else [None]
    if not all(type(length) is int and 0 <= length < 1 << 63 for length in lengths):
        raise ValueError(f"{brief(shape)} instead of a shape")
    return dtype, tuple(lengths)


def _fits(data: bytes, dtype: np.dtype[Any]) -> bool:
    """Whether the bytes are values: a bool is 0 or 1, a character a code point."""
    if dtype.kind == "b":
        return _are_bools(data)
    if dtype.kind != "U":
        return True
    points = np.frombuffer(data, f"{dtype.str[0]}u4")
    return int(points.max(initial=0)) < _NUM_CODE_POINTS


def _are_bools(data: bytes) -> bool:
    return int(np.frombuffer(data, np.uint8).max(initial=0)) <= 1

"""Caffe2's TensorProtos: the tensors of one record, the first of them an image.

The messages of ``caffe2.proto``: TensorProtos is protos 1; TensorProto is dims 1, data_type 2,
float_data 3, int32_data 4, byte_data 5, string_data 6, double_data 9, int64_data 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.lmdb.raw_image import ChannelOrder, stored_png
from stateful_gpu_loader.datasets.protobuf import (
    DELIMITED,
    FIXED32,
    FIXED64,
    VARINT,
    as_bytes,
    as_varint,
    fields,
    offset_in,
    packed_floats,
    packed_varints,
    signed,
)


class DataType(IntEnum):
    """The types of a TensorProto that are read."""

    FLOAT = 1
    INT32 = 2
    BYTE = 3
    STRING = 4
    BOOL = 5
    UINT8 = 6
    INT8 = 7
    INT16 = 9
    INT64 = 10
    DOUBLE = 13


_NUMERIC: dict[int, tuple[str, Any]] = {
    DataType.FLOAT: ("float_data", np.float32),
    DataType.INT32: ("int32_data", np.int32),
    DataType.BOOL: ("int32_data", np.bool_),
    DataType.UINT8: ("int32_data", np.uint8),
    DataType.INT8: ("int32_data", np.int8),
    DataType.INT16: ("int32_data", np.int16),
    DataType.INT64: ("int64_data", np.int64),
    DataType.DOUBLE: ("double_data", np.float64),
}
"""In which field the values of a type lie, and their dtype."""

_REPEATED = {3: "float_data", 4: "int32_data", 9: "double_data", 10: "int64_data"}


@dataclass(frozen=True, slots=True)
class TensorProto:
    """One tensor of a record, as stored.

    >>> [image, label] = parse_tensors(bytes.fromhex("0a0710043203616263" "0a0510022201 07"))
    >>> bytes(image.string_data[0]), label.values().tolist()
    (b'abc', [7])
    """

    dims: tuple[int, ...]
    """Its shape; often left out."""
    data_type: int
    """One of :class:`DataType`, or another number."""
    numbers: dict[str, npt.NDArray[Any]]
    """``float_data`` and its like, those that are there."""
    byte_data: memoryview | None
    string_data: tuple[memoryview, ...]

    def values(self) -> npt.NDArray[Any]:
        """Its numbers, flat, in the dtype of its data type; empty where there are none.

        Raises:
            ValueError: the type is not one of numbers.
        """
        if self.data_type not in _NUMERIC:
            raise ValueError(f"a tensor of the data type {self.data_type}, expected one of numbers")
        field, dtype = _NUMERIC[self.data_type]
        return self.numbers.get(field, np.empty(0)).astype(dtype, copy=False)


def parse_tensors(message: bytes | memoryview) -> list[TensorProto]:
    """Read a TensorProtos; no bytes or strings are copied.

    Raises:
        ValueError: the message is malformed; the text names the tensor and the byte.
    """
    tensors: list[TensorProto] = []
    for number, wire_type, value in fields(message):
        if number != 1:
            continue
        part = as_bytes(wire_type, value, "protos")
        try:
            tensors.append(_parse_tensor(part))
        except ValueError as error:
            place = f"tensor {len(tensors)}, which begins at byte {offset_in(message, part)}"
            raise ValueError(f"{place} of the record: {error}") from error
    return tensors


def image_file(tensor: TensorProto, channel_order: ChannelOrder = "BGR") -> npt.NDArray[np.uint8]:
    """The image as a file: its own bytes, not copied, or a PNG of its pixels.

    Args:
        tensor: STRING of a file; or BYTE, UINT8 or INT32 of pixels, [height, width] or
            [height, width, channels].
        channel_order: of pixels; Caffe2 takes them for BGR, as OpenCV gives it.

    Returns:
        uint8 [num_bytes].

    Raises:
        ValueError: there is no image, or its pixels are not as many as ``dims`` say, or of other
            than one or three channels.
    """
    if tensor.data_type == DataType.STRING:
        if len(tensor.string_data) != 1:
            raise ValueError(f"an image of {len(tensor.string_data)} strings, expected 1")
        return np.frombuffer(tensor.string_data[0], dtype=np.uint8)
    pixels = _pixels(tensor)
    channels = tensor.dims[2] if len(tensor.dims) == 3 else 1
    height, width = tensor.dims[:2] if len(tensor.dims) in (2, 3) else (0, 0)
    if channels not in (1, 3) or min(height, width) < 1 or channels * height * width != len(pixels):
        raise ValueError(
            f"an image of dims {list(tensor.dims)} in {len(pixels)} values; expected [height, "
            "width] or [height, width, 1 or 3], and as many values"
        )
    return stored_png(pixels.reshape(height, width, channels), channel_order)


def _pixels(tensor: TensorProto) -> npt.NDArray[np.uint8]:
    """uint8 [n]: the pixels of an image, flat."""
    if tensor.data_type not in (DataType.BYTE, DataType.UINT8, DataType.INT32):
        raise ValueError(
            f"an image of the data type {tensor.data_type}, expected {DataType.STRING:d} (a file) "
            f"or {DataType.BYTE:d}, {DataType.UINT8:d} or {DataType.INT32:d} (pixels)"
        )
    if tensor.byte_data is not None:
        return np.frombuffer(tensor.byte_data, dtype=np.uint8)
    numbers = tensor.numbers.get("int32_data", np.empty(0, dtype=np.int64))
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() <= 255:
        raise ValueError(f"pixels of {numbers.min()} to {numbers.max()}, expected 0 to 255")
    return numbers.astype(np.uint8)


def _parse_tensor(message: memoryview) -> TensorProto:
    dims: list[int] = []
    parts: dict[str, list[npt.NDArray[Any]]] = {}
    data_type, byte_data, strings = int(DataType.FLOAT), None, []
    for number, wire_type, value in fields(message):
        if number == 1:
            dims += _numbers("dims", wire_type, value).tolist()
        elif number == 2:
            data_type = as_varint(wire_type, value, "data_type")
        elif number in _REPEATED:
            name = _REPEATED[number]
            parts.setdefault(name, []).append(_numbers(name, wire_type, value))
        elif number == 5:
            byte_data = as_bytes(wire_type, value, "byte_data")
        elif number == 6:
            strings.append(as_bytes(wire_type, value, "string_data"))
    joined = {
        name: found[0] if len(found) == 1 else np.concatenate(found)
        for name, found in parts.items()
    }
    return TensorProto(tuple(dims), data_type, joined, byte_data, tuple(strings))


def _numbers(name: str, wire_type: int, value: int | memoryview) -> npt.NDArray[Any]:
    """The values of one occurrence of a repeated field: packed, as they should be, or single."""
    if name == "float_data":
        if isinstance(value, int) and wire_type == FIXED32:
            return np.array([value], dtype="<u4").view("<f4")
        return packed_floats(as_bytes(wire_type, value, name))
    if name == "double_data":
        if isinstance(value, int) and wire_type == FIXED64:
            return np.array([value], dtype="<u8").view("<f8")
        view = as_bytes(wire_type, value, name)
        if len(view) % 8:
            raise ValueError(f"{name} of {len(view)} bytes, expected a multiple of 8")
        return np.frombuffer(view, dtype="<f8")
    if isinstance(value, int) and wire_type == VARINT:
        return np.array([signed(value)], dtype=np.int64)
    if wire_type != DELIMITED:
        as_varint(wire_type, value, name)
    return packed_varints(as_bytes(wire_type, value, name))

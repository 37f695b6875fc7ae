"""Caffe2LMDBSource: images and targets that Caffe2's tools wrote into LMDB.

A target is a label of one of five kinds, additional tensors, and a box. A record is a TensorProtos
whose first tensor is the image. Field numbers of ``caffe2.proto``: TensorProtos has protos 1;
TensorProto has dims 1, data_type 2, float_data 3, int32_data 4, byte_data 5, string_data 6,
double_data 9, int64_data 10.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.datasets.lmdb import LmdbSource
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
from stateful_gpu_loader.datasets.storage.paths import AnyPath
from stateful_gpu_loader.decoders.png import ChannelOrder, check_channel_order, stored_png


class LabelType(IntEnum):
    """Kind of stored label, numbered as in Caffe2's image_input.h and DALI's reader."""

    SINGLE_LABEL = 0
    """One number: a class."""
    MULTI_LABEL_SPARSE = 1
    """Indices of labels; becomes a vector of ones and zeros."""
    MULTI_LABEL_DENSE = 2
    """A vector, as stored."""
    MULTI_LABEL_WEIGHTED_SPARSE = 3
    """Indices, and in the next tensor their weights; becomes a vector, 0 elsewhere."""
    NO_LABEL = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordLayout:
    """The tensors after the image: label, additional tensors, box.

    >>> RecordLayout(label_type=LabelType.MULTI_LABEL_SPARSE)
    Traceback (most recent call last):
        ...
    ValueError: label_type=1 makes vectors of num_labels=None. Remedy: pass num_labels, an int of \
at least 1
    """

    label_type: LabelType = LabelType.SINGLE_LABEL
    num_labels: int | None = None
    """Length of the vectors made from sparse labels."""
    additional_inputs: int = 0
    """Number of tensors between the label and the box."""
    bbox: bool = False
    """Whether the last tensor is a box."""

    def __post_init__(self) -> None:
        if self.is_sparse and (self.num_labels is None or self.num_labels < 1):
            raise ValueError(
                f"label_type={self.label_type:d} makes vectors of num_labels={self.num_labels}. "
                "Remedy: pass num_labels, an int of at least 1"
            )
        if self.additional_inputs < 0:
            raise ValueError(
                f"additional_inputs is {self.additional_inputs}. Remedy: pass how many tensors "
                "follow the label, 0 or more"
            )

    @property
    def is_sparse(self) -> bool:
        """Return whether the label is stored as indices."""
        kinds = (LabelType.MULTI_LABEL_SPARSE, LabelType.MULTI_LABEL_WEIGHTED_SPARSE)
        return self.label_type in kinds

    @property
    def num_label_tensors(self) -> int:
        """Return the number of tensors that hold the label."""
        if self.label_type == LabelType.NO_LABEL:
            return 0
        return 2 if self.label_type == LabelType.MULTI_LABEL_WEIGHTED_SPARSE else 1


class Caffe2LMDBSource(LmdbSource):
    """Images and labels from LMDBs of Caffe2's ``TensorProtos`` records.

    The first tensor is the image: a file, passed on unchanged, or pixels, encoded as PNG. The label
    follows, then additional tensors, then a box, as in Caffe2 and in DALI's ``fn.readers.caffe2``,
    which has the same arguments. The target is the label alone, the tuple (label, additional
    tensors..., box), or, without any of them, the sample's index.

    Args:
        paths: the folder with ``data.mdb``, or the file itself; or several, one after the other.
        label_type: 0: one number, an int or a float. 1: indices of labels, returned as a vector
            [num_labels] of ones and zeros in the stored dtype. 2: a vector as stored. 3: indices
            and weights, returned as float32 [num_labels]. 4: no label.
        num_labels: length of the vectors for ``label_type`` 1 and 3.
        additional_inputs: number of tensors after the label, returned flat in their dtypes.
        bbox: whether the last tensor is a box, returned as int32 [4]: top, left, height, width.
        channel_order: order of three raw channels; Caffe2 assumes BGR.

    Attributes:
        paths: the paths, absolute.

    Raises:
        FileNotFoundError: no such path.
        OSError: the file is not an LMDB, or is truncated.
        ValueError: a database has no records, no path was given, or an argument is out of range.
        MissingDependency: the package ``lmdb`` is not installed.

    >>> import lmdb, tempfile
    >>> record = bytes.fromhex("0a07 1004 3203 ffd8ff" "0a05 1002 2201 07")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with lmdb.open(folder) as database, database.begin(write=True) as transaction:
    ...         _ = transaction.put(b"00000000", record)
    ...     Caffe2LMDBSource(folder)[0]
    (tensor([255, 216, 255], dtype=torch.uint8), 7)
    """

    suits_processes = True

    def __init__(
        self,
        paths: AnyPath | Iterable[AnyPath],
        *,
        label_type: int = LabelType.SINGLE_LABEL,
        num_labels: int | None = None,
        additional_inputs: int = 0,
        bbox: bool = False,
        channel_order: ChannelOrder = "BGR",
    ) -> None:
        if label_type not in list(LabelType):
            raise ValueError(f"label_type is {label_type!r}. Remedy: pass 0 to 4")
        check_channel_order(channel_order)
        self.layout = RecordLayout(
            label_type=LabelType(label_type),
            num_labels=num_labels,
            additional_inputs=additional_inputs,
            bbox=bbox,
        )
        self.channel_order = channel_order
        super().__init__(paths)

    def parse(self, record: memoryview, index: int) -> tuple[npt.NDArray[np.uint8], Any]:
        tensors = parse_tensors(record)
        if not tensors:
            raise ValueError("the record holds no tensor")
        targets = [
            torch.from_numpy(np.array(target)) if isinstance(target, np.ndarray) else target
            for target in read_targets(tensors, self.layout)
        ]
        data = image_file(tensors[0], self.channel_order)
        if not targets:
            return data, index
        alone = len(targets) == 1 and not self.layout.additional_inputs and not self.layout.bbox
        return data, targets[0] if alone else tuple(targets)

    def settings(self) -> str:
        layout = self.layout
        return (
            f"caffe2, {self.channel_order}, label_type={layout.label_type:d}, "
            f"num_labels={layout.num_labels}, additional_inputs={layout.additional_inputs}, "
            f"bbox={layout.bbox}"
        )


def read_targets(
    tensors: Sequence[TensorProto], layout: RecordLayout
) -> list[int | float | npt.NDArray[Any]]:
    """Return the label, the additional tensors and the box, as far as the layout has them.

    Returns:
        label: an int or a float; or a vector: [num_labels] of the stored dtype (sparse), [n] as
            stored (dense), float32 [num_labels] (weighted).
        additional tensors: flat [n], in their dtypes.
        box: int32 [4], as stored: Caffe2 reads top, left, height, width in pixels.

    Raises:
        ValueError: a tensor is missing, or does not match the layout.
    """
    labels, further = layout.num_label_tensors, layout.additional_inputs
    expected = 1 + labels + further + layout.bbox
    if len(tensors) < expected:
        raise ValueError(
            f"{len(tensors)} tensors in the record; label_type={layout.label_type:d}, "
            f"additional_inputs={further} and bbox={layout.bbox} ask for {expected}"
        )
    targets: list[int | float | npt.NDArray[Any]] = []
    if labels:
        targets.append(_label(tensors[1], tensors[labels], layout))
    targets += [tensor.values() for tensor in tensors[1 + labels : 1 + labels + further]]
    if layout.bbox:
        box = tensors[1 + labels + further].values()
        if box.shape != (4,) or box.dtype != np.int32:
            raise ValueError(f"a box of {len(box)} values of {box.dtype}, expected 4 of int32")
        targets.append(box)
    return targets


def _label(
    stored: TensorProto, last: TensorProto, layout: RecordLayout
) -> int | float | npt.NDArray[Any]:
    values = stored.values()
    if layout.label_type == LabelType.SINGLE_LABEL:
        if len(values) != 1:
            raise ValueError(f"a single label of {len(values)} values, expected 1")
        number: int | float = values[0].item()
        return number
    if not layout.is_sparse:
        return values
    length = layout.num_labels or 0
    is_label = (values >= 0) & (values < length) & (values == np.trunc(values))
    if not is_label.all():
        raise ValueError(f"labels {values[:10].tolist()}, expected integers of 0 to {length - 1}")
    indices = values.astype(np.int64)
    if layout.label_type == LabelType.MULTI_LABEL_SPARSE:
        vector = np.zeros(length, dtype=values.dtype)
        vector[indices] = 1
        return vector
    weights = last.values()
    if len(weights) != len(indices):
        raise ValueError(f"{len(weights)} weights for {len(indices)} labels, expected one for each")
    if weights.dtype != np.float32:
        raise ValueError(f"weights of {weights.dtype}, expected float32")
    weighted = np.zeros(length, dtype=np.float32)
    weighted[indices] = weights
    return weighted


class DataType(IntEnum):
    """Supported types of a TensorProto."""

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
"""Field that holds the values of a type, and their dtype."""

_REPEATED = {3: "float_data", 4: "int32_data", 9: "double_data", 10: "int64_data"}


@dataclass(frozen=True, slots=True)
class TensorProto:
    """One tensor of a record, as stored.

    >>> [image, label] = parse_tensors(bytes.fromhex("0a0710043203616263" "0a0510022201 07"))
    >>> bytes(image.string_data[0]), label.values().tolist()
    (b'abc', [7])
    """

    dims: tuple[int, ...]
    """Shape; often missing."""
    data_type: int
    """A :class:`DataType`, or another number."""
    numbers: dict[str, npt.NDArray[Any]]
    """``float_data`` and the other numeric fields that are present."""
    byte_data: memoryview | None
    string_data: tuple[memoryview, ...]

    def values(self) -> npt.NDArray[Any]:
        """Return the numbers, flat, in the dtype of the data type; empty if there are none.

        Raises:
            ValueError: the data type is not numeric.
        """
        if self.data_type not in _NUMERIC:
            raise ValueError(f"a tensor of the data type {self.data_type}, expected one of numbers")
        field, dtype = _NUMERIC[self.data_type]
        return self.numbers.get(field, np.empty(0)).astype(dtype, copy=False)


def parse_tensors(message: bytes | memoryview) -> list[TensorProto]:
    """Parse a TensorProtos without copying bytes or strings.

    Raises:
        ValueError: the message is malformed; the text has the tensor and the byte.
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
    """Return the image as a file: its own bytes, not copied, or a PNG of its pixels.

    Args:
        tensor: STRING with a file; or BYTE, UINT8 or INT32 pixels, [height, width] or
            [height, width, channels].
        channel_order: order of the channels of pixels; Caffe2 assumes OpenCV's BGR.

    Returns:
        uint8 [num_bytes].

    Raises:
        ValueError: there is no image, the number of pixels differs from ``dims``, or the number of
            channels is not one or three.
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
    """Return the pixels of an image, uint8 [n]."""
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
    """Return the values of one occurrence of a repeated field, packed or single."""
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

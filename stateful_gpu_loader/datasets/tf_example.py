"""tf.train.Example: features by name, parsed without TensorFlow.

TensorFlow's ``example.proto`` and ``feature.proto`` define Example {Features features = 1}.
Features is {map<string, Feature> feature = 1}. Feature is {oneof {BytesList bytes_list = 1;
FloatList float_list = 2; Int64List int64_list = 3}}, each list {repeated value = 1}. Other fields
are skipped, and repeated fields are merged.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.protobuf import (
    DELIMITED,
    FIXED32,
    VARINT,
    fields,
    packed_floats,
    packed_varints,
    signed,
)

Values = list[memoryview] | npt.NDArray[np.float32] | npt.NDArray[np.int64]
"""The list in a feature; bytes as views of the message."""

_BYTES, _FLOAT, _INT64 = 1, 2, 3
_ENTRY, _KEY, _VALUE = 0x0A, 0x0A, 0x12
_LIST = 0x0A
_KINDS = {0x0A: _BYTES, 0x12: _FLOAT, 0x1A: _INT64}
_MAX_SHIFT = 35


def features_of(example: bytes | memoryview) -> dict[str, memoryview]:
    """Return the unparsed Feature message of each feature, as views of ``example``.

    Raises:
        ValueError: the bytes are not an Example.

    >>> example = bytes.fromhex("0a0f0a0d" "0a056c6162656c" "1204" "1a02" "0807")
    >>> values_of(features_of(example)["label"])
    array([7])
    """
    found: dict[str, memoryview] = {}
    for number, wire_type, value in fields(example):
        if number == 1 and wire_type == DELIMITED:
            view = memoryview(value)  # type: ignore[arg-type]
            quickly = _entries_as_usual(view)
            found.update(_entries(view) if quickly is None else quickly)
    return found


def values_of(feature: memoryview) -> Values | None:
    """Return a feature's list: views of bytes, float32 [n] or int64 [n]; None if it has none.

    Raises:
        ValueError: the bytes are not a Feature.
    """
    kind, value = _value_as_usual(feature)
    if kind == _BYTES:
        return [value]
    if kind == _INT64:
        return packed_varints(value)
    if kind == _FLOAT:
        return np.array(packed_floats(value), dtype=np.float32)
    parts: list[memoryview] = []
    for number, wire_type, part in fields(feature):
        if number in (_BYTES, _FLOAT, _INT64) and wire_type == DELIMITED:
            if number != kind:
                # Of a oneof's members only the last one counts.
                kind, parts = number, []
            parts.append(memoryview(part))  # type: ignore[arg-type]
    if not parts:
        return None
    # Concatenated messages parse as their merged message.
    values = parts[0] if len(parts) == 1 else memoryview(bytearray().join(parts))
    if kind == _BYTES:
        return [
            memoryview(value)  # type: ignore[arg-type]
            for number, wire_type, value in fields(values)
            if number == 1 and wire_type == DELIMITED
        ]
    return _floats(values) if kind == _FLOAT else _integers(values)


def _floats(message: memoryview) -> npt.NDArray[np.float32]:
    parts = [np.empty(0, dtype=np.float32)]
    for number, wire_type, value in fields(message):
        if number != 1:
            continue
        if isinstance(value, memoryview):
            parts.append(packed_floats(value))
        elif wire_type == FIXED32:
            parts.append(np.array([value], dtype=np.uint32).view(np.float32))
    # Never a view, which would keep the record in memory.
    return np.concatenate(parts)


def _integers(message: memoryview) -> npt.NDArray[np.int64]:
    parts = [np.empty(0, dtype=np.int64)]
    for number, wire_type, value in fields(message):
        if number != 1:
            continue
        if isinstance(value, memoryview):
            parts.append(packed_varints(value))
        elif wire_type == VARINT:
            parts.append(np.array([signed(value)], dtype=np.int64))
    return np.concatenate(parts)


def _value_as_usual(feature: memoryview) -> tuple[int, memoryview]:
    """Return kind and bytes of a single or packed value; kind 0 for any other encoding."""
    try:
        length, start = _length(feature, 1)
        if feature[0] in _KINDS and start + length == len(feature) and feature[start] == _LIST:
            length, start = _length(feature, start + 1)
            if start + length == len(feature):
                return _KINDS[feature[0]], feature[start:]
    except IndexError:
        pass
    return 0, feature


def _entries(features: memoryview) -> dict[str, memoryview]:
    """Return the entries of the map in any encoding; the last entry of a key counts."""
    found = {}
    for number, wire_type, entry in fields(features):
        if number != 1 or wire_type != DELIMITED:
            continue
        key, value = b"", memoryview(b"")
        for part, part_type, content in fields(memoryview(entry)):  # type: ignore[arg-type]
            if part == 1 and part_type == DELIMITED:
                key = bytes(memoryview(content))  # type: ignore[arg-type]
            elif part == 2 and part_type == DELIMITED:
                # A repeated value is merged.
                more = memoryview(content)  # type: ignore[arg-type]
                value = memoryview(bytearray(value) + more) if len(value) else more
        found[_text(key)] = value
    return found


def _entries_as_usual(features: memoryview) -> dict[str, memoryview] | None:
    """Return the entries of a map in the usual encoding, several times faster; else None."""
    found = {}
    at, size = 0, len(features)
    try:
        while at < size:
            length, key_at = features[at + 1], at + 2
            if length >= 0x80:
                length, key_at = _length(features, at + 1)
            end = key_at + length
            key_end = key_at + 2 + features[key_at + 1]
            length, start = features[key_end + 1], key_end + 2
            if length >= 0x80:
                length, start = _length(features, key_end + 1)
            if (
                features[at] != _ENTRY
                or features[key_at] != _KEY
                or key_end > key_at + 0x81
                or features[key_end] != _VALUE
                or start + length != end
                or end > size
            ):
                return None
            found[_text(features[key_at + 2 : key_end])] = features[start:end]
            at = end
    except IndexError:
        return None
    return found


def _length(view: memoryview, at: int) -> tuple[int, int]:
    """Return the varint at a byte, and the offset after it; IndexError if it is not a length."""
    length = view[at]
    at += 1
    if length < 0x80:
        return length, at
    length &= 0x7F
    for shift in range(7, _MAX_SHIFT, 7):
        byte = view[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return length, at
    raise IndexError


def _text(key: bytes | memoryview) -> str:
    try:
        return str(key, "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"the name of a feature is not UTF-8: {bytes(key)[:80]!r}") from error

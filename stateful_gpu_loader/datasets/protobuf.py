"""The wire format of protocol buffers: the fields of a message, read without a schema.

Specified at https://protobuf.dev/programming-guides/encoding. Large fields are not copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

import numpy as np
import numpy.typing as npt

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
"""Supported wire types; 3 and 4 are deprecated groups, which are refused."""

MAX_FIELD = 2**29 - 1
"""Largest field number."""

MAX_VARINT_BYTES = 10
"""Size of the longest varint; its bits beyond 64 must be zero."""

_FIXED = {FIXED64: Struct("<Q"), FIXED32: Struct("<I")}


def fields(message: bytes | memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Yield each field of a message as (number, wire type, value), in the order of the bytes.

    Args:
        message: the whole message, without a length before it.

    Yields:
        number: 1 to 2**29 - 1.
        wire type: 0 (varint), 1 (64 bits), 2 (length-delimited) or 5 (32 bits).
        value: the unsigned bits of a varint or fixed value, an int from 0 to 2**64 - 1, which
            :func:`signed` and :func:`packed_floats` reinterpret. For a length-delimited field, a
            view of its bytes inside ``message``.

    Raises:
        ValueError: the bytes are not a message. Earlier fields have been yielded.

    >>> [(number, bytes(value)) for number, _, value in fields(bytes.fromhex("0a03616263"))]
    [(1, b'abc')]
    >>> list(fields(bytes.fromhex("0805")))
    [(1, 0, 5)]
    >>> list(fields(bytes.fromhex("0a05616263")))
    Traceback (most recent call last):
        ...
    ValueError: malformed protocol buffer at byte 0: field 1 claims 5 bytes, 3 are left of the \
message
    """
    view = _flat(message)
    size, at = len(view), 0
    while at < size:
        start = at
        # Nearly every tag has one byte; reading it here halves the time.
        if (tag := view[at]) < 0x80:
            at += 1
        else:
            tag, at = _varint(view, at)
        number, wire_type = tag >> 3, tag & 7
        if not 1 <= number <= MAX_FIELD:
            raise _malformed(start, f"the field number {number} is invalid")
        if wire_type == DELIMITED:
            length, at = _varint(view, at)
            if length > size - at:
                raise _malformed(
                    start,
                    f"field {number} claims {length} bytes, {size - at} are left of the message",
                )
            yield number, wire_type, view[at : at + length]
            at += length
        elif wire_type == VARINT:
            if at < size and (value := view[at]) < 0x80:
                at += 1
            else:
                value, at = _varint(view, at)
            yield number, wire_type, value
        elif wire_type in _FIXED:
            fixed = _FIXED[wire_type]
            if fixed.size > size - at:
                raise _malformed(
                    start,
                    f"field {number} takes {fixed.size} bytes, {size - at} are left of the message",
                )
            yield number, wire_type, fixed.unpack_from(view, at)[0]
            at += fixed.size
        else:
            raise _malformed(start, f"field {number} has the wire type {wire_type}")


def as_varint(wire_type: int, value: int | memoryview, field: str) -> int:
    """Return the unsigned value of a numeric field.

    Raises:
        ValueError: the field has another wire type.

    >>> as_varint(2, memoryview(b"7"), "label")
    Traceback (most recent call last):
        ...
    ValueError: malformed protocol buffer: label has the wire type 2, expected 0
    """
    if wire_type != VARINT or not isinstance(value, int):
        raise _unexpected(field, wire_type, VARINT)
    return value


def as_bytes(wire_type: int, value: int | memoryview, field: str) -> memoryview:
    """Return the value of a field that is a string, bytes or a message.

    Raises:
        ValueError: the field has another wire type.
    """
    if not isinstance(value, memoryview):
        raise _unexpected(field, wire_type, DELIMITED)
    return value


def offset_in(message: bytes | memoryview, part: memoryview) -> int:
    """Return the offset in ``message`` of a non-empty view of its bytes.

    >>> message = bytes.fromhex("0a03616263")
    >>> offset_in(message, next(fields(message))[2])
    2
    """
    return _address(part) - _address(message)


def signed(value: int, bits: int = 64) -> int:
    """Interpret the low bits of a value as two's complement, as int32, int64 and sfixed fields do.

    >>> signed(2**64 - 1), signed(2**64 - 1, bits=32), signed(7)
    (-1, -1, 7)
    """
    half = 1 << (bits - 1)
    return ((value + half) & ((1 << bits) - 1)) - half


def packed_varints(view: bytes | memoryview) -> npt.NDArray[np.int64]:
    """Return the values of a packed field of int32, int64, uint32, bool or enum: int64 [n].

    Args:
        view: the field's bytes, from :func:`fields`.

    Raises:
        ValueError: the last value is truncated, or a value has more than 64 bits; the text has the
            byte inside the field.

    >>> packed_varints(bytes.fromhex("03ac02ffffffffffffffffff01")).tolist()
    [3, 300, -1]
    """
    flat = _flat(view)
    if not len(flat):
        return np.empty(0, dtype=np.int64)
    if len(flat) <= MAX_VARINT_BYTES and flat[-1] < 0x80:
        # For one or two values the NumPy code below would take ten times as long.
        return np.array(list(_few_varints(flat)), dtype=np.int64)
    data = np.frombuffer(flat, dtype=np.uint8)
    last = np.flatnonzero(data < 0x80)
    if not len(last) or last[-1] != len(data) - 1:
        start = int(last[-1]) + 1 if len(last) else 0
        raise _malformed(start, "the field ends inside a number")
    starts = np.concatenate([[0], last[:-1] + 1])
    lengths = last - starts + 1
    beyond = (lengths > MAX_VARINT_BYTES) | ((lengths == MAX_VARINT_BYTES) & (data[last] > 1))
    if beyond.any():
        raise _malformed(int(starts[beyond.argmax()]), "a number of more than 64 bits")
    places = np.arange(len(data)) - np.repeat(starts, lengths)
    parts = (data & 0x7F).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.bitwise_or.reduceat(parts, starts).view(np.int64)


def packed_floats(view: bytes | memoryview) -> npt.NDArray[np.float32]:
    """Return the values of a packed field of float: float32 [n], a view if possible.

    Args:
        view: the field's bytes, from :func:`fields`.

    Raises:
        ValueError: the number of bytes is not a multiple of 4.

    >>> packed_floats(bytes.fromhex("0000803f00000040")).tolist()
    [1.0, 2.0]
    """
    data = _flat(view)
    if len(data) % 4:
        raise _malformed(len(data) - len(data) % 4, "the field ends inside a number")
    return np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)


def _few_varints(view: memoryview) -> Iterator[int]:
    at = 0
    while at < len(view):
        value, at = _varint(view, at)
        yield signed(value)


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return the number at a byte, and the offset after it."""
    value = 0
    for place in range(MAX_VARINT_BYTES):
        if at + place >= len(view):
            raise _malformed(at, "the message ends inside a number")
        byte = view[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + place + 1
    raise _malformed(at, "a number of more than 64 bits")


def _address(view: bytes | memoryview) -> int:
    return int(np.frombuffer(view, dtype=np.uint8).__array_interface__["data"][0])


def _flat(message: bytes | memoryview) -> memoryview:
    view = memoryview(message)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _unexpected(field: str, found: int, expected: int) -> ValueError:
    return ValueError(
        f"malformed protocol buffer: {field} has the wire type {found}, expected {expected}"
    )


def _malformed(at: int, reason: str) -> ValueError:
    return ValueError(f"malformed protocol buffer at byte {at}: {reason}")

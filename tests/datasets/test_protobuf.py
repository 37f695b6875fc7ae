"""The wire format of protocol buffers: any bytes are read, or refused with their offset."""

from __future__ import annotations

import contextlib
from struct import pack

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stateful_gpu_loader.datasets.protobuf import (
    as_bytes,
    as_varint,
    fields,
    offset_in,
    packed_floats,
    packed_varints,
    signed,
)
from tests.datasets.lmdb.lmdb_files import message, varint

NUMBERS = st.integers(1, 2**29 - 1)
VALUES = st.one_of(
    st.tuples(NUMBERS, st.just(0), st.integers(0, 2**64 - 1)),
    st.tuples(NUMBERS, st.just(1), st.integers(0, 2**64 - 1)),
    st.tuples(NUMBERS, st.just(2), st.binary(max_size=300)),
    st.tuples(NUMBERS, st.just(5), st.integers(0, 2**32 - 1)),
)


def encoded(number: int, wire_type: int, value: int | bytes) -> bytes:
    tag = varint(number << 3 | wire_type)
    if isinstance(value, bytes):
        return tag + varint(len(value)) + value
    return tag + (varint(value) if wire_type == 0 else pack({1: "<Q", 5: "<I"}[wire_type], value))


def plain(value: int | memoryview) -> int | bytes:
    return value if isinstance(value, int) else bytes(value)


@given(st.lists(VALUES, max_size=8))
def test_what_was_written_is_read(written: list[tuple[int, int, int | bytes]]) -> None:
    data = b"".join(encoded(*field) for field in written)
    for view in (data, memoryview(data), np.array(memoryview(data), dtype=np.uint8).data):
        found = [(number, kind, plain(value)) for number, kind, value in fields(view)]
        assert found == written


@given(st.binary(max_size=64))
@example(b"\xff" * 64)
@example(b"\x0a" + b"\xff" * 9 + b"\x01")
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """A damaged record is a bad sample: never another exception, and never an endless loop."""
    for read in (lambda view: list(fields(view)), packed_varints, packed_floats):
        with contextlib.suppress(ValueError):
            read(memoryview(data))


@given(st.lists(VALUES, min_size=1, max_size=4), st.data())
def test_a_message_that_is_cut_off_is_refused_or_ends_between_fields(
    written: list[tuple[int, int, int | bytes]], data: st.DataObject
) -> None:
    parts = [encoded(*field) for field in written]
    whole = b"".join(parts)
    cut = data.draw(st.integers(0, len(whole) - 1))
    ends = np.cumsum([0, *map(len, parts)]).tolist()
    if cut in ends:
        assert len(list(fields(whole[:cut]))) == ends.index(cut)
    else:
        with pytest.raises(ValueError, match="malformed protocol buffer at byte"):
            list(fields(whole[:cut]))


@pytest.mark.parametrize(
    ("data", "place", "reason"),
    [
        ("0801 12056162", 2, "field 2 claims 5 bytes, 2 are left"),
        ("0801 12036162", 2, "field 2 claims 3 bytes, 2 are left"),
        ("0801 12ffffffffffffffff7f", 2, "field 2 claims 9223372036854775807 bytes, 0 are left"),
        ("0801 0880", 3, "ends inside a number"),
        ("0801 80", 2, "ends inside a number"),
        ("08 ffffffffffffffffff02", 1, "more than 64 bits"),
        ("08 80808080808080808080 00", 1, "more than 64 bits"),
        ("0801 09 00000000", 2, "field 1 takes 8 bytes, 4 are left"),
        ("0d 0000", 0, "field 1 takes 4 bytes, 2 are left"),
        ("0801 0001", 2, "the field number 0 is invalid"),
        ("0801 0b0c", 2, "field 1 has the wire type 3"),
        ("0e", 0, "field 1 has the wire type 6"),
        ("0f", 0, "field 1 has the wire type 7"),
        ("8080808010 00", 0, "the field number 536870912 is invalid"),
    ],
)
def test_what_is_malformed_is_named_with_its_byte(data: str, place: int, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"malformed.*byte {place}: .*{reason}"):
        list(fields(bytes.fromhex(data)))


def test_packed_numbers_that_are_malformed_are_named() -> None:
    for data, place, reason in (
        ("0580", 1, "ends inside"),
        ("80", 0, "ends inside"),
        ("01 ffffffffffffffffff02", 1, "more than 64 bits"),
        ("01 8080808080808080808000", 1, "more than 64 bits"),
    ):
        with pytest.raises(ValueError, match=rf"byte {place}: .*{reason}"):
            packed_varints(bytes.fromhex(data))


def test_fields_before_the_damage_are_given() -> None:
    found = fields(bytes.fromhex("0807 12056162"))
    assert next(found) == (1, 0, 7)
    with pytest.raises(ValueError, match="byte 2"):
        next(found)


def test_large_values_are_not_copied() -> None:
    record = np.frombuffer(bytearray(encoded(4, 2, bytes(1 << 20))), dtype=np.uint8)
    [(_, _, value)] = fields(record.data)
    assert isinstance(value, memoryview)
    place = offset_in(record.data, value)
    assert place == len(record) - (1 << 20)
    record[place] = 77
    assert value[0] == 77


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50))
def test_packed_numbers_are_read(numbers: list[int]) -> None:
    read = packed_varints(b"".join(map(varint, numbers)))
    assert read.dtype == np.int64
    assert read.tolist() == numbers


@given(st.lists(st.floats(width=32), max_size=20))
def test_packed_floats_are_read(numbers: list[float]) -> None:
    data = np.array(numbers, dtype="<f4").tobytes()
    assert packed_floats(data).tobytes() == data
    with pytest.raises(ValueError, match=f"at byte {len(data)}: "):
        packed_floats(data + b"\0\0\0")


@given(st.integers(-(2**31), 2**31 - 1))
def test_numbers_keep_their_sign(number: int) -> None:
    """A negative int32 is written as ten bytes."""
    [(_, _, value)] = fields(message((5, number)))
    assert isinstance(value, int)
    assert signed(value, bits=32) == signed(value) == number


def test_another_wire_type_than_the_schemas_is_named() -> None:
    with pytest.raises(ValueError, match="label has the wire type 5, expected 0"):
        as_varint(5, 7, "label")
    with pytest.raises(ValueError, match="label has the wire type 0, expected 2"):
        as_bytes(0, 7, "label")

"""Frames of RecordIO files, and the images and labels in them."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateful_gpu_loader.datasets.recordio import parse_index, unpack
from tests.datasets.framed.frames import RECORDIO, START, array_of
from tests.datasets.record_files import MAGIC, image_record, recordio_frame

FRAMING = RECORDIO.framing
streamed, walked, unframed = RECORDIO.streamed, RECORDIO.walked, RECORDIO.unframed
PAYLOADS = [b"abcd", b"", b"a" + MAGIC + b"bc", b"abcd" + MAGIC + MAGIC + b"e", MAGIC, b"xyz"]
FILE = b"".join(map(recordio_frame, PAYLOADS))


def part(kind: int, data: bytes) -> bytes:
    return MAGIC + struct.pack("<I", kind << 29 | len(data)) + data + bytes(-len(data) % 4)


def test_the_bytes_that_dmlc_core_writes_are_read() -> None:
    """The bytes follow dmlc-core's recordio.cc."""
    assert recordio_frame(b"abcde") == b"\x0a\x23\xd7\xce\x05\0\0\0abcde\0\0\0"
    cut = b"\x0a\x23\xd7\xce\x04\0\0\x20abcd" + b"\x0a\x23\xd7\xce\0\0\0\x40"
    cut += b"\x0a\x23\xd7\xce\x01\0\0\x60e\0\0\0"
    assert recordio_frame(b"abcd" + MAGIC + MAGIC + b"e") == cut
    assert streamed(FILE) == list(zip(PAYLOADS, walked(FILE)[1:], strict=True))


@given(
    st.lists(
        st.lists(st.sampled_from([b"a", b"bc", b"defg", MAGIC, MAGIC[:3], MAGIC[1:]]), max_size=9),
        max_size=5,
    ),
    st.integers(1, 80),
)
def test_records_with_the_magic_anywhere_come_back(pieces: list[list[bytes]], window: int) -> None:
    payloads = [b"".join(each) for each in pieces]
    frames = [recordio_frame(payload) for payload in payloads]
    file = b"".join(frames)
    assert [payload for payload, _ in streamed(file)] == payloads
    assert [unframed(frame) for frame in frames] == payloads
    ends = [0, *(end for _, end in streamed(file))]
    assert walked(file, window) == ends
    assert ends == [0, *np.cumsum([len(frame) for frame in frames]).tolist()]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (b"\0" * 8, "begins with 0x00000000 instead of the magic 0xced7230a"),
        (part(1, b"abcd") + b"\0" * 8, "begins with 0x00000000"),
        (part(2, b"abcd"), r"a part of kind 2, expected one of \(0, 1\)"),
        (part(3, b"abcd"), "a part of kind 3"),
        (part(5, b"abcd"), "a part of kind 5"),
        (part(1, b"abcd") + part(0, b""), r"a part of kind 0, expected one of \(2, 3\)"),
        (part(1, b"abcd") + part(1, b""), "a part of kind 1"),
        (part(1, b"abcd") + part(7, b""), "a part of kind 7"),
    ],
)
def test_parts_that_do_not_fit_together_are_named(file: bytes, text: str) -> None:
    before = recordio_frame(b"one")
    with pytest.raises(ValueError, match=f"'a.file', record 1, byte 12: .*{text}"):
        streamed(before + file)
    with pytest.raises(ValueError, match=f"'a.file', record 1, byte 12: .*{text}"):
        walked(before + file)
    with pytest.raises(ValueError, match=f"'a.file', record 0, byte 0: .*{text}"):
        unframed(file)


def test_a_record_that_is_not_as_long_as_the_index_says_is_named() -> None:
    frame = recordio_frame(b"abcd")
    for wrong, size in ((frame + frame, 24), (frame + b"\0\0\0\0", 16)):
        text = f"it takes 12 bytes, and the index says {size}"
        with pytest.raises(ValueError, match=text):
            unframed(wrong)
        with pytest.raises(ValueError, match=text):
            FRAMING.check_extent(frame[:8], size, START)
    with pytest.raises(ValueError, match=r"12.*8"):
        unframed(frame[:8])
    FRAMING.check_extent(frame[:8], 12, START)
    cut = recordio_frame(b"abcd" + MAGIC)
    FRAMING.check_extent(cut[:8], len(cut), START)


def test_labels_are_read_as_mxnet_packs_them() -> None:
    """The label is one number, or as many as the flag says."""
    single = unpack(array_of(image_record(b"jpeg", 3.5, id=7, id2=2**64 - 1)), START)
    assert single.label == np.float32(3.5)
    assert single.label.dtype == np.float32
    assert (single.id, single.id2, bytes(single.image)) == (7, 2**64 - 1, b"jpeg")
    several = unpack(array_of(image_record(b"jpeg", [1.0, 2.5], id=8)), START)
    assert several.label.dtype == np.float32
    assert several.label.tolist() == [1.0, 2.5]
    assert (several.id, bytes(several.image)) == (8, b"jpeg")
    none = unpack(array_of(image_record(b"", 0)), START)
    assert bytes(none.image) == b""


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", "it has 0 bytes, and the header of an image takes 24"),
        (image_record(b"", 1)[:-1], "it has 23 bytes"),
        (image_record(b"", [1.0, 2.0])[:-1], "it has 31 bytes, and its 2 labels end at byte 32"),
        (struct.pack("<IfQQ", 2**32 - 1, 0, 0, 0), "its 4294967295 labels"),
    ],
)
def test_a_record_that_is_too_short_is_named(payload: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=f"'a.file', record 0, byte 0: .*{text}"):
        unpack(array_of(payload), START)


def test_an_index_of_im2rec_is_read() -> None:
    assert parse_index(b"0\t0\n1\t48\n", "a.idx").tolist() == [0, 48]
    assert parse_index(b"9\t48\n3\t0\n", "a.idx").tolist() == [0, 48]
    assert parse_index(b"a name\t0\n", "a.idx").tolist() == [0]
    assert parse_index(b"", "a.idx").tolist() == []


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"0\t0\n1\n", "'a.idx', line 2: b'1' is not a key and an offset"),
        (b"0\t0\n\n", "line 2: b'' is not"),
        (b"0\t-8\n", "line 1: .* is not"),
        (b"0\t" + b"9" * 5000, "'a.idx', line 1: b'0.t999"),
        (b"0\t99999999999999999999\n", "line 1: .* is not"),
        (b"0\t0\n1\t48\n2\t48\n", "'a.idx': two records begin at byte 48"),
    ],
)
def test_an_index_that_is_something_else_is_named_by_line(text: bytes, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_index(text, "a.idx")

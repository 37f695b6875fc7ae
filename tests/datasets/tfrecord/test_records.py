"""Frames of TFRecord files, compared with bytes that TensorFlow wrote."""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateful_gpu_loader.datasets.tfrecord import masked_crc32c, parse_index
from tests.datasets.framed.frames import START, TFRECORD, UNCHECKED_TFRECORD
from tests.datasets.record_files import tfrecord_frame

# From the tests of TensorBoard's event_file_loader.
EVENT_1 = (
    b'\x18\x00\x00\x00\x00\x00\x00\x00\xa3\x7fK"\t\x00\x00\xc0%\xddu'
    b"\xd5A\x1a\rbrain.Event:1\xec\xf32\x8d"
)
EVENT_2 = (
    b"\x18\x00\x00\x00\x00\x00\x00\x00\xa3\x7fK\"\t\x00\x00\x00'\xe6"
    b"\xb3\xd5A\x1a\rbrain.Event:2jM\x0b\x15"
)
FRAMING = TFRECORD.framing
streamed, walked, unframed = TFRECORD.streamed, TFRECORD.walked, TFRECORD.unframed
PAYLOADS = [b"", b"a", b"record" * 9, bytes(300)]
FILE = b"".join(map(tfrecord_frame, PAYLOADS))


def test_what_tensorflow_wrote_is_read() -> None:
    """Lengths and both checksums are where TensorFlow puts them."""
    for event in (EVENT_1, EVENT_2):
        assert unframed(event) == event[12:-4]
        assert tfrecord_frame(event[12:-4]) == event
    assert streamed(EVENT_1 + EVENT_2) == [(EVENT_1[12:-4], 40), (EVENT_2[12:-4], 80)]
    assert walked(EVENT_1 + EVENT_2) == [0, 40, 80]


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(1, 60))
def test_every_window_finds_the_same_records(payloads: list[bytes], window: int) -> None:
    file = b"".join(map(tfrecord_frame, payloads))
    expected = [0, *(end for _, end in streamed(file))]
    assert walked(file, window=window) == expected
    assert [payload for payload, _ in streamed(file)] == payloads


def test_every_flipped_byte_is_noticed() -> None:
    """The two checksums cover the whole record."""
    ends = [0, *(end for _, end in streamed(FILE))]
    for at in range(len(FILE)):
        damaged = bytearray(FILE)
        damaged[at] ^= 0x10
        number = max(i for i, end in enumerate(ends) if end <= at)
        stream = FRAMING.stream(io.BytesIO(damaged), START)
        assert [bytes(next(stream)[0]) for _ in range(number)] == PAYLOADS[:number]
        text = f"record {number}, byte {ends[number]}: the checksum of its (length|data) differs"
        with pytest.raises(ValueError, match=text):
            next(stream)
        with pytest.raises(ValueError, match=r"checksum of its (length|data) differs"):
            unframed(bytes(damaged[ends[number] : ends[number + 1]]))


def test_walking_checks_the_lengths_and_skips_the_data() -> None:
    damaged = bytearray(FILE)
    damaged[14 + 16] ^= 1
    damaged[-10] ^= 1
    assert walked(bytes(damaged)) == walked(FILE)
    damaged[17] ^= 1
    with pytest.raises(ValueError, match=r"record 1, byte 16.*checksum"):
        walked(bytes(damaged))


def test_checksums_are_left_alone_if_asked_for() -> None:
    unchecked = UNCHECKED_TFRECORD
    file = struct.pack("<QI", 3, 0) + b"abc" + bytes(4)
    assert unchecked.streamed(file) == [(b"abc", 19)]
    assert unchecked.unframed(file) == b"abc"
    assert unchecked.walked(file) == [0, 19]
    for length in (4, 2**40, 2**63, 2**64 - 1):
        damaged = struct.pack("<QI", length, 0) + b"abc" + bytes(4)
        with pytest.raises(ValueError, match=r"byte 0: (the file is cut off|it claims)"):
            unchecked.streamed(damaged)
        with pytest.raises(ValueError, match=r"byte 0: (the file is cut off|it claims)"):
            unchecked.walked(damaged)


def test_a_record_that_is_not_as_long_as_the_index_says_is_named() -> None:
    text = "it takes 40 bytes, and the index says 80. Remedy: the index is of another file"
    with pytest.raises(ValueError, match=text):
        unframed(EVENT_1 + EVENT_2)
    with pytest.raises(ValueError, match=text):
        FRAMING.check_extent(EVENT_1[:12], 80, START)
    FRAMING.check_extent(EVENT_1[:12], 40, START)
    with pytest.raises(ValueError, match=r"12.*16"):
        unframed(EVENT_1[:12])


@pytest.mark.parametrize(
    ("compress", "text"),
    [
        (gzip.compress, r"compressed by gzip. Remedy: .*\.gz.*TFRecordShards"),
        (zlib.compress, "compressed by zlib. Remedy: decompress it"),
    ],
)
def test_compressed_bytes_are_recognised(compress: Callable[[bytes], bytes], text: str) -> None:
    """A file's name does not show TensorFlow's own compression."""
    for read in (walked, streamed):
        with pytest.raises(ValueError, match=text):
            read(compress(FILE))


def test_an_index_of_tfrecord2idx_is_read() -> None:
    assert parse_index(b"", "a.idx").tolist() == [0]
    assert parse_index(b"0 16\n16 17\n33 70\n", "a.idx").tolist() == [0, 16, 33, 103]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"0 16\n16 " + b"9" * 5000, "'a.idx', line 2: b'16 999"),
        (b"0 16\n16\n", "'a.idx', line 2: b'16' is not an offset and a size"),
        (b"0 16\n\n16 20\n", "line 2: b'' is not"),
        (b"zero 16\n", "line 1: b'zero 16' is not"),
        (b"0 -16\n", "line 1: .* is not"),
        (b"16 20\n", "line 1: .* at byte 16 does not follow one that ends at byte 0"),
        (b"0 16\n17 20\n", "line 2: a record of 20 bytes at byte 17 does not follow .* byte 16"),
        (b"0 15\n", "line 1: a record of 15 bytes"),
        (b"0 99999999999999999999\n", "line 1: a record of 9999"),
    ],
)
def test_an_index_that_is_something_else_is_named_by_line(text: bytes, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_index(text, "a.idx")


def test_the_mask_is_tensorflows() -> None:
    """The header of every event file has 24 bytes."""
    assert masked_crc32c((24).to_bytes(8, "little")) == int.from_bytes(b'\xa3\x7fK"', "little")
    assert masked_crc32c(b"") == 0xA282EAD8
    array = np.frombuffer(b"x" + (24).to_bytes(8, "little"), dtype=np.uint8)
    assert masked_crc32c(array[1:]) == masked_crc32c((24).to_bytes(8, "little"))

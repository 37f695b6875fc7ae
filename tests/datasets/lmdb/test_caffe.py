"""Caffe's Datum: files and pixels, missing flags, damaged records."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateful_gpu_loader.datasets.caffe_lmdb import image_file, parse_datum
from tests.datasets.lmdb.lmdb_files import encoded_datum, message, pixels_of, raw_datum
from tests.images import photograph

PIXELS = np.asarray(photograph("chelsea"))[40:71, 50:97]


@given(st.binary(min_size=1, max_size=99), st.integers(-(2**31), 2**31 - 1))
def test_an_encoded_image_and_its_label_are_read(data: bytes, label: int) -> None:
    datum = parse_datum(encoded_datum(data, label))
    assert image_file(datum).tobytes() == data
    assert datum.label == label


@pytest.mark.parametrize("flag", [False, None])
@pytest.mark.parametrize("pixels", [PIXELS, PIXELS[:, :, 0], PIXELS[:1, :1]])
def test_pixels_become_a_file_of_the_same_pixels(
    pixels: npt.NDArray[np.uint8], flag: bool | None
) -> None:
    """Blue comes first in Caffe's planes. Databases older than encoded images have no flag."""
    datum = parse_datum(raw_datum(pixels, 5, flag=flag))
    assert np.array_equal(pixels_of(image_file(datum)), pixels)
    assert datum.label == 5


def test_a_file_without_a_flag_is_a_file() -> None:
    """Like DALI, the reader notices that the bytes are not as many as the sizes say."""
    for sizes in ([], [(1, 3), (2, 256), (3, 256)]):
        record = message(*sizes, (4, b"\xff\xd8\xff"), (5, 1))
        assert image_file(parse_datum(record)).tobytes() == b"\xff\xd8\xff"


def test_later_fields_win_and_unknown_ones_are_left_out() -> None:
    """The wire format demands this of fields that are not repeated. A label may be missing."""
    record = message((5, 1), (99, 7), (98, b"?"), (4, b"a"), (4, b"b"), (5, 2), (7, 1))
    datum = parse_datum(record)
    assert (bytes(datum.data), datum.label, datum.encoded) == (b"b", 2, True)
    assert parse_datum(message((4, b"a"), (7, 1))).label is None


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"", "holds no data, not an image"),
        (message((5, 3), (7, 1)), "holds no data, not an image"),
        (message((1, 4), (2, 1), (3, 1), (6, 0.5), (5, 3)), "holds float_data, not an image"),
        (message((1, 3), (2, 2), (3, 2), (4, bytes(11)), (7, 0)), "3 channels of 2 x 2 .* 11 byt"),
        (message((1, 2), (2, 2), (3, 2), (4, bytes(8)), (7, 0)), "2 channels of 2 x 2 .* 8 bytes"),
        (message((1, 1), (2, -2), (3, -2), (4, bytes(4)), (7, 0)), "1 channels of -2 x -2 pixels"),
        (message((4, bytes(4)), (7, 0)), "0 channels of 0 x 0 pixels in 4 bytes"),
    ],
)
def test_a_record_without_an_image_says_what_it_holds(record: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        image_file(parse_datum(record))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (encoded_datum(b"abc", 7)[:4], "at byte 0: field 4 claims 3 bytes, 2 are left"),
        (message((4, 7), (5, 1)), "data has the wire type 0, expected 2"),
        (message((4, b"abc"), (5, b"7")), "label has the wire type 2, expected 0"),
        (message((7, 1.0)), "encoded has the wire type 5, expected 0"),
    ],
)
def test_a_malformed_record_is_refused(record: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_datum(record)

"""Truncated and malformed records are errors, in TFRecord and in RecordIO files."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from tests.datasets.framed.frames import RECORDIO, START, TFRECORD, Frames
from tests.datasets.record_files import MAGIC, recordio_frame, tfrecord_frame

WITH_MAGIC = [b"abcd", b"", b"a" + MAGIC + b"bc", b"abcd" + MAGIC + MAGIC + b"e", MAGIC, b"xyz"]


@pytest.mark.parametrize(
    ("frames", "frame", "payloads"),
    [
        (TFRECORD, tfrecord_frame, [b"", b"a", b"record" * 9, bytes(300)]),
        (RECORDIO, recordio_frame, WITH_MAGIC),
    ],
)
def test_a_file_cut_at_every_byte_gives_a_right_prefix_or_says_so(
    frames: Frames, frame: Callable[[bytes], bytes], payloads: list[bytes]
) -> None:
    file = b"".join(map(frame, payloads))
    ends = frames.walked(file)
    for size in range(len(file)):
        whole = max(i for i, end in enumerate(ends) if end <= size)
        stream = frames.framing.stream(io.BytesIO(file[:size]), START)
        assert [bytes(next(stream)[0]) for _ in range(whole)] == payloads[:whole]
        if size in ends:
            assert list(stream) == []
            assert frames.walked(file[:size]) == ends[: whole + 1]
            continue
        text = f"'a.file', record {whole}, byte {ends[whole]}: the file is cut off"
        with pytest.raises(ValueError, match=text):
            list(stream)
        with pytest.raises(ValueError, match=text):
            frames.walked(file[:size])
        with pytest.raises(ValueError, match=r"it takes \d+ bytes|cut off: it has \d+ of"):
            frames.unframed(file[ends[whole] : size])

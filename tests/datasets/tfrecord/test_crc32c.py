"""CRC-32C, plain and masked (C5)."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from stateful_gpu_loader.datasets.tfrecord import crc32c as module
from stateful_gpu_loader.datasets.tfrecord.crc32c import crc32c, masked_crc32c, require_crc32c
from stateful_gpu_loader.errors import MissingDependency


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_the_vectors_of_rfc_3720(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected
    array = np.frombuffer(b"x" + data + b"x", dtype=np.uint8)
    assert crc32c(array[1:-1]) == expected
    assert crc32c(array[1:-1].copy()) == expected


def test_the_mask_is_tensorflows() -> None:
    """The header of every event file: 24 bytes."""
    assert masked_crc32c((24).to_bytes(8, "little")) == int.from_bytes(b'\xa3\x7fK"', "little")
    assert masked_crc32c(b"") == 0xA282EAD8


def test_its_absence_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module._load.cache_clear()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "google_crc32c", None)
        for use in (require_crc32c, lambda: crc32c(b""), lambda: masked_crc32c(b"")):
            with pytest.raises(MissingDependency, match=r"check_crc=True.*google-crc32c") as caught:
                use()
            assert caught.value.extra == "tfrecord"
    require_crc32c()

"""CRC-32C, plain and masked as in TFRecord files: the one file that imports google_crc32c."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.errors import MissingDependency

_MASK_DELTA = 0xA282EAD8


def crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """The CRC-32C (Castagnoli) of the bytes, 0 <= crc < 2**32; RFC 3720, appendix B.4.

    Args:
        data: bytes, or contiguous uint8 [n], which is not copied.

    Raises:
        MissingDependency: google-crc32c is not installed.

    >>> f"{crc32c(b'123456789'):08x}"
    'e3069283'
    """
    return _load()(data)


def masked_crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """The CRC as TFRecord stores it: turned right by 15 bits, plus a constant.

    As TensorFlow's ``tsl/lib/hash/crc32c.h`` masks it, so that the CRC of bytes that hold their
    own CRC is no special value. Arguments and errors as :func:`crc32c`.

    >>> f"{masked_crc32c((24).to_bytes(8, 'little')):08x}"
    '224b7fa3'
    """
    crc = _load()(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def require_crc32c() -> None:
    """Finds out early whether checksums can be checked.

    Raises:
        MissingDependency: google-crc32c is not installed.
    """
    _load()


@functools.cache
def _load() -> Callable[[bytes | npt.NDArray[np.uint8]], int]:
    try:
        import google_crc32c
    except ImportError:
        raise MissingDependency(
            "google-crc32c",
            needed_for="checking the checksums of TFRecord files (check_crc=True)",
            extra="tfrecord",
        ) from None
    value: Callable[[bytes | npt.NDArray[np.uint8]], int] = google_crc32c.value
    return value

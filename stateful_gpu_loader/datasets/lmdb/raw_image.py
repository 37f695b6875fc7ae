"""Raw pixels as an image file: a PNG whose pixels are stored, not compressed.

What reads encoded images reads it, losslessly; it costs a copy and two checksums.
"""

from __future__ import annotations

import zlib
from struct import pack

import numpy as np
import numpy.typing as npt

SIGNATURE = b"\x89PNG\r\n\x1a\n"

COLOR_TYPES = {1: 0, 3: 2}
"""PNG's numbers for grey and RGB, by channels."""

MAX_SIDE = 2**31 - 1
"""PNG's limit, in pixels."""


def stored_png(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A PNG file that holds ``pixels`` exactly (PNG 3rd ed.; deflate of level 0, RFC 1951).

    Args:
        pixels: uint8 [height, width], [height, width, 1] (grey) or [height, width, 3] (RGB), of
            any strides.

    Returns:
        uint8 [num_bytes]: some 70 bytes and 0.1% more than the pixels.

    Raises:
        ValueError: the shape is none of these, or a side has no pixel.

    >>> len(stored_png(np.zeros((32, 32, 3), dtype=np.uint8)))
    3172
    """
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    if pixels.ndim not in (2, 3) or channels not in COLOR_TYPES:
        raise ValueError(
            f"pixels of shape {list(pixels.shape)}, expected [height, width] or [height, width, 3]"
        )
    height, width = pixels.shape[:2]
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
        raise ValueError(f"an image of {height} x {width} pixels: there is nothing to decode")
    # A row begins with the number of its filter: 0, none.
    rows = np.zeros((height, 1 + width * channels), dtype=np.uint8)
    rows[:, 1:].reshape(height, width, channels)[:] = pixels.reshape(height, width, channels)
    header = pack(">IIBBBBB", width, height, 8, COLOR_TYPES[channels], 0, 0, 0)
    file = b"".join(
        (
            SIGNATURE,
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(rows.data, level=0)),
            _chunk(b"IEND", b""),
        )
    )
    return np.frombuffer(bytearray(file), dtype=np.uint8)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return b"".join(
        (pack(">I", len(data)), kind, data, pack(">I", zlib.crc32(data, zlib.crc32(kind))))
    )

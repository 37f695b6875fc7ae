"""Raw pixels as an image file: a PNG whose pixels are stored, not compressed.

So the loader's decoders read raw pixels like any other image, and exactly. It costs a copy of the
pixels and two checksums.
"""

from __future__ import annotations

import zlib
from struct import pack
from typing import Literal

import numpy as np
import numpy.typing as npt

SIGNATURE = b"\x89PNG\r\n\x1a\n"

COLOR_TYPES = {1: 0, 3: 2}
"""PNG's numbers for grey and RGB, by channels."""

ChannelOrder = Literal["BGR", "RGB"]
"""In which order raw pixels of three channels are stored."""


def check_channel_order(channel_order: str) -> None:
    """Raises ValueError unless it is ``"BGR"`` or ``"RGB"``."""
    if channel_order not in ("BGR", "RGB"):
        raise ValueError(f"channel_order is {channel_order!r}. Remedy: pass 'BGR' or 'RGB'")


def stored_png(
    pixels: npt.NDArray[np.uint8], channel_order: ChannelOrder = "RGB"
) -> npt.NDArray[np.uint8]:
    """A PNG file that holds ``pixels`` exactly (PNG 3rd ed.; deflate of level 0, RFC 1951).

    Args:
        pixels: uint8 [height, width, 1] (grey) or [height, width, 3], of any strides; a side has at
            least one pixel.
        channel_order: of the pixels; the file has RGB.

    Returns:
        uint8 [num_bytes]: some 70 bytes and 0.1% more than the pixels.

    >>> len(stored_png(np.zeros((32, 32, 3), dtype=np.uint8)))
    3172
    """
    height, width, channels = pixels.shape
    # Each row begins with the number of its filter: 0 for none.
    rows = np.zeros((height, 1 + width * channels), dtype=np.uint8)
    ordered = pixels[:, :, ::-1] if channel_order == "BGR" else pixels
    rows[:, 1:].reshape(height, width, channels)[:] = ordered
    header = pack(">IIBBBBB", width, height, 8, COLOR_TYPES[channels], 0, 0, 0)
    parts = (
        SIGNATURE,
        _chunk(b"IHDR", header),
        _chunk(b"IDAT", zlib.compress(rows.data, level=0)),
        _chunk(b"IEND", b""),
    )
    return np.frombuffer(bytearray().join(parts), dtype=np.uint8)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return b"".join(
        (pack(">I", len(data)), kind, data, pack(">I", zlib.crc32(data, zlib.crc32(kind))))
    )

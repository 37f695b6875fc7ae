"""How much a header may claim before the image is refused."""

from __future__ import annotations

MAX_DECODED_BYTES = 2**31
"""A larger claim is a decompression bomb or a broken header."""

MAX_SEGMENTS = 10_000
"""Segments or chunks that are walked through; keeps the time of any header bounded."""


def check_size(
    name: str, height: int, width: int, *, bytes_a_pixel: int = 3, most_pixels: int | None = None
) -> None:
    """Raises ValueError where an image of this size can not, or shall not, be decoded.

    Args:
        name: of the format, for the message.
        height: pixels.
        width: pixels.
        bytes_a_pixel: while decoding.
        most_pixels: how many a file of its length can hold at all; None where that is unbounded.

    >>> check_size("JPEG", 65535, 65535)
    Traceback (most recent call last):
        ...
    ValueError: JPEG of 65535 x 65535 pixels needs 12884508675 bytes decoded, more than the \
2147483648 allowed: a decompression bomb, or a broken header
    """
    if height <= 0 or width <= 0:
        raise ValueError(f"{name} of {height} x {width} pixels: there is nothing to decode")
    num_bytes = bytes_a_pixel * height * width
    if num_bytes > MAX_DECODED_BYTES:
        raise ValueError(
            f"{name} of {height} x {width} pixels needs {num_bytes} bytes decoded, more than the "
            f"{MAX_DECODED_BYTES} allowed: a decompression bomb, or a broken header"
        )
    if most_pixels is not None and height * width > most_pixels:
        raise ValueError(
            f"{name} claims {height} x {width} pixels, more than its bytes can hold "
            f"(at most {most_pixels}): truncated, or a broken header"
        )

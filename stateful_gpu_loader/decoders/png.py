"""Reading a PNG's header: IHDR, and eXIf where it precedes the pixels (PNG 3rd ed.)."""

from __future__ import annotations

from struct import unpack_from

from stateful_gpu_loader.decoders.header import PngHeader
from stateful_gpu_loader.decoders.limits import MAX_SEGMENTS, check_size
from stateful_gpu_loader.decoders.orientation import read_orientation

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
FIRST_CHUNK_AFTER_HEADER = 33

CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
BIT_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}

MOST_INFLATED = 1032
"""Deflate's largest ratio: 258 bytes for two bits (RFC 1951)."""


def read_png_header(view: memoryview) -> PngHeader:
    """The header of the PNG in ``view``, which starts with the PNG signature.

    Raises:
        ValueError: IHDR is missing or says what no PNG can be, or the chunks break off before
            the pixels.
    """
    if len(view) < FIRST_CHUNK_AFTER_HEADER or bytes(view[8:16]) != b"\0\0\0\x0dIHDR":
        raise ValueError(f"truncated PNG header: {len(view)} bytes without an IHDR chunk")
    width, height, bit_depth, color_type, compression, filtering, interlacing = unpack_from(
        ">IIBBBBB", view, 16
    )
    if bit_depth not in BIT_DEPTHS.get(color_type, ()):
        raise ValueError(
            f"PNG with {bit_depth = } and {color_type = }, which do not exist together"
        )
    if compression or filtering or interlacing > 1:
        raise ValueError(f"PNG with unknown {compression = }, {filtering = } or {interlacing = }")
    bits_a_pixel = bit_depth * CHANNELS[color_type]
    check_size(
        "PNG",
        height,
        width,
        bytes_a_pixel=max(3, bits_a_pixel // 8),
        most_pixels=MOST_INFLATED * 8 * len(view) // bits_a_pixel,
    )
    orientation = _read_exif(view)
    if orientation >= 5:
        height, width = width, height
    return PngHeader(
        format="png",
        height=height,
        width=width,
        orientation=orientation,
        bit_depth=bit_depth,
        color_type=color_type,
        interlaced=bool(interlacing),
    )


def _read_exif(view: memoryview) -> int:
    at, orientation = FIRST_CHUNK_AFTER_HEADER, 0
    for _ in range(MAX_SEGMENTS):
        if at + 12 > len(view):
            raise ValueError(f"truncated PNG: {len(view)} bytes and no IDAT chunk in them")
        size, kind = unpack_from(">I4s", view, at)
        if kind == b"IDAT":
            return orientation or 1
        if kind == b"eXIf" and not orientation and at + 12 + size <= len(view):
            orientation = read_orientation(view[at + 8 : at + 8 + size])
        at += 12 + size
    raise ValueError(f"PNG with more than {MAX_SEGMENTS} chunks before its pixels")

"""PNG (3rd ed.): reads headers, reduces files to their checked pixels, and writes raw pixels.

torchvision's decode_png dies with SIGSEGV (seen in 0.29.2) on an error in the pixels, and leaks
memory on truncated pixels. libpng writes warnings to stderr. So the pixels are inflated and checked
here, and passed on uncompressed, with nothing else in the file.

Pillow is no substitute. Of 29,670 damaged files, it decodes 860 that are refused here, and its
verify() refuses 723 that can be decoded.
"""

from __future__ import annotations

import zlib
from struct import pack, unpack_from
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.decoders.header import MAX_SEGMENTS, PngHeader, check_size
from stateful_gpu_loader.decoders.orientation import read_orientation

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
FIRST_CHUNK_AFTER_HEADER = 33

CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
BIT_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}

MOST_INFLATED = 1032
"""Deflate's largest ratio: 258 bytes for two bits (RFC 1951)."""

ADAM7 = (
    (0, 0, 8, 8),
    (0, 4, 8, 8),
    (4, 0, 8, 4),
    (0, 2, 4, 4),
    (2, 0, 4, 2),
    (0, 1, 2, 2),
    (1, 0, 2, 1),
)
"""(first row, first column, row step, column step) of the seven passes."""


def read_png_header(view: memoryview) -> PngHeader:
    """Return the header of the PNG in ``view``, which starts with the PNG signature.

    Raises:
        ValueError: IHDR is missing or invalid, or the chunks end before the pixels.
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


def plain_png(data: torch.Tensor, header: PngHeader) -> torch.Tensor:
    """Return the same image as a PNG of IHDR, PLTE, stored pixels and IEND only.

    Args:
        data: uint8 [num_bytes] on the CPU, contiguous: a PNG.
        header: ``probe``'s result for it.

    Returns:
        uint8 [num_bytes].

    Raises:
        ValueError: a checksum fails, the pixels cannot be inflated or are too few, or a row has
            an unknown filter.
    """
    view = data.numpy().data
    palette, compressed = _collect(view)
    passes = _passes(header)
    expected = sum(rows * (1 + row_bytes) for rows, row_bytes in passes)
    try:
        pixels = zlib.decompressobj().decompress(compressed, expected)
    except zlib.error as error:
        raise ValueError(f"PNG whose pixels cannot be inflated: {error}") from error
    if len(pixels) < expected:
        raise ValueError(f"PNG with {len(pixels)} of {expected} bytes of pixels: truncated")
    _check_filters(pixels, passes)
    parts = [PNG_SIGNATURE, *_chunk(b"IHDR", bytes(view[16:29]))]
    if header.color_type == 3:
        if not palette or len(palette) % 3 or len(palette) > 3 * 256:
            raise ValueError(
                f"PNG with a palette of {len(palette)} bytes; it must be a multiple of 3 up to 768"
            )
        parts += _chunk(b"PLTE", palette)
    parts += _chunk(b"IDAT", zlib.compress(pixels, level=0)) + _chunk(b"IEND", b"")
    return torch.frombuffer(bytearray().join(parts), dtype=torch.uint8)


def _collect(view: memoryview) -> tuple[bytes, bytes]:
    """Return the palette and the compressed pixels after a check of their checksums."""
    palette = b""
    compressed: list[memoryview] = []
    at = len(PNG_SIGNATURE)
    while at + 12 <= len(view):
        size, kind = unpack_from(">I4s", view, at)
        if compressed and kind != b"IDAT":
            break
        end = at + 12 + size
        if end > len(view):
            raise ValueError(f"truncated PNG: {len(view)} bytes, chunk {kind!r} ends at {end}")
        critical = not kind[0] & 0x20
        if critical:
            (checksum,) = unpack_from(">I", view, end - 4)
            if checksum != zlib.crc32(view[at + 4 : end - 4]):
                raise ValueError(f"PNG whose chunk {kind!r} at byte {at} fails its checksum")
        if kind == b"IDAT":
            compressed.append(view[at + 8 : end - 4])
        elif kind == b"PLTE":
            palette = bytes(view[at + 8 : end - 4])
        elif critical and kind != b"IHDR":
            raise ValueError(f"PNG with an unknown critical chunk {kind!r} before its pixels")
        at = end
    return palette, b"".join(compressed)


def _passes(header: PngHeader) -> list[tuple[int, int]]:
    """Return (rows, bytes per row) of each pass that is not empty."""
    height, width = header.stored_size
    bits = header.bit_depth * CHANNELS[header.color_type]
    steps = ADAM7 if header.interlaced else ((0, 0, 1, 1),)
    sizes = [
        (-((top - height) // row_step), -((left - width) // column_step))
        for top, left, row_step, column_step in steps
    ]
    return [(rows, (columns * bits + 7) // 8) for rows, columns in sizes if rows and columns]


def _check_filters(pixels: bytes, passes: list[tuple[int, int]]) -> None:
    values, at = np.frombuffer(pixels, dtype=np.uint8), 0
    for rows, row_bytes in passes:
        end = at + rows * (1 + row_bytes)
        if (largest := int(values[at : end : 1 + row_bytes].max())) > 4:
            raise ValueError(f"PNG with a row of unknown filter {largest}: damaged")
        at = end


def _chunk(kind: bytes, payload: bytes) -> tuple[bytes, bytes, bytes]:
    """Return a chunk in three parts, to be joined without copying twice."""
    checksum = zlib.crc32(payload, zlib.crc32(kind))
    return pack(">I", len(payload)) + kind, payload, pack(">I", checksum)


COLOR_TYPES = {1: 0, 3: 2}
"""PNG's colour types for grey and RGB, by number of channels."""

ChannelOrder = Literal["BGR", "RGB"]
"""Channel order of raw pixels with three channels."""


def check_channel_order(channel_order: str) -> None:
    """Raise ValueError unless ``channel_order`` is ``"BGR"`` or ``"RGB"``."""
    if channel_order not in ("BGR", "RGB"):
        raise ValueError(f"channel_order is {channel_order!r}. Remedy: pass 'BGR' or 'RGB'")


def stored_png(
    pixels: npt.NDArray[np.uint8], channel_order: ChannelOrder = "RGB"
) -> npt.NDArray[np.uint8]:
    """Return a PNG file that holds ``pixels`` exactly (PNG 3rd ed.; deflate level 0, RFC 1951).

    The decoders then read raw pixels like any other image, at the cost of a copy and two checksums.

    Args:
        pixels: uint8 [height, width, 1] (grey) or [height, width, 3], of any strides; each side has
            at least one pixel.
        channel_order: channel order of ``pixels``; the file is RGB.

    Returns:
        uint8 [num_bytes]: about 70 bytes and 0.1% more than the pixels.

    >>> len(stored_png(np.zeros((32, 32, 3), dtype=np.uint8)))
    3172
    """
    height, width, channels = pixels.shape
    # Each row begins with its filter number: 0 for none.
    rows = np.zeros((height, 1 + width * channels), dtype=np.uint8)
    ordered = pixels[:, :, ::-1] if channel_order == "BGR" else pixels
    rows[:, 1:].reshape(height, width, channels)[:] = ordered
    header = pack(">IIBBBBB", width, height, 8, COLOR_TYPES[channels], 0, 0, 0)
    parts = (
        PNG_SIGNATURE,
        *_chunk(b"IHDR", header),
        *_chunk(b"IDAT", zlib.compress(rows.data, level=0)),
        *_chunk(b"IEND", b""),
    )
    return np.frombuffer(bytearray().join(parts), dtype=np.uint8)

"""Reads a JPEG's header: its markers up to the first scan (ITU-T T.81, annex B)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from struct import unpack_from
from typing import Literal

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.decoders.header import MAX_SEGMENTS, JpegHeader, check_size
from stateful_gpu_loader.decoders.orientation import read_orientation

Color = Literal["grey", "ycbcr", "rgb", "cmyk", "ycck"]

SOF_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
RST0, EOI, SOS, APP0, APP1, APP14 = 0xD0, 0xD9, 0xDA, 0xE0, 0xE1, 0xEE
BASELINE, PROGRESSIVE = 0xC0, 0xC2
"""Frames (ITU-T T.81, table B.1) of 8 bits, Huffman-coded. Nearly all JPEGs are one of the two."""
WITHOUT_LENGTH = frozenset({0x00, 0x01, *range(0xD0, 0xD8)})
NO_SEGMENTS = WITHOUT_LENGTH | {EOI, 0xFF}
READ = SOF_MARKERS | {SOS, APP0, APP1, APP14}
ARITHMETIC = frozenset({0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})

MAX_GARBAGE = 2**16
"""Largest gap in bytes before the next marker. libjpeg skips such bytes too."""

PIXELS_A_BYTE = 8192
"""Maximum number of pixels in a byte. A block of 64 samples takes at least one bit in a component
with at least one sample per 16 pixels."""

SUBSAMPLING = {
    (1, 1): "4:4:4",
    (2, 1): "4:2:2",
    (2, 2): "4:2:0",
    (1, 2): "4:4:0",
    (4, 1): "4:1:1",
    (4, 2): "4:1:0",
}


def read_jpeg_header(view: memoryview) -> JpegHeader:
    """Return the header of the JPEG in ``view``, which starts with FF D8.

    Raises:
        ValueError: the markers are not a JPEG's, or the end-of-image marker is missing.
    """
    orientation = 0
    jfif = False
    adobe_transform: int | None = None
    frame: tuple[int, int, int, int, bytes] | None = None
    exif_spans: list[tuple[int, int]] = []
    for marker, start, end in _segments(view):
        if marker == APP1:
            exif_spans.append((start - 4, end))
            if not orientation and bytes(view[start : start + 6]) == b"Exif\0\0":
                orientation = read_orientation(view[start + 6 : end])
        elif marker == APP0:
            jfif = jfif or (end - start >= 14 and bytes(view[start : start + 5]) == b"JFIF\0")
        elif marker == APP14:
            if end - start >= 12 and bytes(view[start : start + 5]) == b"Adobe":
                adobe_transform = view[start + 11]
        elif marker in SOF_MARKERS:
            if frame:
                raise ValueError("JPEG with two frame headers")
            frame = _read_frame(view, marker, start, end)
    if not frame:
        raise ValueError("JPEG without a frame header before its first scan")
    process, precision, height, width, components = frame
    if end - start < 4:
        raise ValueError(f"JPEG scan header of {end - start} bytes, at least 4 are needed")
    most_pixels = None if process in ARITHMETIC else PIXELS_A_BYTE * len(view)
    check_size("JPEG", height, width, most_pixels=most_pixels)
    if bytes(view[-2:]) != b"\xff\xd9" and bytes(view[end:]).rfind(b"\xff\xd9") < 0:
        raise ValueError(f"truncated JPEG: {len(view)} bytes without an end-of-image marker")
    orientation = orientation or 1
    if orientation >= 5:
        height, width = width, height
    num_components = len(components) // 3
    color, subsampling = _meaning(components, jfif, adobe_transform)
    return JpegHeader(
        "jpeg",
        height,
        width,
        orientation,
        num_components,
        color,
        precision,
        process,
        subsampling,
        view[start] == num_components,
        tuple(exif_spans),
        end,
    )


def is_one_clean_scan(data: npt.NDArray[np.uint8], header: JpegHeader) -> bool:
    """Whether only restart markers interrupt the single scan of a baseline JPEG.

    libjpeg then decodes any bits in the scan. Any other marker is damage, which decoders treat
    differently. The check takes about 15 microseconds for 100 KB.

    Args:
        data: uint8 [num_bytes], the whole file.
    """
    if header.process != BASELINE or not header.single_scan:
        return False
    scan = data[header.scan_start :]
    is_marker = (scan[:-1] == 0xFF) & (scan[1:] != 0)
    if np.count_nonzero(is_marker) == 1 and scan[-2] == 0xFF and scan[-1] == EOI:
        return True  # most files; the rest of the check takes twice as long
    markers = scan[1:][is_marker]
    others = np.flatnonzero(markers & 0xF8 != RST0)
    return len(others) > 0 and bool(markers[others[0]] == EOI)


def _segments(view: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, end) of each payload that is read, up to the first scan's header."""
    at, length = 2, len(view)
    for _ in range(MAX_SEGMENTS):
        if at + 4 > length:
            raise ValueError(f"truncated JPEG header: {length} bytes, and no image data in them")
        prefix, marker, size = unpack_from(">BBH", view, at)
        if prefix != 0xFF:
            at = _next_marker(view, at)
        elif marker not in NO_SEGMENTS:
            start, at = at, at + 2 + size
            if size < 2 or at > length:
                raise ValueError(
                    f"truncated JPEG header: segment FF {marker:02X} at byte {start} claims "
                    f"{size} bytes, the file has {length}"
                )
            if marker in READ:
                yield marker, start + 4, at
                if marker == SOS:
                    return
        elif marker == EOI:
            raise ValueError("JPEG without image data: it ends before its first scan")
        else:
            at += 1 if marker == 0xFF else 2
    raise ValueError(f"JPEG with more than {MAX_SEGMENTS} segments before its first scan")


def _next_marker(view: memoryview, at: int) -> int:
    found = bytes(view[at : at + MAX_GARBAGE]).find(b"\xff")
    if found < 0:
        raise ValueError(f"JPEG header without a marker in the {MAX_GARBAGE} bytes from byte {at}")
    return at + found


def _read_frame(
    view: memoryview, process: int, start: int, end: int
) -> tuple[int, int, int, int, bytes]:
    """Return process, precision, height, width, and the three bytes of each component."""
    if end - start < 6:
        raise ValueError(f"JPEG frame header of {end - start} bytes, at least 6 are needed")
    precision, height, width, components = unpack_from(">BHHB", view, start)
    if end - start != 6 + 3 * components:
        raise ValueError(f"JPEG frame header of {end - start} bytes for {components} components")
    if components not in (1, 3, 4):
        raise ValueError(f"JPEG with {components} components; 1, 3 and 4 can be made RGB")
    return process, precision, height, width, bytes(view[start + 6 : end])


@lru_cache(maxsize=256)
def _meaning(components: bytes, jfif: bool, adobe_transform: int | None) -> tuple[Color, str]:
    """Return colours and subsampling; cached, because datasets have few variants."""
    return _color(components[::3], jfif, adobe_transform), _subsampling(components[1::3])


def _color(identifiers: bytes, jfif: bool, adobe_transform: int | None) -> Color:
    """Return the colours by the rules of default_decompress_parms (libjpeg's jdapimin.c)."""
    if len(identifiers) == 1:
        return "grey"
    if len(identifiers) == 4:
        return "cmyk" if adobe_transform in (None, 0) else "ycck"
    if jfif:
        return "ycbcr"
    if adobe_transform is not None:
        return "rgb" if adobe_transform == 0 else "ycbcr"
    return "rgb" if identifiers == b"RGB" else "ycbcr"


def _subsampling(sampling: bytes) -> str:
    if len(sampling) == 1:
        return "4:0:0"
    first, second = sampling[0], sampling[1]
    if second != sampling[2] or second == 0 or (len(sampling) == 4 and sampling[3] != first):
        return "other"
    across, rest_across = divmod(first >> 4, second >> 4 or 1)
    down, rest_down = divmod(first & 15, second & 15 or 1)
    return "other" if rest_across or rest_down else SUBSAMPLING.get((across, down), "other")

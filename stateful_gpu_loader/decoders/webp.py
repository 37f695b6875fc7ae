"""WebP: reads headers, and extracts the first frame's colours from a file (RFC 9649).

A header is VP8, VP8L or VP8X, and the chunks after it. torch's operators decode, because Pillow
takes 1.5 to 2 times as long for lossy files.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack, unpack_from

import torch

from stateful_gpu_loader.decoders.header import MAX_SEGMENTS, WebpHeader, check_size
from stateful_gpu_loader.decoders.orientation import read_orientation

FIRST_CHUNK = 12
FRAME_HEADER = 16
"""Bytes of an ANMF chunk before the chunks of its frame."""
ANIMATED, EXIF, ALPHA = 0x02, 0x08, 0x10

MAX_SIDE = 2**14
"""Largest side in pixels of VP8 and VP8L; VP8X could claim 2**24."""

Frame = tuple[int, int, int, int]
"""(top, left, height, width) in pixels on the canvas."""


def read_webp_header(view: memoryview) -> WebpHeader:
    """Return the header of the WebP in ``view``, which starts with RIFF, a size and WEBP.

    Raises:
        ValueError: the chunks are not a WebP's, or the file is truncated.
    """
    length = 8 + int.from_bytes(view[4:8], "little")
    if length > len(view):
        raise ValueError(f"truncated WebP: {len(view)} bytes of the {length} that it claims")
    chunks = _chunks(view, FIRST_CHUNK, length)
    kind, start, end = next(chunks, (b"none", 0, 0))
    orientation = 1
    if kind != b"VP8X":
        height, width, alpha = _bitstream_size(view, kind, start, end)
        animated, bitstream, frame = False, (start - 8, end), (0, 0, height, width)
    else:
        if end - start < 10:
            raise ValueError(f"WebP with a VP8X chunk of {end - start} bytes, 10 are needed")
        flags = view[start]
        alpha, animated = bool(flags & ALPHA), bool(flags & ANIMATED)
        width, height = (1 + _read_24_bits(view, start + offset) for offset in (4, 7))
        found: tuple[tuple[int, int], Frame] | None = None
        for kind, start, end in chunks:
            if not found and animated and kind == b"ANMF":
                found = _read_frame(view, start, end)
            elif not found and not animated and kind in (b"VP8 ", b"VP8L"):
                found = (start - 8, end), (0, 0, *_bitstream_size(view, kind, start, end)[:2])
            elif flags & EXIF and kind == b"EXIF":
                prefixed = bytes(view[start : start + 6]) == b"Exif\0\0"
                orientation = read_orientation(view[start + 6 * prefixed : end])
                flags &= ~EXIF
            if found and not flags & EXIF:
                break
        if not found:
            raise ValueError("WebP without an image: no VP8, VP8L or ANMF chunk")
        bitstream, frame = found
        _check_frame(frame, height, width, animated)
    check_size("WebP", height, width)
    if orientation >= 5:
        height, width = width, height
    return WebpHeader(
        format="webp",
        height=height,
        width=width,
        orientation=orientation,
        alpha=alpha,
        animated=animated,
        bitstream=bitstream,
        frame=frame,
    )


def plain_webp(data: torch.Tensor, header: WebpHeader) -> torch.Tensor:
    """Return a WebP with one chunk, the (first) frame's colours, without alpha and metadata.

    Returns:
        ``data`` itself if it is already of this kind, otherwise a copy: uint8 [num_bytes].
    """
    start, end = header.bitstream
    if start == 12:
        return data
    chunk = data[start:end]
    padding = chunk.numel() % 2
    riff = b"RIFF" + pack("<I", 4 + chunk.numel() + padding) + b"WEBP"
    parts = [torch.frombuffer(bytearray(riff), dtype=torch.uint8), chunk]
    return torch.cat(parts + [chunk.new_zeros(1)] * padding)


def on_canvas(image: torch.Tensor, header: WebpHeader) -> torch.Tensor:
    """Put an animation's first frame on a black canvas."""
    top, left, height, width = header.frame
    if (height, width) == header.stored_size or image.shape != (3, height, width):
        return image
    canvas = image.new_zeros((*header.stored_size, 3)).permute(2, 0, 1)
    canvas[:, top : top + height, left : left + width] = image
    return canvas


def _chunks(view: memoryview, at: int, length: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield (kind, start, end) of each chunk's payload."""
    for _ in range(MAX_SEGMENTS):
        if at + 8 > length:
            return
        kind, size = unpack_from("<4sI", view, at)
        start, end = at + 8, at + 8 + size
        if end > length:
            raise ValueError(
                f"truncated WebP: chunk {kind!r} at byte {at} claims {size} bytes, "
                f"{length - start} follow"
            )
        yield kind, start, end
        at = end + size % 2
    raise ValueError(f"WebP with more than {MAX_SEGMENTS} chunks")


def _bitstream_size(view: memoryview, kind: bytes, start: int, end: int) -> tuple[int, int, bool]:
    """Return (height, width, alpha) of a VP8 or VP8L chunk."""
    if (
        kind == b"VP8 "
        and end - start >= 10
        and bytes(view[start + 3 : start + 6]) == b"\x9d\x01\x2a"
    ):
        width, height = unpack_from("<HH", view, start + 6)
        return height & 0x3FFF, width & 0x3FFF, False
    if kind == b"VP8L" and end - start >= 5 and view[start] == 0x2F:
        (bits,) = unpack_from("<I", view, start + 1)
        return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF), bool(bits >> 28 & 1)
    raise ValueError(f"WebP with a chunk {kind!r} of {end - start} bytes that starts no image")


def _read_frame(view: memoryview, start: int, end: int) -> tuple[tuple[int, int], Frame]:
    """Return the span of an ANMF chunk's bitstream, and the frame's place on the canvas."""
    if end - start < FRAME_HEADER:
        raise ValueError(f"WebP with an ANMF chunk of {end - start} bytes")
    left, top, width, height = (_read_24_bits(view, start + offset) for offset in (0, 3, 6, 9))
    frame = 2 * top, 2 * left, height + 1, width + 1
    for kind, inner_start, inner_end in _chunks(view, start + FRAME_HEADER, end):
        if kind in (b"VP8 ", b"VP8L"):
            size = _bitstream_size(view, kind, inner_start, inner_end)[:2]
            if size != frame[2:]:
                raise ValueError(f"WebP frame of {frame[2:]} pixels that holds {size}")
            return (inner_start - 8, inner_end), frame
    raise ValueError("WebP with an ANMF chunk that holds no image")


def _check_frame(frame: Frame, height: int, width: int, animated: bool) -> None:
    top, left, frame_height, frame_width = frame
    inside = top + frame_height <= height and left + frame_width <= width
    if (
        max(height, width) > MAX_SIDE
        or not inside
        or not (animated or (frame_height, frame_width) == (height, width))
    ):
        raise ValueError(
            f"WebP canvas of {height} x {width} pixels with an image of "
            f"{frame_height} x {frame_width} at ({top}, {left})"
        )


def _read_24_bits(view: memoryview, at: int) -> int:
    return view[at] | view[at + 1] << 8 | view[at + 2] << 16

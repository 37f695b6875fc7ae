"""ImageHeader: properties of an encoded image that are known before decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ImageFormat = Literal["jpeg", "png", "webp", "ppm"]


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Fields of every format; subclasses add their own."""

    format: ImageFormat
    height: int
    """Height in pixels, with the orientation applied."""
    width: int
    """Width in pixels, with the orientation applied."""
    orientation: int
    """EXIF orientation, 1 to 8; 1 if it is missing or invalid."""

    @property
    def progressive(self) -> bool:
        """Whether a JPEG's coefficients come in several passes over the image."""
        return False

    @property
    def stored_size(self) -> tuple[int, int]:
        """(height, width) in pixels as encoded, before the orientation is applied.

        >>> ImageHeader("png", height=40, width=30, orientation=6).stored_size
        (30, 40)
        """
        if self.orientation >= 5:
            return self.width, self.height
        return self.height, self.width


@dataclass(frozen=True, slots=True)
class JpegHeader(ImageHeader):
    """A JPEG's frame header (ITU-T T.81 B.2.2)."""

    components: int
    """1 for grey, 3 for colour, 4 for CMYK and YCCK."""
    color: Literal["grey", "ycbcr", "rgb", "cmyk", "ycck"]
    """Meaning of the components, derived from the JFIF and Adobe markers as libjpeg does."""
    precision: int
    """Bits per sample: 8 in all but medical images."""
    process: int
    """The SOF marker's second byte: 0xC0 baseline, 0xC1 extended, 0xC2 progressive, ..."""
    subsampling: str
    """``"4:4:4"``, ``"4:2:2"``, ``"4:2:0"``, ``"4:4:0"``, ``"4:1:1"``, ``"4:1:0"``, ``"other"``;
    ``"4:0:0"`` if there is one component."""
    single_scan: bool
    """Whether the first scan holds every component."""
    exif_spans: tuple[tuple[int, int], ...]
    """(start, end) in bytes of each APP1 segment, its marker included."""
    scan_start: int
    """Bytes before the entropy-coded data of the first scan."""

    @property
    def has_common_pixels(self) -> bool:
        """Whether a pixel is 8 bits of grey or of YCbCr, as in nearly all JPEGs."""
        return self.precision == 8 and self.color in ("grey", "ycbcr")

    @property
    def progressive(self) -> bool:
        return self.process in (0xC2, 0xC6, 0xCA, 0xCE)

    def without_exif(self) -> JpegHeader:
        """Return the header of the same JPEG without its APP1 segments.

        ``dataclasses.replace`` would take three times as long.
        """
        return JpegHeader(
            self.format,
            self.height,
            self.width,
            self.orientation,
            self.components,
            self.color,
            self.precision,
            self.process,
            self.subsampling,
            self.single_scan,
            (),
            self.scan_start - sum(end - start for start, end in self.exif_spans),
        )


@dataclass(frozen=True, slots=True)
class PngHeader(ImageHeader):
    """A PNG's IHDR chunk."""

    bit_depth: int
    """Bits per sample or palette index: 1, 2, 4, 8 or 16."""
    color_type: int
    """0 grey, 2 RGB, 3 palette, 4 grey with alpha, 6 RGB with alpha."""
    interlaced: bool
    """Whether the pixels are stored in the seven passes of Adam7."""


@dataclass(frozen=True, slots=True)
class WebpHeader(ImageHeader):
    """A WebP's VP8X, VP8 or VP8L header."""

    alpha: bool
    animated: bool
    bitstream: tuple[int, int]
    """(start, end) in bytes of the chunk, VP8 or VP8L, that holds the (first) frame's colours."""
    frame: tuple[int, int, int, int]
    """(top, left, height, width) in pixels of that frame on the canvas, before orientation."""


@dataclass(frozen=True, slots=True)
class PpmHeader(ImageHeader):
    """A binary PPM's header."""

    start: int
    """Bytes before the pixels."""


MAX_DECODED_BYTES = 2**31
"""Largest size in bytes of a decoded image; a larger one is broken or a decompression bomb."""

MAX_SEGMENTS = 10_000
"""Maximum number of segments or chunks in a header."""


def check_size(
    name: str, height: int, width: int, *, bytes_a_pixel: int = 3, most_pixels: int | None = None
) -> None:
    """Raise ValueError if an image of this size must not be decoded.

    Args:
        name: name of the format, for the message.
        height: in pixels.
        width: in pixels.
        bytes_a_pixel: bytes per pixel while decoding.
        most_pixels: most pixels that a file of this length can hold; None if unbounded.

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

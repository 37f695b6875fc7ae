"""Which images a GPU (or DALI) decodes: a pure function of the header."""

from __future__ import annotations

import torch

from stateful_gpu_loader.decoders.header import ImageHeader, JpegHeader

BASELINE, PROGRESSIVE = 0xC0, 0xC2
"""The frames (ITU-T T.81, table B.1) that nvJPEG decodes: 8 bits, Huffman-coded."""

SUBSAMPLINGS = frozenset({"4:0:0", "4:4:4", "4:2:2", "4:2:0", "4:4:0"})
"""What the JPEG engines of a GPU take; nvJPEG's CUDA kernels take a few rare ones more."""


def is_common_jpeg(header: ImageHeader) -> bool:
    """Whether this is a JPEG as cameras, phones and libraries write them.

    True of 8-bit JPEGs, baseline in one scan or progressive, grey or YCbCr. False of what some
    part of nvJPEG cannot decode, or decodes to other colours than libjpeg: CMYK, YCCK and RGB
    inside, 12 bits, arithmetic coding, extended or lossless frames, baseline in several scans,
    4:1:1 and rarer subsamplings; and of PNG, WebP and PPM. Those are decoded on the CPU.

    >>> from stateful_gpu_loader.decoders import PngHeader
    >>> is_common_jpeg(PngHeader("png", 4, 4, 1, bit_depth=8, color_type=2, interlaced=False))
    False
    """
    return (
        isinstance(header, JpegHeader)
        and header.precision == 8
        and header.color in ("grey", "ycbcr")
        and header.subsampling in SUBSAMPLINGS
        and (header.process == PROGRESSIVE or (header.process == BASELINE and header.single_scan))
    )


def takes_common(header: ImageHeader, data: torch.Tensor) -> bool:
    """As a decoder's ``takes``: :func:`is_common_jpeg`."""
    return is_common_jpeg(header)


def takes_baseline(header: ImageHeader, data: torch.Tensor) -> bool:
    """As a decoder's ``takes``: :func:`is_common_jpeg`, and not progressive.

    For backends that decode progressive JPEGs one after the other in the calling thread, where
    the workers decode them side by side.
    """
    return is_common_jpeg(header) and isinstance(header, JpegHeader) and not header.progressive

"""Decoders: encoded bytes to pixels, by one rule whatever the backend.

The rule, for JPEG, PNG, WebP and binary PPM:

- The result is RGB, uint8 [3, height, width].
- The EXIF orientation (JPEG APP1, PNG eXIf before the pixels, WebP EXIF), 1 to 8, is applied.
  XMP and other metadata are not looked at.
- Grey is replicated to three channels.
- Alpha is dropped, not composited: a transparent pixel shows the colour stored in it.
- A palette is looked up; 1, 2 and 4 bits are spread over 0 to 255.
- 16 bits become 8 by ``round(value * 255 / 65535)``.
- CMYK and YCCK are taken as Adobe writes them, inverted: ``red = cyan * black / 255``.
- Colour profiles and gamma are ignored.
- Of an animation comes the first frame, on black where it does not fill the canvas.
- A JPEG without an end-of-image marker is truncated and refused, as is a PNG whose pixels fail
  their checksum.

On the CPU, backends agree to the pixel where their libjpeg-turbo does. A GPU's decoder differs by
a few levels, most at edges of colour. It decodes common JPEGs, and the CPU all else
(``batch_rule.py``); docs/decoders.md compares them. The promise of exact resume is per
decoder family.
"""

from stateful_gpu_loader.decoders.decoder import BatchDecoder, Decoder
from stateful_gpu_loader.decoders.header import (
    ImageHeader,
    JpegHeader,
    PngHeader,
    PpmHeader,
    WebpHeader,
)
from stateful_gpu_loader.decoders.probe import probe
from stateful_gpu_loader.decoders.registry import (
    BATCH_DECODERS,
    DECODER_NAMES,
    DECODERS,
    available,
    make_batch_decoder,
    make_decoder,
)

__all__ = [
    "BATCH_DECODERS",
    "DECODERS",
    "DECODER_NAMES",
    "BatchDecoder",
    "Decoder",
    "ImageHeader",
    "JpegHeader",
    "PngHeader",
    "PpmHeader",
    "WebpHeader",
    "available",
    "make_batch_decoder",
    "make_decoder",
    "probe",
]

"""Image decoders: every backend decodes encoded bytes to pixels by the same rule.

The rule covers JPEG, PNG, WebP and binary PPM:

- The result is RGB, uint8 [3, height, width].
- The EXIF orientation (JPEG APP1, PNG eXIf before the pixels, WebP EXIF), 1 to 8, is applied.
  XMP and other metadata are ignored.
- Grey is replicated to three channels.
- Alpha is dropped, not composited: a transparent pixel shows the colour stored in it.
- A palette is looked up; 1, 2 and 4 bits are scaled to 0 to 255.
- 16 bits become 8 by ``round(value * 255 / 65535)``.
- CMYK and YCCK are inverted, as Adobe writes them: ``red = cyan * black / 255``.
- Colour profiles and gamma are ignored.
- An animation gives its first frame, on black if the frame does not fill the canvas.
- A JPEG without an end-of-image marker is refused, as is a PNG whose pixels fail their checksum.

CPU backends with the same libjpeg-turbo give identical pixels. A GPU decoder differs by a few
levels, most at colour edges. The GPU decodes common JPEGs, and the CPU everything else
(``batch_rule.py``). Exact resume is promised within a decoder family.
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

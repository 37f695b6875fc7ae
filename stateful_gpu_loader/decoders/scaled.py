"""ScaledDecoder: JPEGs at a half, a quarter or an eighth of their size, with a scaled DCT."""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np
import torch

from stateful_gpu_loader.decoders.decoder import Box, Decoder, Size, as_tensor
from stateful_gpu_loader.decoders.header import ImageHeader, JpegHeader
from stateful_gpu_loader.decoders.jpeg import PROGRESSIVE, is_one_clean_scan
from stateful_gpu_loader.decoders.machine import load_package, package_versions
from stateful_gpu_loader.decoders.orientation import stored_box, turned
from stateful_gpu_loader.decoders.rule import without_exif

SCALES = (8, 4, 2)
"""Denominators of the scales, smallest image first."""


class ScaledDecoder(Decoder):
    """Wraps a decoder, and decodes JPEGs that will be shrunk at a smaller scale.

    The scale is the smallest of 1/2, 1/4 and 1/8 at which the part is at least as large as its size
    after the resize. Pillow decodes the scaled parts (``Image.draft``), and the other decoder
    everything else as a whole, damaged files included.

    Args:
        decoder: the other decoder.

    Raises:
        MissingDependency: Pillow is not installed.

    >>> from stateful_gpu_loader.decoders import make_decoder
    >>> ScaledDecoder(make_decoder("torchvision")).family
    'torchvision, scaled_decoding=True'
    """

    def __init__(self, decoder: Decoder) -> None:
        _jpeg_file()
        self.family = f"{decoder.family}, scaled_decoding=True"
        self._decoder = decoder

    def version(self) -> str:
        """Return the versions of the other decoder and of Pillow, which brings its own libjpeg."""
        return ", ".join([self._decoder.version(), *package_versions("pillow")])

    def decode(self, data: torch.Tensor, header: ImageHeader) -> torch.Tensor:
        """See :meth:`Decoder.decode`."""
        return self._decoder.decode(data, header)

    def decode_part(
        self, data: torch.Tensor, header: ImageHeader, box: Box, least: Size | None
    ) -> torch.Tensor:
        """See :meth:`Decoder.decode_part`."""
        scale = 1 if least is None else scale_of(box, least)
        if scale > 1 and isinstance(header, JpegHeader) and header.has_common_pixels:
            image = _scaled(data, header, box, scale)
            if image is not None:
                return image
        return self._decoder.decode_part(data, header, box, None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._decoder!r})"


def scale_of(box: Box, least: Size) -> int:
    """Return the denominator of the scale: 8, 4, 2 or 1.

    >>> scale_of((0, 0, 900, 1200), (224, 224)), scale_of((0, 0, 900, 447), (224, 224))
    (4, 1)
    """
    _, _, height, width = box
    for scale in SCALES:
        if height >= scale * least[0] and width >= scale * least[1]:
            return scale
    return 1


def _scaled(data: torch.Tensor, header: JpegHeader, box: Box, scale: int) -> torch.Tensor | None:
    """Return uint8 [3, h, w] of a box at a scale, with rounded edges; None if Pillow refuses it.

    libjpeg reads all scans of a progressive file first.
    """
    if header.process != PROGRESSIVE and not is_one_clean_scan(data.numpy(), header):
        return None
    stored_height, stored_width = header.stored_size
    size = header.height, header.width
    top, left, height, width = stored_box(box, size, header.orientation)
    # Halves are rounded up, so no part becomes too small.
    edges = left, top, left + width, top + height
    corners = tuple((2 * edge + scale) // (2 * scale) for edge in edges)
    try:
        file = _jpeg_file()(io.BytesIO(without_exif(data, header).numpy().data))
        file.draft("RGB", (stored_width // scale, stored_height // scale))
        if file.size != (-(-stored_width // scale), -(-stored_height // scale)):
            return None
        part = file.crop(corners).convert("RGB")
    except (OSError, SyntaxError, ValueError):
        return None
    image = torch.from_numpy(np.array(part)).permute(2, 0, 1)
    return as_tensor(turned(image, header.orientation))


@functools.cache
def _jpeg_file() -> Any:
    """Return Pillow's class of JPEG files, without ``Image.open``'s search."""
    return load_package(
        _load,
        module="PIL",
        package="pillow",
        needed_for="scaled_decoding=True",
        extra="cli",
        remedy="a Pillow that can be imported",
    )


def _load() -> Any:
    from PIL.JpegImagePlugin import JpegImageFile

    return JpegImageFile

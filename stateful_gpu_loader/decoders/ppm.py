"""PPM: uncompressed pixels after a short text header (Netpbm's "P6", 8 bits)."""

from __future__ import annotations

import re

import torch

from stateful_gpu_loader.decoders.header import PpmHeader, check_size

PPM_SIGNATURE = b"P6"
MAX_HEADER = 1024
"""Largest length in bytes of the text before the pixels, comments included."""

_SPACE = rb"(?:[ \t\r\n\v\f]|#[^\r\n]*[\r\n])+"
_HEADER = re.compile(
    rb"P6" + _SPACE + rb"(\d{1,9})" + _SPACE + rb"(\d{1,9})" + _SPACE + rb"(\d{1,5})[ \t\r\n\v\f]"
)


def read_ppm_header(view: memoryview) -> PpmHeader:
    """Return the header of the PPM in ``view``, which starts with the PPM signature.

    Raises:
        ValueError: the text is not a PPM header, the pixels do not have 8 bits, or bytes are
            missing.
    """
    found = _HEADER.match(bytes(view[:MAX_HEADER]))
    if found is None:
        raise ValueError(
            f"PPM without width, height and maximum within {MAX_HEADER} bytes: truncated, or a "
            "broken header"
        )
    width, height, maximum = map(int, found.groups())
    if maximum != 255:
        raise ValueError(
            f"PPM with values up to {maximum}, and only 255 is supported. Remedy: convert it to PNG"
        )
    start = found.end()
    check_size("PPM", height, width, most_pixels=(len(view) - start) // 3)
    return PpmHeader(format="ppm", height=height, width=width, orientation=1, start=start)


def ppm_pixels(data: torch.Tensor, header: PpmHeader) -> torch.Tensor:
    """Return the pixels of a PPM: uint8 [3, height, width], a view of its bytes.

    Args:
        data: uint8 [num_bytes], on any device.
        header: result of :func:`read_ppm_header` for ``data``.

    >>> data = torch.tensor(list(b"P6 1 1 255 " + bytes([1, 2, 3])), dtype=torch.uint8)
    >>> ppm_pixels(data, read_ppm_header(data.numpy().data)).flatten()
    tensor([1, 2, 3], dtype=torch.uint8)
    """
    shape = header.height, header.width, 3
    pixels = data[header.start : header.start + header.height * header.width * 3]
    return pixels.view(shape).permute(2, 0, 1)

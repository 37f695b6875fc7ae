"""The decoding rule around the raw operators of any backend."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from stateful_gpu_loader.decoders.decoder import as_tensor
from stateful_gpu_loader.decoders.header import (
    ImageHeader,
    JpegHeader,
    PngHeader,
    PpmHeader,
    WebpHeader,
)
from stateful_gpu_loader.decoders.orientation import turned
from stateful_gpu_loader.decoders.png import plain_png
from stateful_gpu_loader.decoders.ppm import ppm_pixels
from stateful_gpu_loader.decoders.webp import on_canvas, plain_webp
from stateful_gpu_loader.errors import LoaderError

RawOperator = Callable[[torch.Tensor, int], torch.Tensor]
"""(uint8 [num_bytes], mode) -> [3, height, width]: a registered operator that decodes a file."""

RGB = 3
"""``ImageReadMode.RGB``, the mode of torchvision's and torchcodec's operators."""

OUT_OF_MEMORY = re.compile(
    r"allocate memory|(out of|insufficient) memory|memory allocation|bad_alloc", re.IGNORECASE
)
"""Messages of torch, libjpeg, libpng and nvJPEG."""

NO_CAUSE = re.compile(r"API call failed at .*, line \d+$", re.MULTILINE)
"""torchcodec's message with torch before 2.13, whatever call failed: usually for missing memory,
never because of the bytes."""

_SPARE_BYTES = 2**20
"""Maximum number of bytes of working memory besides a small image."""

_SOURCE_LOCATION = re.compile(r"^\S+, \S+:\d+, ")
"""Place in the operator's C++ source, at the start of its message."""


def raw_operators(namespace: Any) -> dict[str, RawOperator]:
    """Return the operators of ``torch.ops.image``, or of a namespace with the same names."""
    return {name: getattr(namespace, f"decode_{name}").default for name in ("jpeg", "png", "webp")}


def decode_by_rule(
    operators: Mapping[str, RawOperator], data: torch.Tensor, header: ImageHeader
) -> torch.Tensor:
    """Decode an image by the rule, with an operator for each format.

    Args:
        operators: one each for ``"jpeg"``, ``"png"`` and ``"webp"``. A JPEG's APP1 segments are
            removed for operators that would act on them. Other formats are reduced to their
            colours.
        data: uint8 [num_bytes] on the CPU, contiguous.
        header: ``probe``'s result for ``data``.

    Returns:
        uint8 [3, header.height, header.width].

    Raises:
        ValueError: the operator cannot decode the bytes, or the image does not match the header.
        RuntimeError: there is not enough memory; the bytes are not the cause.
        LoaderError: the operator failed without a reason.
    """
    if isinstance(header, PpmHeader):
        return ppm_pixels(data, header).clone()
    if isinstance(header, PngHeader):
        data = plain_png(data, header)
    elif isinstance(header, WebpHeader):
        data = plain_webp(data, header)
    try:
        image = operators[header.format](data, RGB)
    except RuntimeError as error:
        reason = reason_of(error)
        if OUT_OF_MEMORY.search(reason):
            raise
        _check_memory(header)
        if NO_CAUSE.search(reason):
            raise without_cause(header, reason) from error
        raise ValueError(f"{header.format.upper()} cannot be decoded: {reason}") from error
    if image.dtype == torch.uint16:
        image = to_8_bits(image)
    if isinstance(header, WebpHeader):
        image = on_canvas(image, header)
    if header.orientation != 1:
        image = as_tensor(turned(image, header.orientation))
    if image.shape != (3, header.height, header.width):
        raise ValueError(
            f"{header.format.upper()} decoded to {list(image.shape)}, its header says "
            f"{[3, header.height, header.width]}"
        )
    return image


def reason_of(error: RuntimeError) -> str:
    """Return the first line of an operator's message, without its place in the C++ source."""
    return _SOURCE_LOCATION.sub("", str(error).partition("\n")[0])


def without_cause(header: ImageHeader, reason: str) -> LoaderError:
    """Return the error for an image refused without a reason, which may be undamaged."""
    return LoaderError(
        f"an image of {header.height} x {header.width} pixels could not be decoded, and its "
        f"decoder does not say why: {reason}. It is not counted as a bad sample. Remedy: if memory "
        "is short, use a smaller batch or fewer workers; torch >= 2.13 says the cause"
    )


def _check_memory(header: ImageHeader) -> None:
    """Check whether memory may be missing, because libraries may give no reason.

    Raises:
        RuntimeError: the memory for the image cannot be allocated.
    """
    torch.empty(4 * 3 * header.height * header.width + _SPARE_BYTES, dtype=torch.uint8)


def without_exif(data: torch.Tensor, header: JpegHeader) -> torch.Tensor:
    """Return a JPEG without its APP1 segments.

    Returns:
        ``data`` itself if there are none, otherwise a copy: uint8 [num_bytes].
    """
    if not header.exif_spans:
        return data
    starts = [0, *(end for _, end in header.exif_spans)]
    ends = [*(start for start, _ in header.exif_spans), data.numel()]
    return torch.cat([data[start:end] for start, end in zip(starts, ends, strict=True)])


def to_8_bits(image: torch.Tensor) -> torch.Tensor:
    """Return ``round(value * 255 / 65535)`` of each value, as libpng's png_set_scale_16 does.

    Args:
        image: uint16, any shape.

    Returns:
        uint8, the same shape.

    >>> to_8_bits(torch.tensor([0, 128, 129, 65535], dtype=torch.uint16))
    tensor([  0,   0,   1, 255], dtype=torch.uint8)
    """
    return ((image.to(torch.int32) * 255 + 32767) // 65535).to(torch.uint8)

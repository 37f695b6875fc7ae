"""The rule of this room, around the raw operators of any backend."""

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
"""The mode of torchvision's and torchcodec's operators, their ``ImageReadMode.RGB``."""

OUT_OF_MEMORY = re.compile(
    r"allocate memory|(out of|insufficient) memory|memory allocation|bad_alloc", re.IGNORECASE
)
"""As torch, libjpeg, libpng and nvJPEG say it."""

NO_CAUSE = re.compile(r"API call failed at .*, line \d+$", re.MULTILINE)
"""What torchcodec says with a torch below 2.13, whatever call failed: most often for want of
memory, never because of the bytes. Later versions name the cause, followed by this in
parentheses."""

_SPARE_BYTES = 2**20
"""What a library's working memory may come to beside a small image."""

_SOURCE_LOCATION = re.compile(r"^\S+, \S+:\d+, ")
"""Where in its C++ the operator failed, which its message begins with."""


def raw_operators(namespace: Any) -> dict[str, RawOperator]:
    """The operators of ``torch.ops.image``, or of a namespace with the same names."""
    return {name: getattr(namespace, f"decode_{name}").default for name in ("jpeg", "png", "webp")}


def decode_by_rule(
    operators: Mapping[str, RawOperator], data: torch.Tensor, header: ImageHeader
) -> torch.Tensor:
    """Pixels by the rule, from operators that each know a format and nothing else of the rule.

    Args:
        operators: one for each of ``"jpeg"``, ``"png"`` and ``"webp"``. A JPEG's APP1 segments,
            and all but the colours of other formats, are removed before an operator that could
            act on them sees the bytes.
        data: uint8 [num_bytes] on the CPU, contiguous.
        header: what ``probe`` says of ``data``.

    Returns:
        uint8 [3, header.height, header.width].

    Raises:
        ValueError: the operator cannot decode the bytes, or they hold another image than the
            header says.
        RuntimeError: there is no memory, for which the bytes are not to blame.
        LoaderError: the operator failed for a reason that it does not say.
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
    """Return the first line of an operator's message, without the place in its C++."""
    return _SOURCE_LOCATION.sub("", str(error).partition("\n")[0])


def without_cause(header: ImageHeader, reason: str) -> LoaderError:
    """The error for an image that was refused without a reason, and that may be sound."""
    return LoaderError(
        f"an image of {header.height} x {header.width} pixels could not be decoded, and its "
        f"decoder does not say why: {reason}. It is not taken for a bad sample. Remedy: if memory "
        "is short, a smaller batch or fewer workers; torch >= 2.13 says the cause"
    )


def _check_memory(header: ImageHeader) -> None:
    """Libraries refuse images in the same words for damage and for want of memory.

    Raises:
        RuntimeError: what the image needs cannot be had, so that nothing is known of its bytes.
    """
    torch.empty(4 * 3 * header.height * header.width + _SPARE_BYTES, dtype=torch.uint8)


def without_exif(data: torch.Tensor, header: JpegHeader) -> torch.Tensor:
    """A JPEG without its APP1 segments, for an operator that would act on them.

    Returns:
        ``data`` itself where there are none, otherwise a copy: uint8 [num_bytes].
    """
    if not header.exif_spans:
        return data
    starts = [0, *(end for _, end in header.exif_spans)]
    ends = [*(start for start, _ in header.exif_spans), data.numel()]
    return torch.cat([data[start:end] for start, end in zip(starts, ends, strict=True)])


def to_8_bits(image: torch.Tensor) -> torch.Tensor:
    """``round(value * 255 / 65535)`` of each value, as libpng's png_set_scale_16 does it.

    Args:
        image: uint16, any shape.

    Returns:
        uint8, the same shape.

    >>> to_8_bits(torch.tensor([0, 128, 129, 65535], dtype=torch.uint16))
    tensor([  0,   0,   1, 255], dtype=torch.uint8)
    """
    return ((image.to(torch.int32) * 255 + 32767) // 65535).to(torch.uint8)

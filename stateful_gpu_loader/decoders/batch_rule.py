"""The rule of this room, around operators that decode whole batches of JPEGs.

The same bytes always get the same answer, whatever batch they are in. So an image
that does not come out of a batch is tried again by itself, on the same backend, and only that
verdict counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch

from stateful_gpu_loader.decoders.header import ImageHeader
from stateful_gpu_loader.decoders.orientation import turned
from stateful_gpu_loader.decoders.rule import (
    NO_CAUSE,
    OUT_OF_MEMORY,
    SOURCE_LOCATION,
    without_cause,
)
from stateful_gpu_loader.decoders.strided_image import Image
from stateful_gpu_loader.decoders.unfilled_memory import unfilled_memory
from stateful_gpu_loader.errors import LoaderError

RawBatch = Callable[[list[torch.Tensor]], Sequence[Image | None]]
"""Encoded images to uint8 [3, height, width] each, as stored: no orientation applied. None in place
of one that cannot be decoded, or RuntimeError for all of them."""

NO_MEMORY = re.compile(rf"{OUT_OF_MEMORY.pattern}|cudaErrorMemoryAllocation|: 5$", re.IGNORECASE)
"""5 is nvJPEG's ALLOCATOR_FAILURE, which ends the operators' messages."""

NO_FAULT_OF_THE_BYTES = re.compile(
    r"CUDA error|cudaError|CUDA (runtime|driver) API error|not compiled|Failed to create|"
    r"initialize nvjpeg|synchronize|driver|: [17]$"
)
"""1 and 7 are nvJPEG's NOT_INITIALIZED and ARCH_MISMATCH."""

SPARE_BYTES = 2**26
"""What a decoder's working memory may come to beside the pixels."""


def decode_batch_by_rule(
    decode: RawBatch, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
) -> list[Image | ValueError]:
    """Pixels by the rule, each image judged by itself.

    Args:
        decode: the backend, which knows nothing of the rule.
        data: uint8 [num_bytes] each, on the CPU: images that the backend takes.
        headers: what ``probe`` says of each.

    Returns:
        uint8 [3, header.height, header.width] each, where ``decode`` puts them; a ValueError in
        place of each that ``decode`` refuses when it is alone.

    Raises:
        torch.OutOfMemoryError, RuntimeError: there is no memory.
        LoaderError: the backend does not work here, whatever the bytes are.
    """
    images = _decoded(decode, data, headers)
    return [_by_rule(image, header) for image, header in zip(images, headers, strict=True)]


def wait_for_the_stream(device: torch.device) -> None:
    """Blocks the host until all that is queued on the current stream of ``device`` is done.

    nvJPEG's engines write when they are called, ahead of what the stream still has to do with
    memory that was freed for the new pixels; no event holds them back, only this does.
    Errors that earlier work left on the device are raised here, before a decoder is blamed.
    """
    torch.cuda.current_stream(device).synchronize()


def with_index(device: torch.device) -> torch.device:
    """The device itself, or the current one where it has no index."""
    if device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


def _decoded(
    decode: RawBatch, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
) -> list[Image | None]:
    """None in place of each that is refused when it is alone.

    A batch of which nothing comes is halved, so that one bad image among 256 costs 16 calls more.
    """
    images = list(_attempt(decode, data, headers))
    half = len(data) // 2
    if half and all(image is None for image in images):
        return [
            *_decoded(decode, data[:half], headers[:half]),
            *_decoded(decode, data[half:], headers[half:]),
        ]
    for i, image in enumerate(images) if half else ():
        if image is None:
            (images[i],) = _attempt(decode, [data[i]], [headers[i]])
    return images


def _attempt(
    decode: RawBatch, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
) -> Sequence[Image | None]:
    """As ``decode``, but all None where it fails for reasons that may lie in the bytes."""
    if not data:
        return []
    try:
        with unfilled_memory():
            return decode(list(data))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = SOURCE_LOCATION.sub("", str(error).partition("\n")[0])
        if NO_MEMORY.search(reason):
            raise torch.OutOfMemoryError(f"no memory to decode images: {reason}") from error
        if NO_FAULT_OF_THE_BYTES.search(reason):
            raise LoaderError(
                f"images cannot be decoded on this GPU: {reason}. Remedy: pass another decoder=, "
                "see docs/decoders.md, or device=None"
            ) from error
        if NO_CAUSE.search(reason):
            largest = max(headers, key=lambda header: header.height * header.width)
            _check_memory(largest)
            raise without_cause(largest, reason) from error
        if torch.cuda.is_initialized():
            # Work that is queued may still write to memory that is free again.
            torch.cuda.current_stream().synchronize()
        return [None] * len(data)


def _by_rule(image: Image | None, header: ImageHeader) -> Image | ValueError:
    if image is None:
        _check_memory(header)
        return ValueError(
            f"{header.format.upper()} cannot be decoded: the batch decoder refuses it"
        )
    if image.shape != (3, *header.stored_size) or image.dtype != torch.uint8:
        return ValueError(
            f"{header.format.upper()} decoded to {image.dtype} {list(image.shape)}, its header "
            f"says {[3, *header.stored_size]}"
        )
    return turned(image, header.orientation)


def _check_memory(header: ImageHeader) -> None:
    """Not every backend says why it refuses an image: perhaps for want of memory.

    Raises:
        torch.OutOfMemoryError: the current device has less free than the image may need to be
            decoded, or torch may not take as much.
    """
    if not torch.cuda.is_initialized():
        return
    device = torch.cuda.current_device()
    needed = 4 * 3 * header.height * header.width + SPARE_BYTES
    free, total = torch.cuda.mem_get_info(device)
    if free < needed:
        raise torch.OutOfMemoryError(
            f"an image of {header.height} x {header.width} pixels was not decoded, and GPU "
            f"{device} may be out of memory: {free} of {total} bytes are free, {needed} may be "
            "needed. Remedy: a smaller batch or model; images of decoder='torchcodec' lie in "
            "torch's own memory"
        )
    # torch's own limit, torch.cuda.set_per_process_memory_fraction, shows in nothing else.
    torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(needed, device))

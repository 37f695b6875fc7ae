"""The decoding rule around batch operators, and the images that they accept.

The result for an image must not depend on its batch. So an image that fails in a batch is decoded
again alone.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from stateful_gpu_loader.decoders.decoder import Image
from stateful_gpu_loader.decoders.header import ImageHeader, JpegHeader
from stateful_gpu_loader.decoders.jpeg import BASELINE, PROGRESSIVE
from stateful_gpu_loader.decoders.orientation import turned
from stateful_gpu_loader.decoders.rule import NO_CAUSE, OUT_OF_MEMORY, reason_of, without_cause
from stateful_gpu_loader.errors import LoaderError

RawBatch = Callable[[list[torch.Tensor]], Sequence[Image | None]]
"""Encoded images to uint8 [3, height, width] each, as stored: no orientation applied. None stands
for an image that cannot be decoded. RuntimeError means that the whole batch failed."""

NO_MEMORY = re.compile(rf"{OUT_OF_MEMORY.pattern}|cudaErrorMemoryAllocation|: 5$", re.IGNORECASE)
"""5 is nvJPEG's ALLOCATOR_FAILURE, which ends the operators' messages."""

NO_FAULT_OF_THE_BYTES = re.compile(
    r"CUDA error|cudaError|CUDA (runtime|driver) API error|not compiled|Failed to create|"
    r"initialize nvjpeg|synchronize|driver|: [17]$"
)
"""1 and 7 are nvJPEG's NOT_INITIALIZED and ARCH_MISMATCH."""

SPARE_BYTES = 2**26
"""Maximum number of bytes of working memory besides the pixels."""


def decode_batch_by_rule(
    decode: RawBatch, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
) -> list[Image | ValueError]:
    """Decode a batch by the rule, with a separate result for each image.

    Args:
        decode: operator of the backend.
        data: uint8 [num_bytes] each, on the CPU: images that the backend takes.
        headers: ``probe``'s result for each image.

    Returns:
        uint8 [3, header.height, header.width] each, on the device of ``decode``; a ValueError for
        each image that ``decode`` refuses alone.

    Raises:
        torch.OutOfMemoryError, RuntimeError: there is not enough memory.
        LoaderError: the backend does not work here.
    """
    images = _decoded(decode, data, headers)
    return [_by_rule(image, header) for image, header in zip(images, headers, strict=True)]


def wait_for_the_stream(device: torch.device) -> None:
    """Block the host until all work queued on the current stream of ``device`` is done.

    nvJPEG's engines write at once, possibly to freed memory that the stream still uses. Errors of
    earlier work on the device are raised here, not blamed on a decoder.
    """
    torch.cuda.current_stream(device).synchronize()


def with_index(device: torch.device) -> torch.device:
    """Return the device, with the index of the current device if it has none."""
    if device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


def _decoded(
    decode: RawBatch, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
) -> list[Image | None]:
    """Decode a batch; None for each image that is refused alone.

    A failed batch is halved: one bad image among 256 costs 16 more calls.
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
    """Call ``decode``; return None for every image if it fails and the bytes may be the cause."""
    if not data:
        return []
    try:
        with unfilled_memory():
            return decode(list(data))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = reason_of(error)
        if NO_MEMORY.search(reason):
            raise torch.OutOfMemoryError(f"no memory to decode images: {reason}") from error
        if NO_FAULT_OF_THE_BYTES.search(reason):
            raise LoaderError(
                f"images cannot be decoded on this GPU: {reason}. Remedy: pass another decoder= "
                "(see docs/decoders.md) or device=None"
            ) from error
        if NO_CAUSE.search(reason):
            largest = max(headers, key=lambda header: header.height * header.width)
            _check_memory(largest)
            raise without_cause(largest, reason) from error
        if torch.cuda.is_initialized():
            # Queued work may still write to freed memory.
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
    """Check whether memory may be missing, because some backends give no reason.

    Raises:
        torch.OutOfMemoryError: the image may need more memory than the current device has free, or
            torch may take.
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
            "needed. Remedy: use a smaller batch or model, or decoder='torchcodec', which "
            "decodes into torch's own memory"
        )
    # Only an allocation shows torch.cuda.set_per_process_memory_fraction.
    torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(needed, device))


_SETTING: Any = torch.utils.deterministic


class _Unfilled:
    """Threads that need unfilled memory, and the setting before the first one entered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: list[int] = []
        """Identifiers of the threads inside, one per entry."""
        self._filled_before = False
        """Whether the setting must become True again."""

    def enter(self) -> None:
        with self._lock:
            if not self._threads:
                self._filled_before = _SETTING.fill_uninitialized_memory
            self._threads.append(threading.get_ident())
            _SETTING.fill_uninitialized_memory = False

    def leave(self) -> None:
        with self._lock:
            if threading.get_ident() in self._threads:  # an interrupt may come before ``enter``
                self._threads.remove(threading.get_ident())
                self._restore()

    def forget_other_threads(self) -> None:
        """Remove the parent's threads in a forked child."""
        self._lock = threading.Lock()
        here = threading.get_ident()
        self._threads = [thread for thread in self._threads if thread == here]
        self._restore()

    def _restore(self) -> None:
        # If the user set True in the meantime, it stays.
        if not self._threads and self._filled_before:
            _SETTING.fill_uninitialized_memory = True
            self._filled_before = False


_unfilled = _Unfilled()
os.register_at_fork(after_in_child=_unfilled.forget_other_threads)


@contextmanager
def unfilled_memory() -> Iterator[None]:
    """Keep torch from filling new memory, even with torch.use_deterministic_algorithms.

    The stream could fill the memory after nvJPEG's engines, which do not wait for it, have written.
    The setting belongs to the process: the first thread that enters saves it, the last one that
    leaves restores it, and in between ``torch.empty`` fills no memory in any thread.

    >>> import torch
    >>> with unfilled_memory():
    ...     torch.utils.deterministic.fill_uninitialized_memory
    False
    >>> torch.utils.deterministic.fill_uninitialized_memory
    True
    """
    try:
        _unfilled.enter()
        yield
    finally:
        _unfilled.leave()


SUBSAMPLINGS = frozenset({"4:0:0", "4:4:4", "4:2:2", "4:2:0", "4:4:0"})
"""Subsamplings that a GPU's JPEG engines accept; nvJPEG's CUDA kernels accept a few more."""


def is_common_jpeg(header: ImageHeader, data: torch.Tensor | None = None) -> bool:
    """Whether an image is a JPEG as cameras, phones and libraries write it.

    True for 8-bit JPEGs, baseline in one scan or progressive, grey or YCbCr. False for PNG, WebP,
    PPM, and JPEGs that a part of nvJPEG cannot decode, or decodes to other colours than libjpeg.
    These have CMYK, YCCK or RGB inside, 12 bits, arithmetic coding, extended or lossless frames,
    baseline in several scans, or 4:1:1 and rarer subsamplings. The arguments are those of
    :meth:`BatchDecoder.takes`.

    >>> from stateful_gpu_loader.decoders import PngHeader
    >>> is_common_jpeg(PngHeader("png", 4, 4, 1, bit_depth=8, color_type=2, interlaced=False))
    False
    """
    return (
        isinstance(header, JpegHeader)
        and header.has_common_pixels
        and header.subsampling in SUBSAMPLINGS
        and (header.process == PROGRESSIVE or (header.process == BASELINE and header.single_scan))
    )


def is_common_baseline(header: ImageHeader, data: torch.Tensor | None = None) -> bool:
    """Whether :func:`is_common_jpeg` holds and the JPEG is not progressive.

    Some backends decode progressive JPEGs one by one; workers decode them in parallel.
    """
    return is_common_jpeg(header) and not header.progressive

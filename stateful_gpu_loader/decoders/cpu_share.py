"""SharedOut: a GPU decoder that leaves a share of its images to the CPU."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Sequence
from functools import partial

import torch

from stateful_gpu_loader.decoders.decoder import BatchDecoder, Decoder, Image
from stateful_gpu_loader.decoders.header import ImageHeader

_BYTES = 64
"""Number of hashed bytes, from the middle of an image."""


class SharedOut:
    """Wraps a GPU decoder and leaves a share of its images to the CPU.

    CPU and GPU give different pixels, so an image's bytes decide between them, and the share is
    part of the family.

    Args:
        decoder: the GPU decoder.
        cpu_share: share of the images, from 0 to 1, that the CPU decodes.

    >>> from stateful_gpu_loader.decoders import make_batch_decoder
    >>> decoder = make_batch_decoder("torchvision", torch.device("cuda", 0))
    >>> SharedOut(decoder, 0.25).family
    'torchvision-cuda, cpu_share=0.25'
    """

    def __init__(self, decoder: BatchDecoder, cpu_share: float) -> None:
        self.family = f"{decoder.family}, cpu_share={float(cpu_share)}"
        self.acts_on_exif = decoder.acts_on_exif
        self.cpu: Decoder = decoder.cpu
        self.takes = partial(_takes, decoder.takes, cpu_share)
        self._decoder = decoder

    def version(self) -> str:
        return self._decoder.version()

    def decode_batch(
        self, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
    ) -> list[Image | ValueError]:
        return self._decoder.decode_batch(data, headers)

    def __copy__(self) -> SharedOut:
        return SharedOut(copy.copy(self._decoder), self.takes.args[1])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._decoder!r}, {self.takes.args[1]})"


def _takes(
    by_gpu: Callable[[ImageHeader, torch.Tensor], bool],
    cpu_share: float,
    header: ImageHeader,
    data: torch.Tensor,
) -> bool:
    return by_gpu(header, data) and fraction_of(data) >= cpu_share


def fraction_of(data: torch.Tensor) -> float:
    """Return a number in [0, 1) that depends on an encoded image's bytes alone.

    Args:
        data: uint8 [num_bytes] on the CPU.
    """
    middle = len(data) // 2
    return zlib.crc32(data[middle : middle + _BYTES].numpy().tobytes(), len(data)) / 2**32

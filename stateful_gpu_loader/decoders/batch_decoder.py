"""BatchDecoder: what every backend that decodes whole batches on a GPU offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from stateful_gpu_loader.decoders.decoder import Decoder
from stateful_gpu_loader.decoders.header import ImageHeader


class BatchDecoder(Protocol):
    """Encoded bytes to RGB pixels on a GPU, used by one thread; nothing begins before that does."""

    family: str
    """What a state's fingerprint keeps: ``"torchvision-cuda"``, ``"dali-cuda"``, ..."""

    cpu: Decoder
    """For what :meth:`takes` leaves, and what :meth:`decode_batch` refuses."""

    def version(self) -> str:
        """Of the library that decodes, and of the GPU; another one may change pixels."""
        ...

    def takes(self, header: ImageHeader, data: torch.Tensor) -> bool:
        """Whether the GPU decodes an image: a pure function of its header and bytes (law 1)."""
        ...

    def decode_batch(
        self, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
    ) -> list[torch.Tensor | ValueError]:
        """RGB pixels by the rule of :mod:`stateful_gpu_loader.decoders`.

        Args:
            data: uint8 [num_bytes] each, on the CPU, contiguous; they stay until the current
                stream has passed this call.
            headers: what ``probe`` says of each.

        Returns:
            uint8 [3, height, width] each, on the current device, of any strides; later work on
            the current stream may read them. A ValueError in place of one that is refused, which
            is decided image by image, whatever else is in the batch.

        Raises:
            RuntimeError: memory has run out, for which the bytes are not to blame.
        """
        ...

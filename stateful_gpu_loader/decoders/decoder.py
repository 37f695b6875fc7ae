"""What every backend that decodes offers: Decoder on the CPU, BatchDecoder on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from stateful_gpu_loader.decoders.header import ImageHeader
from stateful_gpu_loader.decoders.strided_image import Image


@runtime_checkable
class Decoder(Protocol):
    """Encoded bytes to RGB pixels on the CPU; stateless, thread-safe and picklable.

    >>> from stateful_gpu_loader.decoders import make_decoder
    >>> isinstance(make_decoder("torchvision"), Decoder)
    True
    """

    family: str
    """What a state's fingerprint keeps: ``"torchvision"``, ``"torchcodec"``, ..."""

    def version(self) -> str:
        """The version of the library that decodes; a change of it may change pixels."""
        ...

    def decode(self, data: torch.Tensor, header: ImageHeader) -> torch.Tensor:
        """RGB pixels by the rule of :mod:`stateful_gpu_loader.decoders`.

        Args:
            data: uint8 [num_bytes] on the CPU, contiguous.
            header: what :func:`probe` says of the same bytes.

        Returns:
            uint8 [3, header.height, header.width], of any strides: usually a view of HWC memory.

        Raises:
            ValueError: with the reason, whatever is wrong with the bytes.
        """
        ...


class BatchDecoder(Protocol):
    """Encoded bytes to RGB pixels on a GPU.

    A decoder is used by one thread, and CUDA is not touched before that thread decodes. For another
    thread ``copy.copy`` makes a decoder that gives the same pixels and shares nothing with it.
    """

    family: str
    """What a state's fingerprint keeps: ``"torchvision-cuda"``, ``"dali-cuda"``, ..."""

    acts_on_exif: bool
    """Whether its library reads a JPEG's APP1 segments, so that readers had better remove them."""

    cpu: Decoder
    """For images that :meth:`takes` says no to, or that :meth:`decode_batch` refuses."""

    def version(self) -> str:
        """The version of the library that decodes, and the GPU: a change may change pixels."""
        ...

    def takes(self, header: ImageHeader, data: torch.Tensor) -> bool:
        """Whether the GPU decodes an image: a pure function of its header and bytes."""
        ...

    def decode_batch(
        self, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
    ) -> list[Image | ValueError]:
        """RGB pixels by the rule of :mod:`stateful_gpu_loader.decoders`.

        Args:
            data: uint8 [num_bytes] each, on the CPU, contiguous; they stay until the current
                stream has passed this call.
            headers: what ``probe`` says of each.

        Returns:
            uint8 [3, height, width] each, on the current device, of any strides; later work on
            the current stream may read them. A StridedImage where a tensor would cost a call of
            torch. A ValueError in place of one that is refused, which is decided image by image,
            whatever else is in the batch.

        Raises:
            RuntimeError: memory has run out, for which the bytes are not to blame.
        """
        ...

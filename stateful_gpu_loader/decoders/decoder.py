"""Decoder: what every backend that turns encoded bytes into pixels offers."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

from stateful_gpu_loader.decoders.header import ImageHeader


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

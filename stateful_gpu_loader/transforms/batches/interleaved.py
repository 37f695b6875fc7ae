"""Interleaved: an image that becomes a tensor only where one is needed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Interleaved:
    """An image with interleaved colours in a flat tensor.

    It has what the fused launch asks of a tensor. Making a tensor [3, H, W] takes two calls of
    torch, and each of them may hand Python's lock to another thread: for hundreds of images that
    adds up to milliseconds.

    >>> image = Interleaved(torch.arange(12, dtype=torch.uint8), height=2, width=2)
    >>> image.tensor()[0]
    tensor([[0, 3],
            [6, 9]], dtype=torch.uint8)
    >>> (image.shape, image.stride()) == (image.tensor().shape, image.tensor().stride())
    True
    """

    memory: Tensor
    """uint8 [height * width * 3]."""
    height: int
    """Pixels."""
    width: int
    """Pixels."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8

    @property
    def device(self) -> torch.device:
        return self.memory.device

    @property
    def shape(self) -> tuple[int, int, int]:
        return 3, self.height, self.width

    def stride(self) -> tuple[int, int, int]:
        return 1, 3 * self.width, 3

    def data_ptr(self) -> int:
        """Return the address of the first pixel."""
        return self.memory.data_ptr()

    def tensor(self) -> Tensor:
        """Return a view of the memory, uint8 [3, height, width]."""
        return self.memory.view(self.height, self.width, 3).permute(2, 0, 1)


Image = Tensor | Interleaved
"""An image [C, H, W]."""


def as_tensor(image: Image) -> Tensor:
    """Return the image as a tensor."""
    return image.tensor() if isinstance(image, Interleaved) else image

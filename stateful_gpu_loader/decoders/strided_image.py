"""StridedImage: an image that becomes a tensor only where one is needed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class StridedImage:
    """An image in a tensor's memory, with strides that may be negative.

    It has what the fused launch asks of a tensor. Making the tensor takes calls of torch, and each
    of them may hand Python's lock to another thread: for hundreds of images that adds up to
    milliseconds.

    >>> memory = torch.arange(6, dtype=torch.uint8)
    >>> backwards = StridedImage(memory, (3, 1, 2), (1, 6, -3), start=3)
    >>> backwards.tensor()
    tensor([[[3, 0]],
    <BLANKLINE>
            [[4, 1]],
    <BLANKLINE>
            [[5, 2]]], dtype=torch.uint8)
    """

    memory: Tensor
    """uint8, of any shape."""
    shape: tuple[int, int, int]
    """Number of channels, and height and width in pixels."""
    strides: tuple[int, int, int]
    """Bytes from a value to that of the next channel, row and column."""
    start: int = 0
    """Bytes from the first value of the memory to the first one of the image."""

    @classmethod
    def of(cls, image: Image) -> StridedImage:
        """Return a StridedImage for a tensor, uint8 [C, H, W]; another one as it is."""
        if isinstance(image, StridedImage):
            return image
        channels, height, width = image.shape
        channel, row, column = image.stride()
        return cls(image, (channels, height, width), (channel, row, column))

    @classmethod
    def interleaved(cls, memory: Tensor, height: int, width: int) -> StridedImage:
        """Return the image whose pixels lie in ``memory`` one after the other, 3 bytes each."""
        return cls(memory, (3, height, width), (1, 3 * width, 3))

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8

    @property
    def device(self) -> torch.device:
        return self.memory.device

    def stride(self) -> tuple[int, int, int]:
        return self.strides

    def data_ptr(self) -> int:
        """Return the address of the first pixel."""
        return self.memory.data_ptr() + self.start

    def tensor(self) -> Tensor:
        """Return the image as a tensor: a view of the memory, or a copy if a stride is negative.

        A copy's memory keeps the order of the image's.
        """
        backwards = [axis for axis in range(3) if self.strides[axis] < 0]
        lowest = self.start + sum((self.shape[axis] - 1) * self.strides[axis] for axis in backwards)
        view = self.memory.as_strided(
            self.shape,
            [abs(stride) for stride in self.strides],
            self.memory.storage_offset() + lowest,
        )
        return view.flip(backwards) if backwards else view


Image = Tensor | StridedImage
"""An image [C, H, W]."""


def as_tensor(image: Image) -> Tensor:
    """Return the image as a tensor."""
    return image.tensor() if isinstance(image, StridedImage) else image

"""What every backend offers: Decoder on the CPU, BatchDecoder on a GPU, and StridedImage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from stateful_gpu_loader.decoders.header import ImageHeader

Size = tuple[int, int]
"""Height and width in pixels."""
Box = tuple[int, int, int, int]
"""Top, left, height and width in pixels of an image whose orientation is applied."""


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

    def decode_part(
        self, data: torch.Tensor, header: ImageHeader, box: Box, least: Size | None
    ) -> torch.Tensor:
        """RGB pixels of a part, as :meth:`decode` of the whole image shows it.

        The default decodes the whole image. A decoder that can decode a part alone overrides it.

        Args:
            data, header: as for :meth:`decode`.
            box: the part, not empty and inside the image.
            least: size that the part will be resized to; None if it is not resized.

        Returns:
            uint8 [3, height, width] of the box. A decoder whose family says that it scales may
            return the part smaller, but neither lower nor narrower than ``least``.

        Raises:
            ValueError: :meth:`decode` refuses the image. No part of a damaged image is decoded of
                which the whole is refused.
        """
        return part_of(self.decode(data, header), box)


def part_of(image: Tensor, box: Box) -> Tensor:
    """Return a box of an image [C, H, W]: a view.

    Raises:
        RuntimeError: the box lies outside.
    """
    top, left, height, width = box
    return image.narrow(1, top, height).narrow(2, left, width)


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

"""The interface of a backend: Decoder on the CPU, BatchDecoder on a GPU, and StridedImage."""

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
    """Decodes images to RGB pixels on the CPU; stateless, thread-safe and picklable.

    >>> from stateful_gpu_loader.decoders import make_decoder
    >>> isinstance(make_decoder("torchvision"), Decoder)
    True
    """

    family: str
    """Name in a state's fingerprint: ``"torchvision"``, ``"torchcodec"``, ..."""

    def version(self) -> str:
        """Return the version of the decoding library, on which pixels may depend."""
        ...

    def decode(self, data: torch.Tensor, header: ImageHeader) -> torch.Tensor:
        """Return RGB pixels by the rule of :mod:`stateful_gpu_loader.decoders`.

        Args:
            data: uint8 [num_bytes] on the CPU, contiguous.
            header: result of :func:`probe` for the same bytes.

        Returns:
            uint8 [3, header.height, header.width], of any strides: usually a view of HWC memory.

        Raises:
            ValueError: the bytes cannot be decoded.
        """
        ...

    def decode_part(
        self, data: torch.Tensor, header: ImageHeader, box: Box, least: Size | None
    ) -> torch.Tensor:
        """Return the RGB pixels of a part, equal to those of :meth:`decode`.

        The default decodes the whole image.

        Args:
            data, header: as for :meth:`decode`.
            box: the part, not empty and inside the image.
            least: size that the part will be resized to; None if it is not resized.

        Returns:
            uint8 [3, height, width] of the box. A decoder that works at a smaller scale may return
            a smaller part, but neither lower nor narrower than ``least``.

        Raises:
            ValueError: :meth:`decode` refuses the whole image, even if the part is undamaged.
        """
        return part_of(self.decode(data, header), box)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def part_of(image: Tensor, box: Box) -> Tensor:
    """Return a view of a box of an image [C, H, W].

    Raises:
        RuntimeError: the box lies outside the image.
    """
    top, left, height, width = box
    return image.narrow(1, top, height).narrow(2, left, width)


class BatchDecoder(Protocol):
    """Decodes batches of images to RGB pixels on a GPU.

    One thread uses a decoder, and CUDA is not touched before it decodes. For another thread,
    ``copy.copy`` makes an independent decoder with the same pixels.
    """

    family: str
    """Name in a state's fingerprint: ``"torchvision-cuda"``, ``"dali-cuda"``, ..."""

    acts_on_exif: bool
    """Whether the library reads a JPEG's APP1 segments, which readers should then remove."""

    cpu: Decoder
    """Decoder for images that :meth:`takes` or :meth:`decode_batch` refuses."""

    def version(self) -> str:
        """Return the version of the library, and the GPU models; a change may change pixels."""
        ...

    def takes(self, header: ImageHeader, data: torch.Tensor) -> bool:
        """Whether the GPU decodes an image: a pure function of the header and the bytes."""
        ...

    def decode_batch(
        self, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
    ) -> list[Image | ValueError]:
        """Return RGB pixels by the rule of :mod:`stateful_gpu_loader.decoders`.

        Args:
            data: uint8 [num_bytes] each, on the CPU, contiguous; the caller keeps them until the
                current stream has passed this call.
            headers: ``probe``'s result for each image.

        Returns:
            uint8 [3, height, width] each, on the current device, of any strides; later work on the
            current stream may read them. A StridedImage replaces a tensor that would cost a torch
            call, a ValueError a refused image. Other images in the batch do not affect the result.

        Raises:
            RuntimeError: memory has run out; the bytes are not the cause.
        """
        ...


@dataclass(frozen=True, slots=True)
class StridedImage:
    """An image in a tensor's memory, with strides that may be negative.

    It has the attributes that the fused launch reads. Tensors would take several torch calls each,
    milliseconds for hundreds of images.

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
    """Distance in bytes to the next channel, row and column."""
    start: int = 0
    """Offset in bytes of the image's first value from the start of the memory."""

    @classmethod
    def of(cls, image: Image) -> StridedImage:
        """Return a StridedImage of a tensor, uint8 [C, H, W]; a StridedImage is returned as is."""
        if isinstance(image, StridedImage):
            return image
        channels, height, width = image.shape
        channel, row, column = image.stride()
        return cls(image, (channels, height, width), (channel, row, column))

    @classmethod
    def interleaved(cls, memory: Tensor, height: int, width: int) -> StridedImage:
        """Return the image whose pixels lie in ``memory`` in sequence, 3 bytes each."""
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

        A copy has the image's memory order.
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

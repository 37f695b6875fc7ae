"""ToMemoryFormat: the same pixels, laid out in another order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.batches.placement import Placement
from stateful_gpu_loader.transforms.motion import at_rest
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, Recipe, nothing_drawn

_FORMATS = (torch.contiguous_format, torch.channels_last)


class ToMemoryFormat(Recipe):
    """Lay the batch out as ``images.to(memory_format=...)`` would; no pixel changes.

    Wherever it stands, the finished batch has the format of the last one.

    Args:
        memory_format: ``torch.contiguous_format``, or ``torch.channels_last``, which convolutions
            in half precision want.

    Raises:
        TypeError: it is no memory format.
        ValueError: it is another one than these two.

    >>> ToMemoryFormat(torch.channels_last).apply(torch.zeros(3, 4, 5), []).stride()
    (1, 15, 3)
    """

    def __init__(self, memory_format: torch.memory_format) -> None:
        if not isinstance(memory_format, torch.memory_format):
            raise TypeError(
                f"{memory_format = } of type {type(memory_format).__name__} is not supported. "
                "Remedy: pass torch.channels_last or torch.contiguous_format"
            )
        if memory_format not in _FORMATS:
            raise ValueError(f"{memory_format = } must be one of {_FORMATS}")
        self.memory_format = memory_format

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        return nothing_drawn(sizes)

    def motion(self, numbers: IndexArray | FloatArray, sizes: IndexArray) -> FloatArray:
        return at_rest(len(sizes))

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        if self.memory_format is torch.channels_last:
            return image.permute(1, 2, 0).contiguous().permute(2, 0, 1)
        return image.contiguous()

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        return images.contiguous(memory_format=self.memory_format)

    def place(self, placement: Placement, numbers: IndexArray | FloatArray) -> Placement:
        return placement

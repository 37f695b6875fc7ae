"""ToDtype: the same image in another dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.batches.pointwise import FLOATS, Pointwise
from stateful_gpu_loader.transforms.motion import at_rest
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, Recipe, nothing_drawn


class ToDtype(Recipe):
    """Convert the image, as ``torchvision.transforms.v2.ToDtype``.

    Args:
        dtype: what to convert to; v2's dict of types is not supported, since recipes see images
            only.
        scale: whether the range of values is brought along: integers fill theirs, floats [0, 1].

    Raises:
        TypeError: dtype is no ``torch.dtype``.

    >>> ToDtype(torch.float32, scale=True).apply(torch.tensor([[[51]]], dtype=torch.uint8), [])
    tensor([[[0.2000]]])
    """

    def __init__(self, dtype: torch.dtype, scale: bool = False) -> None:
        if not isinstance(dtype, torch.dtype):
            raise TypeError(
                f"{dtype = } of type {type(dtype).__name__} is not supported. Remedy: pass the "
                "image's dtype, such as torch.float32"
            )
        self.dtype = dtype
        self.scale = bool(scale)

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        return nothing_drawn(sizes)

    def motion(self, numbers: IndexArray | FloatArray, sizes: IndexArray) -> FloatArray:
        return at_rest(len(sizes))

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        converted: Tensor = F.to_dtype_image(image, self.dtype, scale=self.scale)
        return converted

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        return self.apply(images, ())

    def dtype_after(self, dtype: torch.dtype) -> torch.dtype:
        return self.dtype

    def pointwise(self, before: Pointwise) -> Pointwise | None:
        if self.dtype is before.dtype:
            return before
        if self.dtype not in FLOATS or before.dtype not in (torch.uint8, torch.float32):
            return None
        if self.scale and before.dtype is torch.uint8:
            before = before.then("*", [1.0 / 255.0])
        return before.cast(self.dtype)

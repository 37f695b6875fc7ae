"""ToDtype, ToMemoryFormat and Normalize: change the dtype, layout or range of pixel values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.batches.device import constant
from stateful_gpu_loader.transforms.batches.placement import FLOATS, Placement, Pointwise
from stateful_gpu_loader.transforms.cut import Cut
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, Recipe, in_place, nothing_drawn


class ToDtype(Recipe):
    """Convert the image, as ``torchvision.transforms.v2.ToDtype``.

    Args:
        dtype: the new dtype; v2's dict of types is not supported.
        scale: whether to scale values to the range of the new dtype, which is [0, 1] for floats.

    Raises:
        TypeError: dtype is not a ``torch.dtype``.

    >>> ToDtype(torch.float32, scale=True).apply(torch.tensor([[[51]]], dtype=torch.uint8), [])
    tensor([[[0.2000]]])
    """

    def __init__(self, dtype: torch.dtype, scale: bool = False) -> None:
        if not isinstance(dtype, torch.dtype):
            raise TypeError(
                f"{dtype = } of type {type(dtype).__name__} is not supported. Remedy: pass the "
                "dtype of the images, such as torch.float32"
            )
        self.dtype = dtype
        self.scale = bool(scale)

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        return nothing_drawn(sizes)

    motion = in_place

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        from torchvision.transforms.v2 import functional as F

        converted: Tensor = F.to_dtype_image(image, self.dtype, scale=self.scale)
        return converted

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        return self.apply(images, ())

    def dtype_after(self, dtype: torch.dtype) -> torch.dtype:
        return self.dtype

    def cut(self, cut: Cut, numbers: Sequence[float]) -> Cut | None:
        return cut if self.dtype is torch.uint8 else None

    def pointwise(self, before: Pointwise) -> Pointwise | None:
        if self.dtype is before.dtype:
            return before
        if self.dtype not in FLOATS or before.dtype not in (torch.uint8, torch.float32):
            return None
        if self.scale and before.dtype is torch.uint8:
            before = before.then("*", [1.0 / 255.0])
        return before.cast(self.dtype)


_FORMATS = (torch.contiguous_format, torch.channels_last)


class ToMemoryFormat(Recipe):
    """Set the batch's memory format, as ``images.to(memory_format=...)``; no pixel changes.

    The last ToMemoryFormat wins.

    Args:
        memory_format: ``torch.contiguous_format``, or ``torch.channels_last``, which is best for
            convolutions in half precision.

    Raises:
        TypeError: the argument is not a memory format.
        ValueError: the argument is another memory format.

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

    motion = in_place

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        if self.memory_format is torch.channels_last:
            return image.permute(1, 2, 0).contiguous().permute(2, 0, 1)
        return image.contiguous()

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        return images.contiguous(memory_format=self.memory_format)

    def cut(self, cut: Cut, numbers: Sequence[float]) -> Cut:
        return cut

    def place(self, placement: Placement, numbers: IndexArray | FloatArray) -> Placement:
        return placement


class Normalize(Recipe):
    """Standardize each channel, as ``torchvision.transforms.v2.Normalize``.

    A uint8 image is scaled to float32 in [0, 1] first, as by ``ToDtype(torch.float32,
    scale=True)``. Both are one step, within 1e-6 of torchvision's two for ImageNet's values. A
    float image keeps its dtype.

    Args:
        mean: one number for each channel, on the scale of float images.
        std: one number for each channel, none of them 0.
        inplace: must stay False.

    Raises:
        TypeError: mean or std is not a sequence of numbers.
        ValueError: they differ in length, a std is 0, or inplace is True.

    >>> Normalize([0.5], [0.25]).apply(torch.full((1, 1, 2), 255, dtype=torch.uint8), [])
    tensor([[[2., 2.]]])
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        self.mean = _as_numbers("mean", mean)
        self.std = _as_numbers("std", std)
        self.inplace = inplace
        if inplace:
            raise ValueError(f"{inplace = } is not supported. Remedy: leave it out")
        if len(self.mean) != len(self.std) or not self.mean:
            raise ValueError(f"{mean = } and {std = } must have one number for each channel")
        if not all(self.std):
            raise ValueError(f"{std = } has a 0. Remedy: pass numbers other than 0")
        self._byte_mean = tuple(255.0 * value for value in self.mean)
        self._byte_scale = tuple(1.0 / (255.0 * value) for value in self.std)

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        return nothing_drawn(sizes)

    motion = in_place

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        if image.dtype is torch.uint8:
            mean = _per_channel(self._byte_mean, torch.float32, image.device)
            scale = _per_channel(self._byte_scale, torch.float32, image.device)
            return image.to(torch.float32).sub(mean).mul_(scale)
        if not image.is_floating_point():
            raise TypeError(
                f"Normalize needs a uint8 or float tensor, but the image is {image.dtype}. "
                "Remedy: put ToDtype(torch.float32, scale=True) before it"
            )
        # Like torchvision's normalize_image, which would make the host wait for the device.
        mean = _per_channel(self.mean, image.dtype, image.device)
        return image.sub(mean).div_(_per_channel(self.std, image.dtype, image.device))

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        return self.apply(images, ())

    def apply_into(self, image: Tensor, numbers: Sequence[float], out: Tensor) -> None:
        if (
            image.dtype is torch.uint8
            and image.is_cpu
            and out.dtype is torch.float32
            and out.shape == image.shape
        ):
            mean = _per_channel(self._byte_mean, torch.float32, image.device)
            scale = _per_channel(self._byte_scale, torch.float32, image.device)
            # Measured: 10 us less than torch.sub(image, mean, out=out), with the same bits.
            out.copy_(image).sub_(mean).mul_(scale)
        else:
            super().apply_into(image, numbers, out)

    def apply_batch_into(
        self, images: Tensor, numbers: IndexArray | FloatArray, out: Tensor
    ) -> None:
        self.apply_into(images, (), out)

    def dtype_after(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float32 if dtype is torch.uint8 else dtype

    def pointwise(self, before: Pointwise) -> Pointwise | None:
        if before.dtype is torch.uint8:
            return before.then("-", self._byte_mean).then("*", self._byte_scale)
        if before.dtype is torch.float32:
            return before.then("-", self.mean).then("/", self.std)
        return None


def _as_numbers(name: str, values: Sequence[float]) -> tuple[float, ...]:
    if isinstance(values, (int, float)):
        raise TypeError(f"{name}={values!r} must be a sequence of one number for each channel")
    return tuple(float(value) for value in values)


@cache
def _per_channel(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # as in ``constant``, whose memory the view shares
        return constant(values, dtype, device).view(-1, 1, 1)

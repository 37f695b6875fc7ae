"""Recipes that invert, posterize, solarize, stretch, equalize or sharpen; and Grayscale."""

from __future__ import annotations

import math
import operator
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.color.adjustments import (
    adjust_sharpness,
    autocontrast,
    equalize,
    invert,
    to_grey,
)
from stateful_gpu_loader.transforms.recipe import (
    Draw,
    FloatArray,
    Recipe,
    WithProbability,
    in_place,
    nothing_drawn,
)


class RandomInvert(WithProbability):
    """Invert the colors, with a probability, as ``torchvision.transforms.v2.RandomInvert``.

    Numbers: 1 to invert, else 0.

    Args:
        p: the probability.

    >>> RandomInvert().apply(torch.tensor([[[0, 200]]], dtype=torch.uint8), [1])
    tensor([[[255,  55]]], dtype=torch.uint8)
    """

    motion = in_place

    def _act(self, images: Tensor) -> Tensor:
        return invert(images)


class RandomPosterize(WithProbability):
    """Keep fewer bits of each value, with a probability, as v2's ``RandomPosterize``.

    Numbers: 1 to posterize, else 0.

    Args:
        bits: number of bits kept of a byte, 0 to 8; float images keep as many levels.
        p: the probability.

    Raises:
        TypeError: bits is not a whole number.
        ValueError: not 0 <= bits <= 8, or not 0 <= p <= 1.

    >>> RandomPosterize(2).apply(torch.tensor([[[70, 255]]], dtype=torch.uint8), [1])
    tensor([[[ 64, 192]]], dtype=torch.uint8)
    """

    def __init__(self, bits: int, p: float = 0.5) -> None:
        super().__init__(p)
        self.bits = operator.index(bits)
        if not 0 <= self.bits <= 8:
            raise ValueError(f"{bits = } must be a whole number from 0 to 8")

    motion = in_place

    def _act(self, images: Tensor) -> Tensor:
        from torchvision.transforms.v2 import functional as F

        posterized: Tensor = F.posterize_image(images, self.bits)
        return posterized


class RandomSolarize(WithProbability):
    """Invert the values that reach a threshold, with a probability, as v2's ``RandomSolarize``.

    Numbers: 1 to solarize, else 0.

    Args:
        threshold: the lowest value that is inverted, 0 to 255 for uint8 images, 0 to 1 for float.
        p: the probability.

    Raises:
        ValueError: threshold is not finite, or not 0 <= p <= 1. :meth:`apply` raises ValueError if
            threshold is above the image's brightest value.

    >>> RandomSolarize(128).apply(torch.tensor([[[100, 200]]], dtype=torch.uint8), [1])
    tensor([[[100,  55]]], dtype=torch.uint8)
    """

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        super().__init__(p)
        self.threshold = float(threshold)
        if not math.isfinite(self.threshold):
            raise ValueError(f"{threshold = } must be finite")

    motion = in_place

    def _act(self, images: Tensor) -> Tensor:
        from torchvision.transforms.v2 import functional as F

        brightest = 1.0 if images.is_floating_point() else 255.0
        if self.threshold > brightest:
            raise ValueError(
                f"threshold={self.threshold} is greater than {brightest}, the brightest value of "
                f"{images.dtype}. Remedy: pass a threshold on the scale of the image, or put "
                "ToDtype after RandomSolarize"
            )
        solarized: Tensor = F.solarize_image(images, self.threshold)
        return solarized


class _OfBatches(WithProbability):
    """Base of recipes whose operation takes only batches, [n, C, H, W]."""

    motion = in_place

    def _act(self, images: Tensor) -> Tensor:
        # The operations work plane by plane, twice as fast if planes are contiguous.
        if images.ndim == 3:
            return self._change(images.contiguous().unsqueeze(0)).squeeze(0)
        return self._change(images.contiguous())

    @abstractmethod
    def _change(self, images: Tensor) -> Tensor:
        """Change images [n, C, H, W], without changing their size."""


class RandomAutocontrast(_OfBatches):
    """Stretch each channel to the whole range, with a probability, as v2's ``RandomAutocontrast``.

    Numbers: 1 to stretch, else 0.

    Args:
        p: the probability.

    >>> RandomAutocontrast().apply(torch.tensor([[[100, 111]]], dtype=torch.uint8), [1])
    tensor([[[  0, 255]]], dtype=torch.uint8)
    """

    def _change(self, images: Tensor) -> Tensor:
        return autocontrast(images)


class RandomEqualize(_OfBatches):
    """Equalize each channel's histogram, with a probability, as v2's ``RandomEqualize``.

    Numbers: 1 to equalize, else 0.

    Args:
        p: the probability.

    >>> image = torch.tensor([10] * 256 + [20] * 256, dtype=torch.uint8).view(1, 1, 512)
    >>> RandomEqualize().apply(image, [1]).unique()
    tensor([  0, 255], dtype=torch.uint8)
    """

    def _change(self, images: Tensor) -> Tensor:
        return equalize(images)


class RandomAdjustSharpness(_OfBatches):
    """Blur or sharpen the image, with a probability, as v2's ``RandomAdjustSharpness``.

    Numbers: 1 to act, else 0.

    Args:
        sharpness_factor: 0 blurs, 1 changes nothing, 2 sharpens twice as much; not negative.
        p: the probability.

    Raises:
        ValueError: the factor is negative or not finite, or not 0 <= p <= 1.

    >>> image = torch.zeros(1, 3, 3, dtype=torch.uint8)
    >>> image[:, 1, 1] = 130
    >>> RandomAdjustSharpness(0).apply(image, [1])[:, 1]
    tensor([[ 0, 50,  0]], dtype=torch.uint8)
    """

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        super().__init__(p)
        self.sharpness_factor = float(sharpness_factor)
        if not 0 <= self.sharpness_factor < math.inf:
            raise ValueError(f"{sharpness_factor = } must be finite and not negative")

    def _change(self, images: Tensor) -> Tensor:
        factor = torch.full(
            (1, 1, 1, 1), self.sharpness_factor, dtype=torch.float64, device=images.device
        )
        return adjust_sharpness(images, factor)


class Grayscale(Recipe):
    """Remove the color, as ``torchvision.transforms.v2.Grayscale``, and keep three channels.

    Args:
        num_output_channels: must be 3, as a batch has three channels; v2's default is 1.

    Raises:
        ValueError: num_output_channels is not 3.

    >>> image = torch.tensor([200, 100, 50], dtype=torch.uint8).view(3, 1, 1)
    >>> Grayscale(3).apply(image, []).flatten()
    tensor([124, 124, 124], dtype=torch.uint8)
    """

    def __init__(self, num_output_channels: int = 1) -> None:
        self.num_output_channels = operator.index(num_output_channels)
        if self.num_output_channels != 3:
            raise ValueError(
                f"{num_output_channels = } is not supported: images have three channels. Remedy: "
                "pass 3, and take images[:, :1] of a batch"
            )

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        return nothing_drawn(sizes)

    motion = in_place

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        grey = to_grey(image)
        return grey.expand(*grey.shape[:-3], 3, *grey.shape[-2:])

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        return self.apply(images, ())

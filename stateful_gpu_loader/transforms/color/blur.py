"""GaussianBlur: blur the image by a random amount."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import as_range, as_size
from stateful_gpu_loader.transforms.batches.device import on_device
from stateful_gpu_loader.transforms.recipe import (
    BatchwiseRecipe,
    Draw,
    FloatArray,
    between,
    in_place,
)


class GaussianBlur(BatchwiseRecipe):
    """Blur the image, as ``torchvision.transforms.v2.GaussianBlur``; edges are mirrored.

    Numbers: the standard deviation of the Gaussian in pixels. float16 and bfloat16 images are
    computed in float32 and rounded once.

    Args:
        kernel_size: (width, height) of the kernel in pixels, odd; or an int for a square.
        sigma: lowest and highest standard deviation, or one number for a fixed one.

    >>> GaussianBlur(5).draw(np.array([[0.5]]), np.array([[375, 500]])).numbers
    array([[1.05]])
    """

    num_draws = 1
    number_names = ("sigma",)

    def __init__(
        self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0)
    ) -> None:
        self.kernel_size = as_size(kernel_size)
        self.sigma = _as_deviations(sigma)
        if not all(side % 2 for side in self.kernel_size):
            raise ValueError(f"{kernel_size = } must be odd")

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        """Draw the standard deviations.

        Raises:
            ValueError: an image is too small for its edges to be mirrored.
        """
        reach = np.array(self.kernel_size[::-1]) // 2
        small = np.flatnonzero((sizes <= reach).any(axis=1))
        if len(small):
            height, width = sizes[small[0]].tolist()
            raise ValueError(
                f"{self.fingerprint()} mirrors {reach[0]} rows and {reach[1]} columns at each "
                f"edge, but sample {small[0]} of the batch has {height}x{width} (height x width). "
                "Remedy: put Resize first, or use a smaller kernel"
            )
        return Draw(between(self.sigma, uniforms), sizes)

    motion = in_place

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        n, channels, height, width = images.shape
        dtype = torch.float64 if images.dtype is torch.float64 else torch.float32
        deviations = on_device(numbers, images.device).to(dtype)
        across, down = (_gaussians(side, deviations) for side in self.kernel_size)
        kernels = (down.unsqueeze(-1) * across.unsqueeze(-2)).unsqueeze(1)
        reach_x, reach_y = self.kernel_size[0] // 2, self.kernel_size[1] // 2
        padded = pad(images.to(dtype), [reach_x, reach_x, reach_y, reach_y], mode="reflect")
        # Every plane has its own kernel. A second plane is added to a single one, for which a GPU
        # uses less precise code.
        planes = 2 if n * channels == 1 else channels
        blurred = conv2d(
            _as_channels(padded.expand(-1, planes, -1, -1)).unsqueeze(0),
            _as_channels(kernels.expand(-1, planes, -1, -1)).unsqueeze(1),
            groups=n * planes,
        )
        blurred = blurred.view(n, planes, height, width)[:, :channels]
        return (blurred if images.is_floating_point() else blurred.round_()).to(images.dtype)


def _as_channels(batch: Tensor) -> Tensor:
    return batch.reshape(-1, *batch.shape[2:])


def _gaussians(length: int, deviations: Tensor) -> Tensor:
    """Return the weights of each deviation, [n, length], as in torchvision."""
    end = (length - 1) / (2.0 * math.sqrt(2.0))
    places = torch.linspace(-end, end, length, dtype=deviations.dtype, device=deviations.device)
    return torch.softmax(places.div(deviations).pow_(2).neg_(), dim=-1)


def _as_deviations(sigma: Any) -> tuple[float, float]:
    if isinstance(sigma, (int, float)):
        sigma = (sigma, sigma)
    elif isinstance(sigma, Sequence) and not isinstance(sigma, str) and len(sigma) == 1:
        sigma = (sigma[0], sigma[0])
    lowest, highest = as_range("sigma", sigma)
    if lowest <= 0:
        raise ValueError(f"{sigma = } must be positive")
    return lowest, highest

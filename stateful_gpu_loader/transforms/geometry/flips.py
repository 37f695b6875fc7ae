"""RandomHorizontalFlip and RandomVerticalFlip: mirror images, with a probability."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.batches.placement import Placement
from stateful_gpu_loader.transforms.motion import scaled_and_shifted
from stateful_gpu_loader.transforms.recipe import FloatArray, WithProbability


class RandomHorizontalFlip(WithProbability):
    """Swap left and right, as ``torchvision.transforms.v2.RandomHorizontalFlip``.

    Numbers: 1 to flip, 0 to leave the image as it is.

    Args:
        p: the probability of a flip.

    Raises:
        ValueError: not 0 <= p <= 1.

    >>> import torch
    >>> RandomHorizontalFlip().apply(torch.tensor([[[1, 2, 3]]]), [1])
    tensor([[[3, 2, 1]]])
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)

    def _act(self, images: Tensor) -> Tensor:
        return images.flip(-1)

    def place(self, placement: Placement, numbers: IndexArray | FloatArray) -> Placement:
        return placement.flip(1, numbers[:, 0] != 0)

    def motion(self, numbers: IndexArray | FloatArray, sizes: IndexArray) -> FloatArray:
        return _mirrored(numbers[:, 0] != 0, sizes, axis=0)


class RandomVerticalFlip(WithProbability):
    """Swap top and bottom, as ``torchvision.transforms.v2.RandomVerticalFlip``.

    Numbers: 1 to flip, 0 to leave the image as it is.

    Args:
        p: the probability of a flip.

    Raises:
        ValueError: not 0 <= p <= 1.

    >>> import torch
    >>> RandomVerticalFlip().apply(torch.tensor([[[1], [2]]]), [1])
    tensor([[[2],
             [1]]])
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)

    def _act(self, images: Tensor) -> Tensor:
        return images.flip(-2)

    def place(self, placement: Placement, numbers: IndexArray | FloatArray) -> Placement:
        return placement.flip(0, numbers[:, 0] != 0)

    def motion(self, numbers: IndexArray | FloatArray, sizes: IndexArray) -> FloatArray:
        return _mirrored(numbers[:, 0] != 0, sizes, axis=1)


def _mirrored(chosen: npt.NDArray[np.bool_], sizes: IndexArray, *, axis: int) -> FloatArray:
    """Motions that mirror the images chosen, along x (axis 0) or y (axis 1)."""
    scales, shifts = np.ones((len(sizes), 2)), np.zeros((len(sizes), 2))
    scales[chosen, axis] = -1.0
    shifts[chosen, axis] = sizes[chosen, 1 - axis]
    return scaled_and_shifted(scales, shifts)

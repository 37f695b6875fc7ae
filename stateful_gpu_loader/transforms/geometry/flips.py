"""RandomHorizontalFlip and RandomVerticalFlip: mirror images, with a probability."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.batches.placement import Placement
from stateful_gpu_loader.transforms.cut import Cut
from stateful_gpu_loader.transforms.motion import scaled_and_shifted
from stateful_gpu_loader.transforms.recipe import FloatArray, WithProbability


class _Flip(WithProbability):
    """Base of the two flips: reverse rows (axis 0) or columns (axis 1)."""

    _axis: int

    def _act(self, images: Tensor) -> Tensor:
        return images.flip(self._axis - 2)

    def cut(self, cut: Cut, numbers: Sequence[float]) -> Cut:
        return cut.flip(self._axis) if numbers[0] else cut

    def place(self, placement: Placement, numbers: IndexArray | FloatArray) -> Placement:
        return placement.flip(self._axis, numbers[:, 0] != 0)

    def motion(self, numbers: IndexArray | FloatArray, sizes: IndexArray) -> FloatArray:
        chosen = numbers[:, 0] != 0
        scales, shifts = np.ones((len(sizes), 2)), np.zeros((len(sizes), 2))
        # Sizes are (height, width), but motions (x, y).
        scales[chosen, 1 - self._axis] = -1.0
        shifts[chosen, 1 - self._axis] = sizes[chosen, self._axis]
        return scaled_and_shifted(scales, shifts)


class RandomHorizontalFlip(_Flip):
    """Swap left and right, as ``torchvision.transforms.v2.RandomHorizontalFlip``.

    Numbers: 1 to flip, else 0.

    Args:
        p: the probability of a flip.

    >>> import torch
    >>> RandomHorizontalFlip().apply(torch.tensor([[[1, 2, 3]]]), [1])
    tensor([[[3, 2, 1]]])
    """

    _axis = 1


class RandomVerticalFlip(_Flip):
    """Swap top and bottom, as ``torchvision.transforms.v2.RandomVerticalFlip``.

    Numbers: 1 to flip, else 0.

    Args:
        p: the probability of a flip.

    >>> import torch
    >>> RandomVerticalFlip().apply(torch.tensor([[[1], [2]]]), [1])
    tensor([[[2],
             [1]]])
    """

    _axis = 0

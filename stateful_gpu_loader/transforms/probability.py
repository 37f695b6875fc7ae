"""WithProbability: what the recipes share that act on some images and leave the others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import as_probability
from stateful_gpu_loader.transforms.batches.device_numbers import on_device
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, Recipe


class WithProbability(Recipe):
    """Base of recipes that act with probability p; a subclass gives :meth:`_act`.

    Numbers: 1 to act, 0 to leave the image as it is.

    Args:
        p: the probability.

    Raises:
        ValueError: not 0 <= p <= 1.
    """

    num_draws = 1
    number_names = ("acts",)

    def __init__(self, p: float) -> None:
        self.p = as_probability(p)

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        return Draw((uniforms < self.p).astype(np.int64), sizes)

    @abstractmethod
    def _act(self, images: Tensor) -> Tensor:
        """What happens to images [..., C, H, W] of those that were chosen; no size changes."""

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        return self._act(image) if numbers[0] else image

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        rows = np.flatnonzero(numbers[:, 0])
        if len(rows) == 0:
            return images
        chosen = on_device(rows, images.device)
        result = images.clone()
        return result.index_copy_(0, chosen, self._act(images.index_select(0, chosen)))

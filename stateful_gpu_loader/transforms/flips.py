"""RandomHorizontalFlip and RandomVerticalFlip: mirror images, with a probability."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from stateful_gpu_loader.transforms.probability import WithProbability


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

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        return image.flip(-1) if numbers[0] else image


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

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        return image.flip(-2) if numbers[0] else image

"""BatchMixing: what MixUp and CutMix share: their arguments, their partners and their labels.

Each sample's partner is the one before it in the batch, and the first's is the last, as
torchvision has it.
"""

from __future__ import annotations

import operator

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from stateful_gpu_loader.transforms.mixing.batch_recipe import BatchRecipe
from stateful_gpu_loader.transforms.mixing.beta import checked_alpha


class BatchMixing(BatchRecipe):
    """Base of batch recipes that mix each sample with its partner.

    Args:
        alpha: the share of a sample is drawn from Beta(alpha, alpha).
        num_classes: length of the mixed labels; may be None for labels [n, num_classes].
        labels_getter: "default"; v2's functions are not supported.

    Raises:
        TypeError, ValueError: an argument is of another kind or outside its range.
    """

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        num_classes: int | None = None,
        labels_getter: str = "default",
    ) -> None:
        if labels_getter != "default":
            raise ValueError(
                f"{labels_getter = } is not supported. Remedy: leave it out and pass images and "
                "labels, in this order"
            )
        self.alpha = checked_alpha(alpha)
        self.num_classes = None if num_classes is None else operator.index(num_classes)
        self.labels_getter = labels_getter
        if self.num_classes is not None and self.num_classes < 1:
            raise ValueError(f"{num_classes = } must be at least 1")

    def _mix_labels(self, labels: Tensor, share: float) -> Tensor:
        """Labels [n, num_classes], floats: ``share`` of each sample's, the rest its partner's."""
        if labels.ndim == 1:
            labels = one_hot(labels, self.num_classes or -1)
        weights = labels if labels.is_floating_point() else labels.to(torch.float32)
        return mix(weights, share)

    def _check(self, images: Tensor, labels: Tensor) -> None:
        name = type(self).__name__
        if labels.ndim not in (1, 2):
            raise ValueError(
                f"{name} got labels of shape {list(labels.shape)}. Remedy: pass int64 [n] or "
                "[n, num_classes]"
            )
        if labels.ndim == 1 and self.num_classes is None:
            raise ValueError(
                f"{name} got labels [n] and does not know how many classes there are. Remedy: "
                f"build it as {name}(num_classes=...)"
            )
        if labels.ndim == 1 and labels.dtype is not torch.int64:
            raise TypeError(
                f"{name} got labels [n] of {labels.dtype}. Remedy: pass int64 class numbers"
            )
        if labels.ndim == 2 and self.num_classes not in (None, labels.shape[1]):
            raise ValueError(
                f"{name}(num_classes={self.num_classes}) got labels of shape "
                f"{list(labels.shape)}. Remedy: make both equal, or leave num_classes out"
            )
        if images.ndim != 4 or len(images) != len(labels):
            raise ValueError(
                f"{name} got images of shape {list(images.shape)} and {len(labels)} labels. "
                "Remedy: pass a batch of images, [n, C, H, W], and a label for each"
            )


def mix(values: Tensor, share: float) -> Tensor:
    """``share`` of each row and the rest of the row before it, in torchvision's order of steps.

    >>> mix(torch.tensor([[1.0], [0.0]]), 0.75)
    tensor([[0.7500],
            [0.2500]])
    """
    return values.roll(1, 0).mul_(1.0 - share).add_(values.mul(share))

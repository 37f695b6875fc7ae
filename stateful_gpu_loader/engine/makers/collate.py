"""Collate functions whose images the loader stacks, and names of samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import Subset, default_collate, default_convert

from stateful_gpu_loader.datasets.source import Source


def ragged_collate(samples: Sequence[tuple[Any, Any]]) -> list[Any]:
    """Collate to ``[images, targets]``: stacked images and a list of targets, for detection models.

    For targets that differ in size, such as the boxes of a :class:`CocoSource`.

    Args:
        samples: n pairs of an image [C, H, W], all of one size, and its target.

    Returns: a tensor [n, C, H, W] and a list of n targets.

    >>> import torch
    >>> images, targets = ragged_collate([(torch.zeros(3, 2, 2), [1]), (torch.ones(3, 2, 2), [])])
    >>> images.shape, targets
    (torch.Size([2, 3, 2, 2]), [[1], []])
    """
    images, targets = zip(*samples, strict=True)
    return [default_collate(list(images)), list(targets)]


DRAWS_NOTHING = (default_collate, default_convert, ragged_collate)
"""Collate functions that do not draw from the global generators."""

STACKS_IMAGES = (default_collate, ragged_collate)
"""Collate functions that stack images; the first also stacks targets."""


def collate_targets(collate_fn: Callable[[Any], Any], targets: list[Any]) -> Any:
    """Collate only the targets, for one of :data:`STACKS_IMAGES`."""
    # As default_collate, which returns strings as a tuple.
    batch: Any = tuple(targets)
    return targets if collate_fn is ragged_collate else default_collate(batch)


FIXED_SIZE = (
    "Remedy: end the {} with one that sets a fixed size, such as RandomResizedCrop(224), or pass "
    "collate_fn"
)


def name_of(dataset: Any, index: Any) -> str:
    """Return the index and, if any, the file; a source's sample is read again.

    >>> name_of([5, 6, 7], 2)
    'index 2'
    """
    path = _path_of(dataset, index)
    return f"index {index}" if path is None else f"index {index} ({path!r})"


def _path_of(dataset: Any, index: Any) -> str | None:
    try:
        if isinstance(dataset, Source):
            return dataset.read(index).name
        if isinstance(dataset, Subset):
            return _path_of(dataset.dataset, dataset.indices[index])
        path = dataset.samples[index][0]  # as in torchvision's ImageFolder
    except Exception:
        return None  # another error is about to be reported
    return path if isinstance(path, str) else None

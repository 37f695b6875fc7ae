"""What a reader of an error message knows a sample by."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Subset

from stateful_gpu_loader.datasets.source import Source

FIXED_SIZE = (
    "Remedy: end the {} with one that fixes the size, such as RandomResizedCrop(224), or pass "
    "collate_fn"
)


def name_of(dataset: Any, index: Any) -> str:
    """The index, and the file where the dataset tells it; a source's sample is read again.

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
        path = dataset.samples[index][0]  # as torchvision's ImageFolder has them
    except Exception:
        return None  # on the way to another error
    return path if isinstance(path, str) else None

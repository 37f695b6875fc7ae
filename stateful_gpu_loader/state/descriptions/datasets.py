"""A dataset's content, and the transforms inside it, each as one text (A13)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stateful_gpu_loader.state.descriptions.describer import (
    TRANSFORM_ATTRIBUTES,
    Describer,
    Description,
)
from stateful_gpu_loader.state.descriptions.sampling import MOST_ROWS, spread

CONTENT_ATTRIBUTES = (
    "dataset",
    "datasets",
    "indices",
    "tensors",
    "samples",
    "imgs",
    "targets",
    "classes",
    "data",
)
"""Where datasets, those of other people included, keep what they are made of."""

_DEEPEST = 16


def describe_dataset(dataset: Any) -> Description:
    """What a dataset is made of, as far as that can be seen without reading a sample.

    That is ``dataset.fingerprint()`` where it has one; the digest that a Hugging Face dataset
    keeps; all that a dataset of torchvision or a wrapper of torch holds, files by their paths
    below the dataset's root; and of any other class what lies in :data:`CONTENT_ATTRIBUTES`. Of
    lists and arrays it is a bounded sample. The text is :data:`NOTHING_KNOWN` where there is none
    of that: a class of the user's may be renamed, wrapped or mended.

    >>> import torch
    >>> describe_dataset(torch.utils.data.Subset(range(10), [3, 1])).text
    'torch.utils.data.dataset.Subset(dataset=range(0, 10), indices=[3, 1])'
    """
    left_out = (*TRANSFORM_ATTRIBUTES, "root")
    return Describer(CONTENT_ATTRIBUTES, left_out, names_classes=False).description(dataset)


def describe_transforms_of(dataset: Any) -> Description:
    """The transforms that a dataset, or one that it holds, applies by itself; or ``"none"``.

    >>> describe_transforms_of([1, 2, 3]).text
    'none'
    """
    describer = Describer()
    texts = [f"{path}={describer.text(transform)}" for path, transform in _inside(dataset)]
    return Description(", ".join(texts) or "none", describer.unknown)


def _inside(dataset: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Each transform with the attributes that lead to it."""
    attributes = getattr(dataset, "__dict__", {})
    transform: Any = attributes.get("transform")
    for name in TRANSFORM_ATTRIBUTES:
        given: Any = attributes.get(name)
        # torchvision's ``transforms`` are most often the two others once more.
        is_both = type(given).__name__ == "StandardTransform" and given.transform is transform
        if given is not None and not is_both:
            yield f"{path}{name}", given
    if depth < _DEEPEST:
        yield from _inside_all(attributes.get("dataset"), f"{path}dataset", depth + 1)
        yield from _inside_all(attributes.get("datasets"), f"{path}datasets", depth + 1)


def _inside_all(held: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(held, dict):
        for key, each in held.items():
            yield from _inside(each, f"{path}[{key!r}].", depth)
    elif isinstance(held, (list, tuple)):
        for number in spread(len(held), MOST_ROWS):
            yield from _inside(held[number], f"{path}[{number}].", depth)
    elif held is not None:
        yield from _inside(held, f"{path}.", depth)

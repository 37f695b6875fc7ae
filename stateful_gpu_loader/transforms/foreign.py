"""Transforms of torchvision that have no place where images are tensors already."""

from __future__ import annotations

from typing import Any


def remedy_for(step: Any) -> str | None:
    """What takes the place of a ToTensor, v1 or v2, or of v1's PILToTensor; None for all others.

    >>> remedy_for(print) is None
    True
    """
    for kind in type(step).__mro__:
        if not kind.__module__.startswith("torchvision.transforms"):
            continue
        if kind.__name__ == "ToTensor":
            return (
                "leave it out, and put ToDtype(torch.float32, scale=True) of "
                "stateful_gpu_loader.transforms in its place, or Normalize(mean, std) alone, which "
                "scales uint8 to 0 ... 1 by itself"
            )
        if kind.__name__ == "PILToTensor" and ".v2" not in kind.__module__:
            return "leave it out"
    return None

"""Arguments as every supported torchvision takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchvision.transforms import AutoAugmentPolicy, InterpolationMode


def in_torchvisions_words(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Before 0.27 it takes an interpolation by its mode, and not by its name; always a policy.

    >>> in_torchvisions_words({"size": 8, "interpolation": "bicubic"})
    {'size': 8, 'interpolation': <InterpolationMode.BICUBIC: 'bicubic'>}
    """
    enums = {"interpolation": InterpolationMode, "policy": AutoAugmentPolicy}
    return {
        name: enums[name](value) if name in enums and isinstance(value, str) else value
        for name, value in arguments.items()
    }
